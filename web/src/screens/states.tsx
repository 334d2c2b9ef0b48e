/** States: what pipelines make, in a grid of entities by stages; why each is as it is; rebuild, retry, backfill. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { Acts, num, Table } from "../parts/table";
import { bytes, Button, Chips, count, Empty, Head, Loading, Meter, Panel, plural, Search, State, Tag, Trouble } from "../parts/ui";
import { Link, useFilters } from "../router";
import { useMay } from "../session";
import { BackfillDialog, CleanDialog, RebuildDialog, RetryDialog } from "../states/acts";
import { Legend, StateGrid } from "../states/grid";
import { Shares } from "../states/parts";
import { StatePanel } from "../states/story";
import { apiOf, type Backfill, type Grid, type Pipeline, placeOfState, type Stage } from "../states/types";
import "../style/states.css";
import { Ago, duration } from "../times";
import type { List } from "../types";

const ROWS = 100;
const SAFETY = 15_000;

/** All pipelines, or those with states that stand so. */
export function States() {
  const [query, change] = useFilters();
  const found = useQuery({ queryKey: ["pipelines", "list"], queryFn: () => get<List<Pipeline> & { problems: string[] }>("/pipelines"), refetchInterval: SAFETY });
  const standing = query.getAll("standing");
  const all = found.data?.items ?? [];
  const shown = standing.length === 0 ? all : all.filter((pipeline) => standing.some((each) => pipeline.counts[each]));
  const counts: Record<string, number> = {};
  for (const pipeline of all) for (const [each, number] of Object.entries(pipeline.counts)) counts[each] = (counts[each] ?? 0) + number;
  const place = (name: string) => placeOfState(name) + (standing.length ? `?${standing.map((each) => `standing=${each}`).join("&")}` : "");
  return (
    <>
      <Head title="States" under="What pipelines make: what is fresh, what is not, and why." />
      {found.error && <Trouble error={found.error} retry={() => void found.refetch()} />}
      {found.isPending && <Loading />}
      {found.data && <Problems problems={found.data.problems} title="Workflow files that cannot be used" />}
      {found.data && all.length === 0 && (
        <Panel>
          <Empty title="No pipeline yet">
            Say what must exist and how it is made with <code>Pipeline("blog", root="output/")</code> and <code>@blog.stage(input=…, output=…)</code>, and declare it with <code>app.pipeline(blog)</code>: <code>tidemill up</code> keeps it up to date.
          </Empty>
        </Panel>
      )}
      {all.length > 0 && (
        <div className="filters">
          <Legend counts={counts} value={standing} onChange={(next) => change({ standing: next })} />
        </div>
      )}
      {all.length > 0 && shown.length === 0 && (
        <Panel>
          <Empty good title="No pipeline has such states">
            <Button kind="quiet" onClick={() => change({ standing: null })}>
              Show all pipelines
            </Button>
          </Empty>
        </Panel>
      )}
      <div className="cards">
        {shown.map((pipeline) => (
          <Panel key={pipeline.name} title={<Link to={place(pipeline.name)}>{pipeline.name}</Link>} aside={<Kept pipeline={pipeline} />}>
            <div className="pad stack-small">
              <Shares counts={pipeline.counts} label={`States of ${pipeline.name}`} />
              <Problems problems={pipeline.problems} />
              <span className="soft">
                {pipeline.stages.map((stage) => stage.name).join(" → ")}
              </span>
            </div>
            <div className="card-foot">
              <span>
                {bytes(pipeline.bytes)} in <code>{pipeline.place}</code>
              </span>
              <Link to={place(pipeline.name)}>Look at its states</Link>
            </div>
          </Panel>
        ))}
      </div>
    </>
  );
}

