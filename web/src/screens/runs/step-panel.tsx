/** One step of a run: its explanation, output, input, errors and log. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { get } from "../../api/client";
import type { DeclaredNode, Input, Job, JobLine, List, Tick, TreeNode } from "../../api/types";
import { Link } from "../../app/router";
import { Button } from "../../components/button";
import { AttemptErrors } from "../../components/details/attempt-errors";
import { Explanation } from "../../components/details/explanation";
import { JsonView } from "../../components/details/json";
import { JobLog, StepLog } from "../../components/details/log";
import { Empty, Loading, LoadStatus } from "../../components/feedback";
import { argumentsText, plural } from "../../components/format";
import { askingStep, InputForm } from "../../components/forms/input-form";
import { Panel } from "../../components/layout";
import { MoreRows, usePages } from "../../components/lists/paging";
import { Table } from "../../components/lists/table";
import { State, Tag } from "../../components/state";
import { absolute, Ago, Took } from "../../components/times";
import { describeTick, kindOf, stepNamesByWork } from "./journal";

export interface NodeState {
  status?: string;
  job?: number;
  result?: unknown;
  error?: { kind: string; message: string; traceback?: string };
  answered?: { by: string; at: number };
  items?: { values?: unknown[]; results?: Record<string, unknown>; failed?: Record<string, string> };
}

interface DagStepProps {
  runId: number;
  node: TreeNode;
  spec: DeclaredNode | undefined;
  state: NodeState | undefined;
  isPast: boolean;
  may: boolean;
  isLive: boolean;
  onRerun: (node: string) => void;
  onCancel: (node: string) => void;
}

/** A node of a dag. */
export function DagStep({ runId, node, spec, state, isPast, may, isLive, onRerun, onCancel }: DagStepProps) {
  const mapped = spec?.kind === "task" && spec.map !== undefined && spec.map !== null ? spec.task : undefined;
  const [tab, setTab] = useState(mapped ? "items" : node.state === "failed" ? "error" : "output");
  const jobId = state?.job ?? node.jobs[0]?.id;
  const job = useQuery({ queryKey: ["job", String(jobId)], queryFn: () => get<Job>(`/jobs/${jobId}`), enabled: jobId !== undefined && jobId !== null });
  const asks = useQuery({ queryKey: ["inputs", runId], queryFn: () => get<List<Input>>("/inputs", { run: runId }), enabled: node.state === "waiting" && !isPast });
  const question = asks.data?.items.find((input) => input.node === node.node);
  const failed = Object.entries(state?.items?.failed ?? {});
  return (
    <Panel title={node.node} aside={<State state={node.state} />}>
      <Explanation lines={[node.why || node.note || node.state]} />
      {question && may && (
        <div className="pad">
          <InputForm input={question} />
        </div>
      )}
      <div className="pad row soft">
        {node.began && (
          <span>
            started <Ago at={node.began} />, {node.ended ? "took" : "running for"} <Took from={node.began} to={node.ended} />
          </span>
        )}
        {node.total !== null && <Tag>{node.done} of {plural(node.total, "item")}</Tag>}
        {jobId !== undefined && jobId !== null && <Link to={`/jobs/${jobId}`}>job {jobId}</Link>}
        {state?.answered && <span title={absolute(state.answered.at)}>answered by {state.answered.by}</span>}
        {may && !isPast && (
          <Button className="small" onClick={() => onRerun(node.node)}>
            Run again from here
          </Button>
        )}
        {may && !isPast && isLive && !node.ended && (
          <Button className="small" kind="danger" onClick={() => onCancel(node.node)}>
            Cancel node
          </Button>
        )}
      </div>
      <Tabs tabs={[...(mapped ? ["items"] : []), "output", "input", "error", "log", "job"]} at={tab} onChange={setTab} />
      {tab === "items" && mapped && <MapItems runId={runId} task={mapped} />}
      {tab === "output" && (state?.result !== undefined ? <JsonView value={state.result} label="output" /> : state?.items?.results && Object.keys(state.items.results).length > 0 ? <JsonView value={state.items.results} label="results so far" /> : <Empty title={node.ended ? "No output" : "No output yet"} />)}
      {tab === "input" && (job.isLoading ? <Loading lines={2} /> : job.data ? <JsonView value={job.data.args} label="input" /> : state?.items?.values ? <JsonView value={state.items.values} label="items" /> : <Empty title="No input yet" />)}
      {tab === "error" &&
        (state?.error ? (
          <div className="pad">
            <b>{state.error.kind}</b> {state.error.message}
            {state.error.traceback && <pre className="trace" tabIndex={0}>{state.error.traceback}</pre>}
          </div>
        ) : failed.length > 0 ? (
          <JsonView value={state?.items?.failed} label="failed items" />
        ) : job.data?.errors?.length ? (
          <AttemptErrors errors={job.data.errors} />
        ) : (
          <Empty good title="No error" />
        ))}
      {tab === "log" && (jobId !== undefined && jobId !== null ? <JobLog jobId={jobId} isLive={node.state === "running"} /> : <Empty title={node.total !== null ? "Each item has its own job" : "This node has no job"}>{node.total !== null && <Link to={`/jobs?run=${runId}`}>Show the jobs of this run</Link>}</Empty>)}
      {tab === "job" && (job.data ? <Explanation lines={job.data.why} /> : <Empty title={node.total !== null ? "Each item has its own job" : "This node has no job"}>{node.total !== null && <Link to={`/jobs?run=${runId}`}>Show the jobs of this run</Link>}</Empty>)}
    </Panel>
  );
}

