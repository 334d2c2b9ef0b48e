/** Whether a pipeline is active, and its problems. */
import { count } from "../../components/format";
import { State } from "../../components/state";
import type { Pipeline } from "./types";

export function PipelineStatus({ pipeline }: { pipeline: Pipeline }) {
  if (pipeline.paused_by !== null) return <State state="paused" label={`paused by ${pipeline.paused_by}`} />;
  return pipeline.kept ? <State state="active" /> : <State state="not_running" />;
}

export function Problems({ problems, title = "This pipeline has problems" }: { problems: string[]; title?: string }) {
  if (problems.length === 0) return null;
  return (
    <div className="trouble" role="alert">
      <b>{title}</b>
      {problems.slice(0, 5).map((problem) => (
        <span key={problem}>{problem}</span>
      ))}
      {problems.length > 5 && <span>and {count(problems.length - 5)} more</span>}
    </div>
  );
}
