/** One pipeline: its stages, backfills and grid, with the selected state beside it. */
import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useState } from "react";
import { get, post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { Link, useFilters } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { LoadStatus, PageStatus } from "../../components/feedback";
import { bytes, count, plural } from "../../components/format";
import { PageHeader, Panel } from "../../components/layout";
import { num, RowActions, Table } from "../../components/lists/table";
import { Tag } from "../../components/state";
import { FAILED_PIPELINE_STATES } from "../../components/states";
import { Ago, duration } from "../../components/times";
import { Backfills } from "./backfills";
import { GridPanel } from "./grid-panel";
import { PipelineStatus, Problems } from "./pipeline-status";
import "./pipelines.css";
import { StateCounts } from "./state-counts";
import { BackfillDialog, CleanDialog, type Orphans, RebuildDialog, RetryDialog } from "./state-dialogs";
import { StatePanel } from "./state-panel";
import { type Pipeline, pipelineApi, REFRESH_MS, type Stage } from "./types";

export function PipelinePage({ id }: { id: string }) {
  const may = useMay("operator");
  const [query, change] = useFilters();
  const found = useQuery({ queryKey: ["pipelines", id, "view"], queryFn: () => get<Pipeline>(pipelineApi(id)), refetchInterval: REFRESH_MS });
  const [act, setAct] = useState<"backfill" | "retry" | "rebuild" | "clean" | null>(null);
  const [stage, setStage] = useState<string | null>(null);
  const chosen = query.get("stage") ? { stage: query.get("stage") ?? "", entity: query.get("entity") ?? "" } : null;
  const choose = useCallback((selected: string, entity: string) => change({ stage: selected, entity }), [change]);
  const close = useCallback(() => change({ stage: null, entity: null }), [change]);
  const pause = useAction<{ stage?: string; paused: boolean }>({
    request: ({ stage: of, paused }) => post(`${pipelineApi(id)}/${paused ? "resume" : "pause"}`, of ? { stage: of } : {}),
    message: (_, { stage: of, paused }) => paused ? `Resumed ${of ?? id}.` : `Paused ${of ?? id}. Running builds finish.`,
  });
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) close();
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, [close]);
  if (!found.data) return <PageStatus title={id} query={found} lines={10} />;
  const pipeline = found.data;
  const failed = FAILED_PIPELINE_STATES.reduce((sum, state) => sum + (pipeline.counts[state] ?? 0), 0);
  const orphans = pipeline.counts.orphan ?? 0;
  return (
    <>
      <PageHeader
        title={pipeline.name}
        subtitle={
          <span className="row">
            <PipelineStatus pipeline={pipeline} />
            <span className="soft">
              {bytes(pipeline.bytes)} in <code>{pipeline.place}</code>, checked <Ago at={pipeline.looked_at} />
              {pipeline.took > 1 && ` (a check takes ${duration(pipeline.took)})`}
            </span>
          </span>
        }
      >
        {may && (
          <>
            {failed > 0 && <Button onClick={() => setAct("retry")}>Retry {plural(failed, "failed state")} …</Button>}
            {orphans > 0 && <Button onClick={() => setAct("clean")}>Clean up {plural(orphans, "orphan")} …</Button>}
            <Button onClick={() => pause.mutateAsync({ paused: pipeline.paused_by !== null })}>{pipeline.paused_by === null ? "Pause" : "Resume"}</Button>
            <Button kind="main" onClick={() => setAct("backfill")}>
              Backfill …
            </Button>
          </>
        )}
      </PageHeader>
      <div className="stack">
        <Problems problems={pipeline.problems} />
        {pipeline.stages.map((each) => each.approval && <ApprovalBanner key={each.name} pipeline={id} stage={each} may={may} />)}
        <Backfills pipeline={id} may={may} />
        <Stages pipeline={pipeline} may={may} onPause={(each) => pause.mutate({ stage: each.name, paused: each.paused_by !== null })} onRebuild={(each) => { setStage(each.name); setAct("rebuild"); }} />
        <div className={chosen ? "states-page chosen" : "states-page"}>
          <GridPanel pipeline={pipeline} chosen={chosen} onChoose={choose} />
          {chosen && <StatePanel key={`${chosen.stage}/${chosen.entity}`} pipeline={id} stage={chosen.stage} entity={chosen.entity} may={may} onClose={close} />}
        </div>
      </div>
      {act === "backfill" && <BackfillDialog pipeline={pipeline} onClose={() => setAct(null)} />}
      {act === "retry" && <RetryDialog pipeline={id} wanted={{}} onClose={() => setAct(null)} />}
      {act === "rebuild" && stage && <RebuildDialog pipeline={id} wanted={{ stage }} what={<b>Every state of {stage}</b>} onClose={() => setAct(null)} />}
      {act === "clean" && <CleanOrphans pipeline={id} onClose={() => setAct(null)} />}
    </>
  );
}

