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

/** A sentence with commands as code, and ids of runs, jobs and dead letters as links. */
export function linked(line: string): ReactNode[] {
  return line.split(/(`[^`]+`|\b[rd]\d+\b|\bjob \d+\b)/g).map((part, index) => {
    if (part.startsWith("`")) return <code key={index}>{part.slice(1, -1)}</code>;
    if (/^r\d+$/.test(part)) return <Link key={index} to={`/runs/${part.slice(1)}`}>{part}</Link>;
    if (/^d\d+$/.test(part)) return <Link key={index} to={`/streams/${part}`}>{part}</Link>;
    if (/^job \d+$/.test(part)) return <Link key={index} to={`/jobs/${part.slice(4)}`}>{part}</Link>;
    return part;
  });
}
