import type { ReactNode } from "react";
import { Link } from "../../app/router";

/** The server's explanation of a state, as a list of sentences. */
export function Explanation({ lines }: { lines: string[] }) {
  return (
    <ul className="why">
      {lines.map((line) => (
        <li key={line}>{linked(line)}</li>
      ))}
    </ul>
  );
}

/** A sentence with commands as code, and ids of runs and jobs as links. */
export function linked(line: string): ReactNode[] {
  return line.split(/(`[^`]+`|\br\d+\b|\bjob \d+\b)/g).map((part, index) => {
    if (part.startsWith("`")) return <code key={index}>{part.slice(1, -1)}</code>;
    if (/^r\d+$/.test(part)) return <Link key={index} to={`/runs/${part.slice(1)}`}>{part}</Link>;
    if (/^job \d+$/.test(part)) return <Link key={index} to={`/jobs/${part.slice(4)}`}>{part}</Link>;
    return part;
  });
}
