/** How many states of a pipeline are in each state, as a bar; and links to states. */
import { Link } from "../../app/router";
import { count } from "../../components/format";
import { State } from "../../components/state";
import { labelOf, PIPELINE_STATES, toneOf } from "../../components/states";
import { pipelineUrl, type StateRef } from "./types";

/** A stacked bar of the counts, with the numbers as text. */
export function StateCounts({ counts, label }: { counts: Record<string, number>; label: string }) {
  const known = PIPELINE_STATES.flatMap((state) => (counts[state] ? [{ state, number: counts[state] }] : []));
  const total = known.reduce((sum, each) => sum + each.number, 0);
  if (total === 0) return <span className="faint">no states yet</span>;
  const text = known.map(({ state, number }) => `${count(number)} ${labelOf(state)}`).join(", ");
  return (
    <span className="state-counts">
      <span className="state-counts-bar" role="img" aria-label={`${label}: ${text}`}>
        {known.map(({ state, number }) => (
          <i key={state} className={toneOf(state)} style={{ flexGrow: Math.max(number, total / 60) }} title={`${count(number)} ${labelOf(state)}`} />
        ))}
      </span>
      <span className="state-counts-text">{text}</span>
    </span>
  );
}

/** A link to a state, with its badge. */
export function StateLink({ pipeline, state }: { pipeline: string; state: StateRef }) {
  return (
    <span className="state-link">
      <Link to={pipelineUrl(pipeline, state)}>
        {state.stage}
        {state.entity && ` / ${state.entity}`}
      </Link>{" "}
      {state.state ? <State state={state.state} /> : <span className="faint">none</span>}
    </span>
  );
}
