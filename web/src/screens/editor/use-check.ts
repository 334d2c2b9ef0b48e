/** The server's check of the text, repeated whenever typing pauses. */
import { useEffect, useState } from "react";
import { postQuery } from "../../api/client";
import type { Checked } from "./types";

const DELAY_MS = 250;

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
        const checked = await postQuery<Checked>("/workflow-files/check", { path, text });
        if (!isOver) setState({ checked, isChecking: false, failed: null });
      } catch (error) {
        if (!isOver) setState((before) => ({ ...before, isChecking: false, failed: error instanceof Error ? error.message : String(error) }));
      }
    }, DELAY_MS);
    return () => {
      isOver = true;
      window.clearTimeout(timer);
    };
  }, [path, text]);
  return state;
}
