/** Two texts, and what differs between them. */
import { useMemo } from "react";
import { diff, hunks } from "./diff";

export function DiffView({ before, after, label }: { before: string; after: string; label: string }) {
  const lines = useMemo(() => diff(before, after), [before, after]);
  const parts = useMemo(() => hunks(lines), [lines]);
  const gone = lines.filter((line) => line.kind === "gone").length;
  const added = lines.filter((line) => line.kind === "new").length;
  if (parts.length === 0) return <p className="soft">The texts are the same.</p>;
  return (
    <>
      <p className="soft">
        {added} {added === 1 ? "line" : "lines"} new, {gone} gone
      </p>
      <div className="diff" tabIndex={0} role="region" aria-label={label}>
        {parts.map((part, index) => (
          <div key={index}>
            {part.left > 0 && <div className="fold">{part.left} lines as they were</div>}
            {part.lines.map((line) => (
              <div key={`${line.before ?? ""} ${line.after ?? ""}`} className={`line ${line.kind}`}>
                <span className="number">{line.before ?? ""}</span>
                <span className="number">{line.after ?? ""}</span>
                <span className="sign">{line.kind === "gone" ? "−" : line.kind === "new" ? "+" : " "}</span>
                <code>{line.text || " "}</code>
              </div>
            ))}
          </div>
        ))}
      </div>
    </>
  );
}
