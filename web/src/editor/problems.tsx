/** Everything that is wrong, in one list: press a line to go there. */
import { Panel } from "../parts/ui";
import type { Trouble } from "./types";

export function Problems({ problems, names, isChecking, failed, onGo }: { problems: Trouble[]; names: string[]; isChecking: boolean; failed: string | null; onGo: (problem: Trouble) => void }) {
  const errors = problems.filter((each) => each.severity === "error").length;
  const notes = problems.length - errors;
  const told = [errors && `${errors} wrong`, notes && `${notes} to look at`].filter(Boolean).join(", ");
  return (
    <Panel
      title="Problems"
      className="problems"
      aside={
        <span role="status" className={errors ? "wrong" : "faint"}>
          {failed ? "not checked" : isChecking ? "checking …" : told || "none"}
        </span>
      }
    >
      {failed && <p className="pad wrong">{failed}</p>}
      {!failed && problems.length === 0 && <p className="pad soft">{isChecking ? "Looking at it …" : "This can work as it is written."}</p>}
      <ul>
        {problems.map((each) => (
          <li key={`${each.where} ${each.message}`}>
            <button type="button" className={each.severity === "error" ? "bad" : "wait"} onClick={() => onGo(each)}>
              <i aria-label={each.severity === "error" ? "wrong" : "to look at"} role="img" />
              <b>{each.node === null ? "the file" : (names[each.node] ?? `node ${each.node + 1}`)}</b>
              <span>{each.message}</span>
              <small>
                {[each.where, each.line !== null && `line ${each.line}`].filter(Boolean).join(" · ")}
              </small>
            </button>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