/** One pipeline: the grid, and beside it the state that is chosen. */
export function PipelinePage({ id }: { id: string }) {
  const may = useMay("operate");
  const [query, change] = useFilters();
  const found = useQuery({ queryKey: ["pipelines", id, "view"], queryFn: () => get<Pipeline>(apiOf(id)), refetchInterval: SAFETY });
  const [act, setAct] = useState<"backfill" | "retry" | "rebuild" | "clean" | null>(null);
  const [stage, setStage] = useState<string | null>(null);
  const chosen = query.get("s") ? { stage: query.get("s") ?? "", entity: query.get("e") ?? "" } : null;
  const choose = useCallback((s: string, e: string) => change({ s, e }), [change]);
  const close = useCallback(() => change({ s: null, e: null }), [change]);
  const hold = useAction<{ stage?: string; paused: boolean }>({
    act: ({ stage: of, paused }) => post(`${apiOf(id)}/${paused ? "resume" : "pause"}`, of ? { stage: of } : {}),
    told: (_, { stage: of, paused }) => `${of ?? id} ${paused ? "goes on" : "is paused: what is being built is finished"}.`,
  });
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) close();
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, [close]);
  if (found.error) return <Trouble error={found.error} retry={() => void found.refetch()} />;
  if (!found.data) return <Loading lines={10} />;
  const pipeline = found.data;
  const failed = (pipeline.counts.failed ?? 0) + (pipeline.counts.parked ?? 0);
  const orphans = pipeline.counts.orphan ?? 0;
  return (
    <>
      <Head
        title={pipeline.name}
        under={
          <span className="row">
            <Kept pipeline={pipeline} />
            <span className="soft">
              {bytes(pipeline.bytes)} in <code>{pipeline.place}</code>, as of <Ago at={pipeline.looked_at} />
              {pipeline.took > 1 && ` (a look takes ${duration(pipeline.took)})`}
            </span>
          </span>
        }
      >
        {may && (
          <>
            {failed > 0 && <Button onClick={() => setAct("retry")}>Retry {count(failed)} that failed …</Button>}
            {orphans > 0 && <Button onClick={() => setAct("clean")}>Clean up {plural(orphans, "orphan")} …</Button>}
            <Button onClick={() => hold.mutate({ paused: pipeline.paused_by !== null })}>{pipeline.paused_by === null ? "Pause" : "Resume"}</Button>
            <Button kind="main" onClick={() => setAct("backfill")}>
              Backfill …
            </Button>
          </>
        )}
      </Head>
      <div className="stack">
        <Problems problems={pipeline.problems} />
        {pipeline.stages.map((each) => each.approval && <ApprovalBanner key={each.name} pipeline={id} stage={each} may={may} />)}
        <Backfills pipeline={id} may={may} />
        <Stages pipeline={pipeline} may={may} onPause={(each) => hold.mutate({ stage: each.name, paused: each.paused_by !== null })} onRebuild={(each) => { setStage(each.name); setAct("rebuild"); }} />
        <div className={chosen ? "states-page chosen" : "states-page"}>
          <GridPanel pipeline={pipeline} chosen={chosen} onChoose={choose} />
          {chosen && <StatePanel key={`${chosen.stage}/${chosen.entity}`} pipeline={id} stage={chosen.stage} entity={chosen.entity} may={may} onClose={close} />}
        </div>
      </div>
      {act === "backfill" && <BackfillDialog pipeline={pipeline} onClose={() => setAct(null)} />}
      {act === "retry" && <RetryDialog pipeline={id} wanted={{}} onClose={() => setAct(null)} />}
      {act === "rebuild" && stage && <RebuildDialog pipeline={id} wanted={{ stage }} what={<b>Every state of {stage}</b>} onClose={() => setAct(null)} />}
      {act === "clean" && <Cleaning pipeline={id} onClose={() => setAct(null)} />}
    </>
  );
}

