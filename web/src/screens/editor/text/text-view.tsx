/** The text of the file, with line numbers and marked problems. */
import { useEffect, useRef, useState } from "react";
import type { FileProblem } from "../types";

export interface Jump {
  line: number;
  /** Distinguishes repeated jumps to the same line. */
  nonce: number;
}

export function TextView({ text, label, locked, problems, jump, onChange }: { text: string; label: string; locked: boolean; problems: FileProblem[]; jump: Jump | null; onChange: (text: string) => void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const [top, setTop] = useState(0);
  const lines = text.split("\n").length;
  const bad = new Map<number, FileProblem>();
  for (const each of problems) if (each.line !== null && (!bad.has(each.line) || each.severity === "error")) bad.set(each.line, each);
  useEffect(() => {
    const shown = area.current;
    if (!shown || !jump) return;
    const rows = shown.value.split("\n");
    const start = rows.slice(0, jump.line - 1).reduce((sum, row) => sum + row.length + 1, 0);
    shown.focus();
    shown.setSelectionRange(start, start + (rows[jump.line - 1]?.length ?? 0));
    shown.scrollTop = Math.max(0, (jump.line - 4) * 19);
  }, [jump]);
  return (
    <div className="text-view">
      <div className="gutter" aria-hidden="true">
        <div style={{ transform: `translateY(${-top}px)` }}>
          {Array.from({ length: lines }, (_, index) => {
            const found = bad.get(index + 1);
            return (
              <span key={index} className={found ? (found.severity === "error" ? "bad" : "wait") : ""} title={found?.message}>
                {index + 1}
              </span>
            );
          })}
        </div>
      </div>
      <textarea ref={area} aria-label={label} value={text} readOnly={locked} spellCheck={false} autoCapitalize="off" autoComplete="off" wrap="off" onScroll={(event) => setTop(event.currentTarget.scrollTop)} onChange={(event) => onChange(event.target.value)} />
    </div>
  );
}
