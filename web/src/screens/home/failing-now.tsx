/** Jobs and runs that failed within the last hour, and pipeline states that could not be built. */
import type { FailedStates, JobLine, Overview, RunLine } from "../../api/types";
import { Link } from "../../app/router";
import { Empty } from "../../components/feedback";
import { count, plural } from "../../components/format";
import { Panel } from "../../components/layout";
import { State, Tag } from "../../components/state";
import { FAILED_PIPELINE_STATES, FAILED_RUN_STATES, NEEDS_ATTENTION } from "../../components/states";
import { Ago } from "../../components/times";
import { pipelineUrl } from "../pipelines/types";

const FAILED_STATES_QUERY = FAILED_PIPELINE_STATES.map((state) => `state=${state}`).join("&");
const HOUR = 3_600_000;
const MAX_LINES = 12;
/** The API returns at most this many failed jobs and failed runs. */
const MAX_REPORTED = 10;

interface Line {
  key: string;
  state: string;
  to: string;
  title: string;
  times: number;
  at: string;
  note: string | null;
  /** Lines with the same value are shown as one. */
  same: string;
}

const withoutNumbers = (note: string | null) => (note ?? "").replaceAll(/\d+/g, "#");

const ofJob = (job: JobLine): Line => ({ key: `j${job.id}`, state: job.state, to: `/jobs/${job.id}`, title: `${job.task} · job ${job.id}`, times: 1, at: job.finished_at ?? job.created_at, note: job.note, same: `${job.task} ${withoutNumbers(job.note)}` });

const ofRun = (run: RunLine): Line => ({ key: `r${run.id}`, state: run.state, to: `/runs/${run.id}`, title: `r${run.id} ${run.workflow}`, times: 1, at: run.ended_at ?? run.created_at, note: run.note, same: `${run.workflow} ${withoutNumbers(run.note)}` });

const ofStates = (failed: FailedStates): Line => ({
  key: `p${failed.pipeline}`,
  state: failed.needs_attention === failed.states ? NEEDS_ATTENTION : "failed",
  to: `${pipelineUrl(failed.pipeline)}?${FAILED_STATES_QUERY}`,
  title: `${failed.pipeline} · ${plural(failed.states, "state")}${failed.needs_attention && failed.needs_attention < failed.states ? `, ${count(failed.needs_attention)} need attention` : ""}`,
  times: 1,
  at: failed.failed_at,
  note: `${failed.stage}${failed.entity ? ` / ${failed.entity}` : ""}: ${failed.note}`,
  same: `pipeline ${failed.pipeline}`,
});

function lines(overview: Overview): Line[] {
  const since = Date.parse(overview.at) - HOUR;
  const runs = overview.failed_runs.map(ofRun).filter((line) => line.state === NEEDS_ATTENTION || Date.parse(line.at) > since);
  const jobs = overview.failed_jobs.map(ofJob).filter((line) => Date.parse(line.at) > since);
  return [...overview.failed_states.map(ofStates), ...runs, ...jobs];
}

/** Merge failures that differ only in their numbers; the newest one is shown. */
function mergeSimilar(found: Line[]): Line[] {
  const groups = new Map<string, Line>();
  for (const each of found) {
    const known = groups.get(each.same);
    if (known) known.times += 1;
    else groups.set(each.same, { ...each });
  }
  return [...groups.values()];
}

/** The number of failures, whether there may be more, and a short description. */
export function summarizeFailures(overview: Overview): { count: number; more: boolean; what: string } {
  const silent = overview.counts.workers_silent;
  const states = overview.failed_states.reduce((sum, each) => sum + each.states, 0);
  const others = lines(overview).length - overview.failed_states.length;
  const more = overview.failed_jobs.length >= MAX_REPORTED || overview.failed_runs.length >= MAX_REPORTED;
  const what = [silent && `${plural(silent, "worker")} silent`, states && plural(states, "state"), others && `${count(others)}${more ? "+" : ""} jobs and runs`].filter(Boolean);
  return { count: silent + states + others, more, what: what.join(", ") || "in the last hour" };
}

export function FailingNow({ overview }: { overview: Overview }) {
  const found = mergeSimilar(lines(overview));
  return (
    <Panel
      title={<span id="failing">Failing now</span>}
      aside={
        <span className="row">
          <Link to="/jobs?state=failed">Failed jobs</Link>
          <Link to={`/runs?${FAILED_RUN_STATES.map((state) => `state=${state}`).join("&")}`}>Failed runs</Link>
          <Link to={`/pipelines?${FAILED_STATES_QUERY}`}>Failed states</Link>
        </span>
      }
    >
      {found.length === 0 ? (
        <Empty good title="Nothing has failed in the last hour">
          Final failures appear here with their reason. An attempt that is retried successfully does not.
        </Empty>
      ) : (
        <ul className="failures">
          {found.slice(0, MAX_LINES).map((line) => (
            <li key={line.key}>
              <State state={line.state} />
              <Link to={line.to}>
                {line.title} {line.times > 1 && <Tag tone="bad">×{line.times}</Tag>}
              </Link>
              <span className="faint">
                <Ago at={line.at} />
              </span>
              <span className="what" title={line.note ?? ""}>
                {line.note ?? "no reason recorded"}
              </span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}
