/** Tables. Where one is too wide it scrolls by itself, and what can be done with a row stays in sight; on a phone each row is a card. */
import { type ReactNode, useLayoutEffect, useRef } from "react";

export interface Heading {
  name: string;
  /** How the column is set: `num`, `nowrap`, `wide-only`. */
  kind?: string;
  /** What the name means, on hover. */
  title?: string;
  /** What stands there instead of the name. */
  shown?: ReactNode;
}

/** The head of a column of numbers. */
export const num = (name: string, title?: string): Heading => ({ name, kind: "num", title });

interface TableProps {
  label: string;
  heads: (string | Heading)[];
  /** Whether rows end with `Acts`. */
  acts?: boolean;
  children: ReactNode;
}

export function Table({ label, heads, acts = false, children }: TableProps) {
  const body = useRef<HTMLTableSectionElement>(null);
  const all = heads.map((head) => (typeof head === "string" ? { name: head } : head) as Heading);
  useLayoutEffect(() => {
    for (const row of body.current?.rows ?? []) [...row.cells].forEach((cell, index) => (cell.dataset.name = all[index]?.name ?? ""));
  });
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label={label}>
      <table className="rows">
        <thead>
          <tr>
            {all.map((head) => (
              <th key={head.name} className={head.kind} title={head.title}>
                {head.shown ?? head.name}
              </th>
            ))}
            {acts && (
              <th className="acts">
                <span className="hidden">What can be done</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody ref={body}>{children}</tbody>
      </table>
    </div>
  );
}

/** The last cell of a row: what can be done with it. */
export function Acts({ children }: { children: ReactNode }) {
  return (
    <td className="acts">
      <span>{children}</span>
    </td>
  );
}
