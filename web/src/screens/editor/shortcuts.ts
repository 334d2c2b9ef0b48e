/** Keyboard shortcuts of the editor: undo, redo, save, clear the selection. */
import { useEffect, useRef } from "react";

interface Keys {
  undo: () => void;
  redo: () => void;
  save: () => void;
  escape: () => void;
}

export function useEditorKeys(keys: Keys): void {
  const now = useRef(keys);
  now.current = keys;
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (document.querySelector("dialog[open]")) return;
      const held = event.metaKey || event.ctrlKey;
      const key = event.key.toLowerCase();
      const act = held && key === "z" ? (event.shiftKey ? "redo" : "undo") : held && key === "y" ? "redo" : held && key === "s" ? "save" : key === "escape" ? "escape" : null;
      if (act === null) return;
      if (held) event.preventDefault();
      now.current[act]();
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, []);
}
