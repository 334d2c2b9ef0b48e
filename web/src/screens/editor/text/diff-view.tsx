/** The differences between two texts. */
import { useMemo } from "react";
import { count, plural } from "../../../components/format";
import { diff } from "./diff";

export function DiffView({ before, after, label }: { before: string; after: string; label: string }) {
  const parts = useMemo(() => diff(before, after), [before, after]);
  const lines = parts.flatMap((part) => part.lines);
  const removed = lines.filter((line) => line.kind === "removed").length;
  const added = lines.filter((line) => line.kind === "added").length;
  if (parts.length === 0) return <p className="soft">No differences.</p>;
  return (
    <>
      <p className="soft">
        {plural(added, "line")} added, {count(removed)} removed
      </p>
      <div className="diff" tabIndex={0} role="region" aria-label={label}>
        {parts.map((part, index) => (
          <div key={index}>
            {part.left > 0 && <div className="fold">{part.left} unchanged lines</div>}
            {part.lines.map((line) => (
              <div key={`${line.before ?? ""} ${line.after ?? ""}`} className={`line ${line.kind}`}>
                <span className="number">{line.before ?? ""}</span>
                <span className="number">{line.after ?? ""}</span>
                <span className="sign">{line.kind === "removed" ? "−" : line.kind === "added" ? "+" : " "}</span>
                <code>{line.text || " "}</code>
              </div>
            ))}
          </div>
        ))}
      </div>
    </>
  );
}