function Stages({ pipeline, may, onPause, onRebuild }: { pipeline: Pipeline; may: boolean; onPause: (stage: Stage) => void; onRebuild: (stage: Stage) => void }) {
  return (
    <Panel title="Stages">
      <Table label="Stages" heads={["Stage", "States", "Inputs", "Output", "Runs in", num("Size")]} hasActions={may}>
        {pipeline.stages.map((stage) => (
          <tr key={stage.name}>
            <td className="nowrap">
              {stage.name} {stage.paused_by !== null && <Tag tone="wait">paused by {stage.paused_by}</Tag>}
            </td>
            <td className="state-counts-cell"><StateCounts counts={stage.counts} label={`States of ${stage.name}`} /></td>
            <td><code>{stage.inputs.join(", ")}</code></td>
            <td><code>{stage.output}</code></td>
            <td className="nowrap soft">{stage.queue === null ? "own process" : <Link to="/queues">queue {stage.queue}</Link>}</td>
            <td className="num nowrap">{bytes(stage.bytes)}</td>
            {may && (
              <RowActions>
                <Button className="small" aria-label={`${stage.paused_by === null ? "Pause" : "Resume"} ${stage.name}`} onClick={() => onPause(stage)}>
                  {stage.paused_by === null ? "Pause" : "Resume"}
                </Button>
                <Button className="small" aria-label={`Rebuild all: ${stage.name}`} onClick={() => onRebuild(stage)}>
                  Rebuild all …
                </Button>
              </RowActions>
            )}
          </tr>
        ))}
      </Table>
    </Panel>
  );
}

/** Asks for approval of a large rebuild. */
function ApprovalBanner({ pipeline, stage, may }: { pipeline: string; stage: Stage; may: boolean }) {
  const approve = useAction({ request: () => post(`${pipelineApi(pipeline)}/approve`, { stage: stage.name }), message: () => `Approved: the states of ${stage.name} are rebuilt. The approval is valid for a day.` });
  const accept = useAction<void, { count: number }>({ request: () => post<{ count: number }>(`${pipelineApi(pipeline)}/accept`, { stage: stage.name }), message: (done) => `Marked ${plural(done.count, "state")} of ${stage.name} as built with the current code.` });
  if (!stage.approval) return null;
  return (
    <div className="banner wait" role="status">
      <span>
        <b>{plural(stage.approval.states, "state")} of {stage.name} {stage.approval.states === 1 ? "needs" : "need"} a rebuild</b>, more than the limit of {count(stage.approval.above)}: {stage.approval.because}. They are waiting for approval.
      </span>
      {may && (
        <span className="row">
          {stage.approval.reason === "code_changed" && (
            <Button title="The code change does not affect results: mark the states as current and rebuild nothing" busy={accept.isPending} onClick={() => accept.mutate()}>
              Skip rebuild
            </Button>
          )}
          <Button kind="main" busy={approve.isPending} onClick={() => approve.mutate()}>
            Approve rebuild
          </Button>
        </span>
      )}
    </div>
  );
}

function CleanOrphans({ pipeline, onClose }: { pipeline: string; onClose: () => void }) {
  const found = useQuery({ queryKey: ["pipelines", pipeline, "orphans"], queryFn: () => get<Orphans>(`${pipelineApi(pipeline)}/orphans`) });
  if (!found.data) return <Dialog title="Clean up orphans" onClose={onClose}><LoadStatus query={found} /></Dialog>;
  return <CleanDialog pipeline={pipeline} orphans={found.data} onClose={onClose} />;
}
