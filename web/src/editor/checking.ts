/** Whether the text can work, as the server sees it: asked again whenever typing pauses. */
import { useEffect, useState } from "react";
import { look } from "../api";
import type { Checked } from "./types";

const PAUSE = 250;

interface State {
  checked: Checked | null;
  isChecking: boolean;
  failed: string | null;
}

export function useChecked(path: string, text: string, known: Checked | null): State {
  const [state, setState] = useState<State>({ checked: known, isChecking: known === null, failed: null });
  useEffect(() => {
    let isOver = false;
    setState((before) => ({ ...before, isChecking: true }));
    const timer = window.setTimeout(async () => {
      try {
        const checked = await look<Checked>("/workflow-files/check", { path, text });
        if (!isOver) setState({ checked, isChecking: false, failed: null });
      } catch (error) {
        if (!isOver) setState((before) => ({ ...before, isChecking: false, failed: error instanceof Error ? error.message : String(error) }));
      }
    }, PAUSE);
    return () => {
      isOver = true;
      window.clearTimeout(timer);
    };
  }, [path, text]);
  return state;
}
