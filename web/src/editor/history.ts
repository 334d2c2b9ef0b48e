/** What was written before and after: undo and redo over the whole text, with quick typing in one place as one step. */
import { useCallback, useReducer } from "react";

interface Past {
  text: string;
  past: string[];
  future: string[];
  /** What the last change was about, and when: more of the same soon after belongs to it. */
  key: string;
  at: number;
}

type Act = { kind: "change"; text: string; key: string } | { kind: "undo" } | { kind: "redo" } | { kind: "reset"; text: string };

const SOON = 1200;
const MOST = 300;

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
  const goesOn = act.key !== "" && act.key === state.key && now - state.at < SOON;
  return { text: act.text, past: goesOn ? state.past : [...state.past, state.text].slice(-MOST), future: [], key: act.key, at: now };
}

export interface History {
  text: string;
  canUndo: boolean;
  canRedo: boolean;
  /** A new text; with a key, it belongs to the change before if that was about the same. */
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
