/** Tables: a wide one scrolls sideways while its actions stay visible; on a phone each row is a card. */
import { type ReactNode, useLayoutEffect, useRef } from "react";
import { Link } from "../../app/router";
import { count } from "../format";

export interface Heading {
  name: string;
  /** Class of the column: `num`, `nowrap`, `wide-only`. */
  kind?: string;
  /** What the column means, shown on hover. */
  title?: string;
  /** Shown instead of the name. */
  shown?: ReactNode;
}

/** The heading of a numeric column. */
export const num = (name: string, title?: string): Heading => ({ name, kind: "num", title });

interface TableProps {
  label: string;
  heads: (string | Heading)[];
  /** Whether rows end with `RowActions`. */
  hasActions?: boolean;
  children: ReactNode;
}

export function Table({ label, heads, hasActions = false, children }: TableProps) {
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
            {hasActions && (
              <th className="acts">
                <span className="hidden">Actions</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody ref={body}>{children}</tbody>
      </table>
    </div>
  );
}

/** A count in a column; zeros are faint, so that the others are seen. */
export function Count({ value, to }: { value: number; to?: string }) {
  if (value === 0) return <span className="faint">0</span>;
  return to ? <Link to={to}>{count(value)}</Link> : <>{count(value)}</>;
}

/** The last cell of a row: its buttons. */
export function RowActions({ children }: { children: ReactNode }) {
  return (
    <td className="acts">
      <span>{children}</span>
    </td>
  );
}
