import type { Attempt } from "../../api/types";
import { Panel } from "../layout";
import { Tag } from "../state";
import { Ago } from "../times";

/** The errors of failed attempts, newest first. */
export function AttemptErrors({ errors }: { errors: Attempt[] }) {
  if (errors.length === 0) return null;
  return (
    <Panel title={errors.length === 1 ? "Error" : `Errors of ${errors.length} attempts`}>
      <div className="attempts">
        {[...errors].reverse().map((error, index) => (
          <details key={`${error.attempt}-${error.at}`} open={index === 0}>
            <summary>
              {(error.attempt !== undefined || errors.length > 1) && <Tag tone="bad">attempt {error.attempt ?? errors.length - index}</Tag>} <b>{error.kind ?? error.type ?? "error"}</b> {error.message ?? error.error}{" "}
              {error.at !== undefined && (
                <span className="faint">
                  <Ago at={error.at} />
                </span>
              )}
            </summary>
            {error.traceback && (
              <pre className="trace" tabIndex={0} aria-label="Traceback">
                {error.traceback}
              </pre>
            )}
          </details>
        ))}
      </div>
    </Panel>
  );
}
