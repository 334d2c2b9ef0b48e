/** What is broken now: jobs and runs that have failed within the hour, and states that pipelines could not make. */
import { count, Empty, Panel, plural, State, Tag } from "../parts/ui";
import { Link } from "../router";
import { placeOfState } from "../states/types";
import { Ago } from "../times";
import type { FailedStates, JobLine, Overview, RunLine } from "../types";

const HOUR = 3_600_000;
const SHOWN = 12;
/** The overview names so many failed jobs and so many failed runs at most. */
const NAMED = 10;

interface Line {
  key: string;
  state: string;
  to: string;
  title: string;
  times: number;
  at: string;
  note: string | null;
  /** Lines of the same are shown as one. */
  same: string;
}

const numberless = (note: string | null) => (note ?? "").replaceAll(/\d+/g, "#");

const ofJob = (job: JobLine): Line => ({ key: `j${job.id}`, state: job.state, to: `/jobs/${job.id}`, title: `${job.task} · job ${job.id}`, times: 1, at: job.finished_at ?? job.created_at, note: job.note, same: `${job.task} ${numberless(job.note)}` });

const ofRun = (run: RunLine): Line => ({ key: `r${run.id}`, state: run.state, to: `/runs/${run.id}`, title: `r${run.id} ${run.workflow}`, times: 1, at: run.ended_at ?? run.created_at, note: run.note, same: `${run.workflow} ${numberless(run.note)}` });

const ofStates = (failed: FailedStates): Line => ({
  key: `p${failed.pipeline}`,
  state: failed.parked === failed.states ? "parked" : "failed",
  to: `${placeOfState(failed.pipeline)}?standing=failed&standing=parked`,
  title: `${failed.pipeline} · ${plural(failed.states, "state")}${failed.parked && failed.parked < failed.states ? `, ${count(failed.parked)} parked` : ""}`,
  times: 1,
  at: failed.failed_at,
  note: `${failed.stage} of ${failed.entity || "everything"}: ${failed.note}`,
  same: `pipeline ${failed.pipeline}`,
});

function lines(overview: Overview): Line[] {
  const since = Date.parse(overview.at) - HOUR;
  const runs = overview.failed_runs.map(ofRun).filter((line) => line.state === "parked" || Date.parse(line.at) > since);
  const jobs = overview.failed_jobs.map(ofJob).filter((line) => Date.parse(line.at) > since);
  return [...overview.failed_states.map(ofStates), ...runs, ...jobs];
}

/** Failures that differ only in their numbers are one line, that of the newest. */
function alike(found: Line[]): Line[] {
  const groups = new Map<string, Line>();
  for (const each of found) {
    const known = groups.get(each.same);
    if (known) known.times += 1;
    else groups.set(each.same, { ...each });
  }
  return [...groups.values()];
}

/** How much is broken, whether it may be more, and what it is. */
export function brokenNow(overview: Overview): { count: number; more: boolean; what: string } {
  const silent = overview.counts.workers_silent;
  const states = overview.failed_states.reduce((sum, each) => sum + each.states, 0);
  const others = lines(overview).length - overview.failed_states.length;
  const more = overview.failed_jobs.length >= NAMED || overview.failed_runs.length >= NAMED;
  const what = [silent && `${plural(silent, "worker")} silent`, states && plural(states, "state"), others && `${count(others)}${more ? "+" : ""} jobs and runs`].filter(Boolean);
  return { count: silent + states + others, more, what: what.join(", ") || "within the hour" };
}

export function Broken({ overview }: { overview: Overview }) {
  const found = alike(lines(overview));
  return (
    <Panel
      title={<span id="broken">Broken now</span>}
      aside={
        <span className="row">
          <Link to="/jobs?state=failed">failed jobs</Link>
          <Link to="/runs?state=failed&state=timed_out&state=parked">failed runs</Link>
          <Link to="/states?standing=failed&standing=parked">failed states</Link>
        </span>
      }
    >
      {found.length === 0 ? (
        <Empty good title="Nothing has failed in the last hour">
          What fails for good appears here, with why. Retries that succeed do not.
        </Empty>
      ) : (
        <ul className="broken">
          {found.slice(0, SHOWN).map((line) => (
            <li key={line.key}>
              <State state={line.state} />
              <Link to={line.to}>
                {line.title} {line.times > 1 && <Tag tone="bad">×{line.times}</Tag>}
              </Link>
              <span className="faint">
                <Ago at={line.at} />
              </span>
              <span className="what" title={line.note ?? ""}>
                {line.note ?? "no reason was given"}
              </span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}