function GridPanel({ pipeline, chosen, onChoose }: { pipeline: Pipeline; chosen: { stage: string; entity: string } | null; onChoose: (stage: string, entity: string) => void }) {
  const [query, change] = useFilters();
  const filter = { by: query.get("by"), standing: query.getAll("standing"), stage: query.getAll("stage"), text: query.get("text") ?? "", order: query.get("order") ?? "desc" };
  const cursor = query.get("cursor");
  const [trail, setTrail] = useState<string[]>([]);
  const found = useQuery({ queryKey: ["pipelines", pipeline.name, "grid", filter, cursor], queryFn: () => get<Grid>(`${apiOf(pipeline.name)}/grid`, { ...filter, cursor, limit: ROWS }), placeholderData: keepPreviousData, refetchInterval: SAFETY });
  const grid = found.data;
  const turn = (next: string | null, way: string[]) => {
    setTrail(way);
    change({ cursor: next });
  };
  const narrow = (changes: Record<string, string | string[] | null>) => {
    setTrail([]);
    change({ ...changes, cursor: null });
  };
  const filtered = filter.standing.length > 0 || filter.text !== "";
  return (
    <Panel
      title="Grid"
      aside={
        grid && (
          <span className="faint">
            {grid.total === 0 ? "no entity" : `${count(grid.before + 1)}–${count(grid.before + grid.items.length)} of ${count(grid.total)}`}
          </span>
        )
      }
      className="grid-panel"
    >
      <div className="filters pad">
        <Legend counts={pipeline.counts} value={filter.standing} onChange={(standing) => narrow({ standing })} />
        <Search label="Entity" value={filter.text} onChange={(text) => narrow({ text })} />
        <Chips label="Order" options={[{ value: "desc", label: "descending" }, { value: "asc", label: "ascending" }]} value={[filter.order]} onChange={(next) => narrow({ order: next.at(-1) === "asc" ? "asc" : null })} />
        {grid && grid.groups.length > 1 && (
          <Chips label="Grids" options={grid.groups.map((each) => ({ value: each.by, label: `${each.by ? `by ${each.by}` : each.stages.join(", ")} (${count(each.entities)})` }))} value={[grid.by]} onChange={(next) => narrow({ by: next.find((each) => each !== grid.by) ?? grid.by, s: null, e: null })} />
        )}
      </div>
      {found.error && <Trouble error={found.error} retry={() => void found.refetch()} />}
      {found.isPending && <Loading lines={8} />}
      {grid && grid.items.length === 0 && !found.error && (
        filtered ? (
          <Empty title="No entity matches">
            <Button kind="quiet" onClick={() => narrow({ standing: null, text: null })}>
              Show all entities
            </Button>
          </Empty>
        ) : (
          <Empty title="Nothing to make yet">
            No file matches {pipeline.stages[0]?.inputs.map((input, index) => <span key={input}>{index > 0 && " or "}<code>{input}</code></span>)} in <code>{pipeline.place}</code>. Put one there, and its states appear here.
          </Empty>
        )
      )}
      {grid && grid.items.length > 0 && (
        <div className={`scroll states-scroll ${found.isPlaceholderData ? "waiting" : ""}`} role="region" aria-label="Grid of states" tabIndex={0}>
          <StateGrid grid={grid} chosen={chosen} onChoose={onChoose} />
        </div>
      )}
      {grid && (grid.next || grid.before > 0) && (
        <div className="more row">
          <Button disabled={grid.before === 0} onClick={() => turn(trail.at(-1) || null, trail.slice(0, -1))}>
            Previous
          </Button>
          <Button disabled={!grid.next} onClick={() => turn(grid.next, [...trail, cursor ?? ""])}>
            Next {count(Math.min(ROWS, Math.max(0, grid.total - grid.before - grid.items.length)))}
          </Button>
        </div>
      )}
    </Panel>
  );
}

function Stages({ pipeline, may, onPause, onRebuild }: { pipeline: Pipeline; may: boolean; onPause: (stage: Stage) => void; onRebuild: (stage: Stage) => void }) {
  return (
    <Panel title="Stages">
      <Table label="Stages" heads={["Stage", "States", "Made from", "Output", "Built on", num("Size")]} acts={may}>
        {pipeline.stages.map((stage) => (
          <tr key={stage.name}>
            <td className="nowrap">
              {stage.name} {stage.paused_by !== null && <Tag tone="wait">paused by {stage.paused_by}</Tag>}
            </td>
            <td className="shares-cell"><Shares counts={stage.counts} label={`States of ${stage.name}`} /></td>
            <td><code>{stage.inputs.join(", ")}</code></td>
            <td><code>{stage.output}</code></td>
            <td className="nowrap soft">{stage.queue === null ? "in process" : <Link to="/queues">queue {stage.queue}</Link>}</td>
            <td className="num nowrap">{bytes(stage.bytes)}</td>
            {may && (
              <Acts>
                <Button className="small" aria-label={`${stage.paused_by === null ? "Pause" : "Resume"} ${stage.name}`} onClick={() => onPause(stage)}>
                  {stage.paused_by === null ? "Pause" : "Resume"}
                </Button>
                <Button className="small" aria-label={`Build all again: ${stage.name}`} onClick={() => onRebuild(stage)}>
                  Build all again
                </Button>
              </Acts>
            )}
          </tr>
        ))}
      </Table>
    </Panel>
  );
}

