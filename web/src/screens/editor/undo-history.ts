/** Undo and redo over the whole text; quick typing in one place is one step. */
import { useCallback, useReducer } from "react";

interface Past {
  text: string;
  past: string[];
  future: string[];
  /** The key and time of the last change; more changes with the same key soon after join it. */
  key: string;
  at: number;
}

type Act = { kind: "change"; text: string; key: string } | { kind: "undo" } | { kind: "redo" } | { kind: "reset"; text: string };

const JOIN_MS = 1200;
const MAX_STEPS = 300;

function next(state: Past, act: Act): Past {
  if (act.kind === "reset") return { text: act.text, past: [], future: [], key: "", at: 0 };
  if (act.kind === "undo") {
    const text = state.past.at(-1);
    return text === undefined ? state : { text, past: state.past.slice(0, -1), future: [state.text, ...state.future], key: "", at: 0 };
  }
  if (act.kind === "redo") {
    const [text, ...future] = state.future;
    return text === undefined ? state : { text, past: [...state.past, state.text], future, key: "", at: 0 };
  }
  if (act.text === state.text) return state;
  const now = Date.now();
  const goesOn = act.key !== "" && act.key === state.key && now - state.at < JOIN_MS;
  return { text: act.text, past: goesOn ? state.past : [...state.past, state.text].slice(-MAX_STEPS), future: [], key: act.key, at: now };
}

export interface History {
  text: string;
  canUndo: boolean;
  canRedo: boolean;
  /** Set a new text; with the key of the previous change it joins that step. */
  change: (text: string, key?: string) => void;
  undo: () => void;
  redo: () => void;
  reset: (text: string) => void;
}

export function useHistory(first: string): History {
  const [state, act] = useReducer(next, { text: first, past: [], future: [], key: "", at: 0 });
  const change = useCallback((text: string, key = "") => act({ kind: "change", text, key }), []);
  const undo = useCallback(() => act({ kind: "undo" }), []);
  const redo = useCallback(() => act({ kind: "redo" }), []);
  const reset = useCallback((text: string) => act({ kind: "reset", text }), []);
  return { text: state.text, canUndo: state.past.length > 0, canRedo: state.future.length > 0, change, undo, redo, reset };
}
