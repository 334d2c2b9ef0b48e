/** The problems of the file; a click on one selects its place. */
import { plural } from "../../components/format";
import { Panel } from "../../components/layout";
import type { FileProblem } from "./types";

export function Problems({ problems, names, isChecking, failed, onGo }: { problems: FileProblem[]; names: string[]; isChecking: boolean; failed: string | null; onGo: (problem: FileProblem) => void }) {
  const errors = problems.filter((each) => each.severity === "error").length;
  const warnings = problems.length - errors;
  const summary = [errors && plural(errors, "error"), warnings && plural(warnings, "warning")].filter(Boolean).join(", ");
  return (
    <Panel
      title="Problems"
      className="problems"
      aside={
        <span role="status" className={errors ? "wrong" : "faint"}>
          {failed ? "check failed" : isChecking ? "checking …" : summary || "none"}
        </span>
      }
    >
      {failed && <p className="pad wrong">{failed}</p>}
      {!failed && problems.length === 0 && <p className="pad soft">{isChecking ? "Checking …" : "No problems found."}</p>}
      <ul>
        {problems.map((each) => (
          <li key={`${each.where} ${each.message}`}>
            <button type="button" className={each.severity === "error" ? "bad" : "wait"} onClick={() => onGo(each)}>
              <i aria-label={each.severity} role="img" />
              <b>{each.node === null ? "file" : (names[each.node] ?? `node ${each.node + 1}`)}</b>
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
