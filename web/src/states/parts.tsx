/** Small parts that the screens of states share. */
import { count } from "../parts/ui";
import { Link } from "../router";
import { placeOfState, type StateRef, STANDINGS } from "./types";

/** How a state stands, as a dot and a word. */
export function Standing({ standing }: { standing: string | null }) {
  const known = standing === null ? null : STANDINGS[standing];
  if (!known) return <span className="faint">{standing ?? "none"}</span>;
  return (
    <span className={`state ${known.tone}`} title={known.about}>
      <i aria-hidden="true" />
      {known.label}
    </span>
  );
}

/** How many stand how, as one bar with its numbers in words. */
export function Shares({ counts, label }: { counts: Record<string, number>; label: string }) {
  const known = Object.keys(STANDINGS).flatMap((standing) => (counts[standing] ? [{ standing, number: counts[standing] }] : []));
  const total = known.reduce((sum, each) => sum + each.number, 0);
  if (total === 0) return <span className="faint">no states yet</span>;
  const told = known.map(({ standing, number }) => `${count(number)} ${STANDINGS[standing]?.label}`).join(", ");
  return (
    <span className="shares">
      <span className="shares-bar" role="img" aria-label={`${label}: ${told}`}>
        {known.map(({ standing, number }) => (
          <i key={standing} className={STANDINGS[standing]?.tone} style={{ flexGrow: Math.max(number, total / 60) }} title={`${count(number)} ${STANDINGS[standing]?.label}`} />
        ))}
      </span>
      <span className="shares-told">{told}</span>
    </span>
  );
}

/** A link to a state, with how it stands. */
export function StateLink({ pipeline, state }: { pipeline: string; state: StateRef }) {
  return (
    <span className="state-link">
      <Link to={placeOfState(pipeline, state)}>
        {state.stage}
        {state.entity && ` / ${state.entity}`}
      </Link>{" "}
      <Standing standing={state.standing} />
    </span>
  );
}