/** So many states would be built again that somebody must agree. */
function ApprovalBanner({ pipeline, stage, may }: { pipeline: string; stage: Stage; may: boolean }) {
  const approve = useAction({ act: () => post(`${apiOf(pipeline)}/approve`, { stage: stage.name }), told: () => `Approved for a day: the states of ${stage.name} are built again.` });
  const accept = useAction<void, { count: number }>({ act: () => post<{ count: number }>(`${apiOf(pipeline)}/accept`, { stage: stage.name }), told: (done) => `${plural(done.count, "state")} of ${stage.name} count as built by the code of now.` });
  if (!stage.approval) return null;
  return (
    <div className="banner wait" role="status">
      <span>
        <b>{count(stage.approval.states)} states of {stage.name} would be built again</b>, more than {count(stage.approval.above)}: {stage.approval.because}. They wait for your approval.
      </span>
      {may && (
        <span className="row">
          {stage.approval.reason === "code_changed" && (
            <Button title="The change of code gives the same results: build nothing" busy={accept.isPending} onClick={() => accept.mutate()}>
              Same results: build nothing
            </Button>
          )}
          <Button kind="main" busy={approve.isPending} onClick={() => approve.mutate()}>
            Approve
          </Button>
        </span>
      )}
    </div>
  );
}

/** Backfills that are under way, or have just ended. */
function Backfills({ pipeline, may }: { pipeline: string; may: boolean }) {
  const found = useQuery({ queryKey: ["pipelines", pipeline, "backfills"], queryFn: () => get<List<Backfill>>(`${apiOf(pipeline)}/backfills`), refetchInterval: (query) => (query.state.data?.items.some((each) => each.left > 0) ? 3000 : SAFETY) });
  const stop = useAction<Backfill, { left: number }>({ act: (each) => post<{ left: number }>(`${apiOf(pipeline)}/backfills/${each.id}/stop`), told: (done, each) => `Backfill ${each.id} is stopped: ${plural(done.left, "state")} stay as they are.` });
  const [hidden, setHidden] = useState<number>(0);
  const items = found.data?.items ?? [];
  const shown = items.filter((each) => each.left > 0 || (each === items[0] && each.id > hidden && each.stopped_at === null && Date.now() - Date.parse(each.started_at) < 3_600_000));
  if (shown.length === 0) return null;
  return (
    <Panel title="Backfills">
      <ul className="backfills">
        {shown.map((each) => {
          const done = each.total - each.left;
          return (
            <li key={each.id}>
              <span className="row">
                <b>
                  {each.stage} {each.first || each.last ? `${each.first ?? "…"} to ${each.last ?? "…"}` : "all"}
                </b>
                {each.downstream && <Tag>and what follows</Tag>}
                <span className="faint">
                  by {each.by}, <Ago at={each.started_at} />
                </span>
              </span>
              <span className="row grow">
                <Meter value={each.total ? done / each.total : 1} tone={each.failed > 0 ? "bad" : each.left > 0 ? "run" : "ok"} label={`Backfill ${each.id}`} />
                <span className="nowrap">
                  {count(done)} of {count(each.total)} built{each.failed > 0 && <span className="bad-text">, {count(each.failed)} failed</span>}
                </span>
              </span>
              {each.left === 0 ? <Button kind="quiet" className="small" aria-label={`Hide backfill ${each.id}`} onClick={() => setHidden(each.id)}>✕</Button> : may && <Button className="small" busy={stop.isPending} onClick={() => stop.mutate(each)}>Stop</Button>}
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}

function Cleaning({ pipeline, onClose }: { pipeline: string; onClose: () => void }) {
  type Orphans = Parameters<typeof CleanDialog>[0]["orphans"];
  const found = useQuery({ queryKey: ["pipelines", pipeline, "orphans"], queryFn: () => get<Orphans>(`${apiOf(pipeline)}/orphans`) });
  return found.data ? <CleanDialog pipeline={pipeline} orphans={found.data} onClose={onClose} /> : null;
}

function Kept({ pipeline }: { pipeline: Pipeline }) {
  if (pipeline.paused_by !== null) return <State state="paused" label={`paused by ${pipeline.paused_by}`} />;
  return pipeline.kept ? <State state="run" label="kept up to date" /> : <State state="silent" label="nobody keeps it up to date" />;
}

function Problems({ problems, title = "Not everything is as it should be" }: { problems: string[]; title?: string }) {
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