/** The jobs of a map: one for each item that has started, with its arguments. */
function MapItems({ runId, task }: { runId: number; task: string }) {
  const filter = useMemo(() => ({ run: runId, task }), [runId, task]);
  const pages = usePages<JobLine>("jobs", "/jobs", filter);
  if (!pages.data) return <LoadStatus query={pages} lines={3} />;
  if (pages.rows.length === 0) return <Empty title="No item has started yet" />;
  return (
    <>
      <Table label="Items" heads={["Job", "State", "Arguments", "Duration"]}>
        {pages.rows.map((job) => (
          <tr key={job.id}>
            <td><Link to={`/jobs/${job.id}`}>{job.id}</Link></td>
            <td><State state={job.state} /></td>
            <td className="name"><div className="cut mono" title={job.arguments ?? ""}>{argumentsText(job.arguments) || "–"}</div></td>
            <td className="nowrap"><Took from={job.started_at} to={job.finished_at} /></td>
          </tr>
        ))}
      </Table>
      <MoreRows pages={pages} />
    </>
  );
}

/** A step of a flow, from the journal. */
export function FlowStep({ runId, name, ticks, isLive, may }: { runId: number; name: string; ticks: Tick[]; isLive: boolean; may: boolean }) {
  const asks = useQuery({ queryKey: ["inputs", runId], queryFn: () => get<List<Input>>("/inputs", { run: runId }), enabled: isLive && may });
  const questions = isLive ? (asks.data?.items.filter((input) => askingStep(input) === name) ?? []) : [];
  const works = stepNamesByWork(ticks);
  const mine = ticks.filter((tick) => {
    const begun = (tick.data.begun as [number, string][] | undefined) ?? [];
    return works.get(tick.data.work as number) === name || begun.some(([, placed]) => placed.split("@")[0] === name);
  });
  const ends = mine.filter((tick) => kindOf(tick) === "completed" && works.get(tick.data.work as number) === name);
  const causes = mine.filter((tick) => ((tick.data.begun as [number, string][] | undefined) ?? []).some(([, placed]) => placed.split("@")[0] === name));
  const isQueued = causes.some((tick) => (tick.data.begun as [number, string][]).some(([, placed]) => placed.startsWith(`${name}@`)));
  const errors = ends.filter((tick) => tick.data.error);
  const [tab, setTab] = useState(errors.length ? "error" : "output");
  return (
    <Panel title={name} aside={<Tag>{causes.length} started, {ends.length} finished</Tag>}>
      {questions.map((question) => (
        <div key={question.node} className="pad">
          {question.prompt && <p>{question.prompt}</p>}
          <InputForm input={question} />
        </div>
      ))}
      <Tabs tabs={["output", "input", "error", "log", "ticks"]} at={tab} onChange={setTab} />
      {tab === "output" && (ends.length ? <JsonView value={unpack(ends.flatMap((tick) => (tick.data.events as unknown[] | undefined) ?? []))} label="output" /> : <Empty title="No output yet" />)}
      {tab === "input" && (causes.length ? <JsonView value={unpack(causes.flatMap((tick) => (tick.data.event ? [tick.data.event] : ((tick.data.events as unknown[] | undefined) ?? []))))} label="input" /> : <Empty title="No input yet" />)}
      {tab === "log" && (isQueued ? <Empty title="Each attempt has its own job"><Link to={`/jobs?run=${runId}`}>Show the jobs of this run</Link></Empty> : <StepLog runId={runId} step={name} isLive={isLive} />)}
      {tab === "error" &&
        (errors.length ? (
          <AttemptErrors errors={errors.map((tick, index) => { const [kind, message, traceback] = tick.data.error as [string, string, string]; return { attempt: index + 1, at: tick.data.at as number, kind: kind.split(".").at(-1), message, traceback }; })} />
        ) : (
          <Empty good title="No error" />
        ))}
      {tab === "ticks" && (
        <ul className="why">
          {mine.slice(-50).map((tick) => (
            <li key={tick.seq}>
              {tick.seq}: {describeTick(tick, works)}
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

/** Events with the short name of their class. */
export function unpack(events: unknown[]): unknown {
  const found = events.map((event) => {
    const { type, value } = (event ?? {}) as { type?: string; value?: unknown };
    return type === undefined ? event : { [type.split(".").at(-1) ?? type]: value };
  });
  return found.length === 1 ? found[0] : found;
}

function Tabs({ tabs, at, onChange }: { tabs: string[]; at: string; onChange: (tab: string) => void }) {
  return (
    <div className="tabs" role="tablist">
      {tabs.map((tab) => (
        <button key={tab} type="button" role="tab" aria-selected={tab === at} onClick={() => onChange(tab)}>
          {tab}
        </button>
      ))}
    </div>
  );
}
