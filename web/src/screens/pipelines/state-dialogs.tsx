/** Dialogs for actions on states; each first shows how many states it affects. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { LoadStatus } from "../../components/feedback";
import { count, plural } from "../../components/format";
import { type Effect, type Pipeline, pipelineApi } from "./types";

/** Selects states, as the API expects it. */
interface StateSelection {
  stage?: string;
  entities?: string[];
  states?: string[];
  text?: string;
}

const statesOf = (number: number) => plural(number, "state");

/** The affected states, read again whenever the request changes. */
function usePreview(path: string, request: object, enabled = true) {
  return useQuery({ queryKey: ["pipelines", "preview", path, request], queryFn: () => post<Effect>(`${path}/preview`, request), enabled, placeholderData: keepPreviousData, retry: false });
}

/** The result of a preview, as text. */
function Affected({ effect }: { effect: Effect }) {
  const stages = Object.entries(effect.stages);
  return (
    <>
      <p>
        <b>{statesOf(effect.count)}</b>
        {stages.length > 1 && `: ${stages.map(([stage, number]) => `${count(number)} of ${stage}`).join(", ")}`}.
      </p>
      {effect.count > 1 && effect.sample.length > 0 && (
        <p className="faint">
          Examples: {effect.sample.slice(0, 5).join(", ")}
          {effect.count > 5 ? " …" : ""}
        </p>
      )}
    </>
  );
}

/** A checkbox that approves a large rebuild at once. */
function Approve({ effect, value, onChange }: { effect: Effect; value: boolean; onChange: (value: boolean) => void }) {
  const stages = Object.keys(effect.approvals);
  if (stages.length === 0) return null;
  return (
    <label className="check">
      <input type="checkbox" checked={value} onChange={(event) => onChange(event.target.checked)} />
      <span>This many states of {stages.join(" and ")} need approval. Approve now.</span>
    </label>
  );
}

/** Rebuild states. */
export function RebuildDialog({ pipeline, wanted, what, onClose }: { pipeline: string; wanted: StateSelection; what: ReactNode; onClose: () => void }) {
  const [downstream, setDownstream] = useState(false);
  const [approve, setApprove] = useState(false);
  const path = `${pipelineApi(pipeline)}/invalidate`;
  const request = { ...wanted, downstream };
  const found = usePreview(path, request);
  const action = useAction<void, Effect>({
    request: () => post<Effect>(path, { ...request, approve, count: found.data?.count }),
    message: (done) => (Object.keys(done.approvals).length ? `${statesOf(done.count)} need approval.` : `${statesOf(done.count)} will be rebuilt.`),
    onSuccess: onClose,
  });
  return (
    <Dialog title="Rebuild" onClose={onClose}>
      <div className="form">
        <p className="soft">{what} will be rebuilt even if up to date. If a result does not change, later stages are not rebuilt.</p>
        <label className="check">
          <input type="checkbox" checked={downstream} onChange={(event) => setDownstream(event.target.checked)} />
          <span>Also rebuild all states that depend on it</span>
        </label>
        <LoadStatus query={found} lines={2} />
        {found.data && <Affected effect={found.data} />}
        {found.data && <Approve effect={found.data} value={approve} onChange={setApprove} />}
      </div>
      <footer>
        <Button onClick={onClose}>Close</Button>
        <Button kind="main" disabled={!found.data?.count || found.isPlaceholderData} busy={action.isPending} onClick={() => action.mutate()}>
          Rebuild {found.data ? statesOf(found.data.count) : "…"}
        </Button>
      </footer>
    </Dialog>
  );
}

/** Retry failed states at once. */
export function RetryDialog({ pipeline, wanted, onClose }: { pipeline: string; wanted: StateSelection; onClose: () => void }) {
  const path = `${pipelineApi(pipeline)}/retry`;
  const found = usePreview(path, wanted);
  const action = useAction<void, Effect>({
    request: () => post<Effect>(path, { ...wanted, count: found.data?.count }),
    message: (done) => `Retrying ${statesOf(done.count)}.`,
    onSuccess: onClose,
  });
  return (
    <Dialog title="Retry failed states" onClose={onClose}>
      <LoadStatus query={found} lines={2} />
      {found.data && <Affected effect={found.data} />}
      <footer>
        <Button onClick={onClose}>Close</Button>
        <Button kind="main" disabled={!found.data?.count} busy={action.isPending} onClick={() => action.mutate()}>
          Retry {found.data ? statesOf(found.data.count) : "…"}
        </Button>
      </footer>
    </Dialog>
  );
}

/** Rebuild a range of a stage's states. */
export function BackfillDialog({ pipeline, onClose }: { pipeline: Pipeline; onClose: () => void }) {
  const [stage, setStage] = useState(pipeline.stages[0]?.name ?? "");
  const [first, setFirst] = useState("");
  const [last, setLast] = useState("");
  const [downstream, setDownstream] = useState(true);
  const [approve, setApprove] = useState(false);
  const request = useDebounced({ stage, downstream, ...(first && { first }), ...(last && { last }) });
  const path = `${pipelineApi(pipeline.name)}/backfill`;
  const found = usePreview(path, request, stage !== "");
  const action = useAction<void, { id: number; total: number }>({
    request: () => post<{ id: number; total: number }>(path, { ...request, approve, count: found.data?.count }),
    message: (done) => `Started backfill ${done.id} of ${statesOf(done.total)}.`,
    onSuccess: onClose,
  });
  return (
    <Dialog title="Backfill" onClose={onClose}>
      <div className="form">
        <p className="soft">Rebuild a range of states. The limits of the stage and its queue apply. Progress is shown above the grid.</p>
        <label>
          <span>Stage</span>
          <select className="field" value={stage} onChange={(event) => setStage(event.target.value)}>
            {pipeline.stages.map((each) => (
              <option key={each.name}>{each.name}</option>
            ))}
          </select>
        </label>
        <div className="two">
          <label>
            <span>First entity</span>
            <input className="field" value={first} placeholder="first" onChange={(event) => setFirst(event.target.value.trim())} />
          </label>
          <label>
            <span>Last entity</span>
            <input className="field" value={last} placeholder="last" onChange={(event) => setLast(event.target.value.trim())} />
          </label>
        </div>
        <label className="check">
          <input type="checkbox" checked={downstream} onChange={(event) => setDownstream(event.target.checked)} />
          <span>Also rebuild all states that depend on them</span>
        </label>
        <LoadStatus query={found} lines={2} />
        {found.data && !found.error && <Affected effect={found.data} />}
        {found.data && <Approve effect={found.data} value={approve} onChange={setApprove} />}
      </div>
      <footer>
        <Button onClick={onClose}>Close</Button>
        <Button kind="main" disabled={!found.data?.count || found.isPlaceholderData || found.error !== null} busy={action.isPending} onClick={() => action.mutate()}>
          Rebuild {found.data ? statesOf(found.data.count) : "…"}
        </Button>
      </footer>
    </Dialog>
  );
}

export interface Orphans {
  items: { stage: string; entity: string; paths: string[]; bytes: number; how: string }[];
  total: number;
  bytes: number;
}

/** Archive or delete states whose inputs no longer exist. */
export function CleanDialog({ pipeline, orphans, onClose }: { pipeline: string; orphans: Orphans; onClose: () => void }) {
  const [how, setHow] = useState("archive");
  const action = useAction<void, { kept: number; archived: number; deleted: number }>({
    request: () => post(`${pipelineApi(pipeline)}/clean`, { how, count: orphans.total }),
    message: (done) => done.archived ? `Archived ${statesOf(done.archived)}.` : `Deleted ${statesOf(done.deleted)}.`,
    onSuccess: onClose,
  });
  return (
    <Dialog title="Clean up orphans" onClose={onClose}>
      <div className="form">
        <p>
          The inputs of <b>{statesOf(orphans.total)}</b> no longer exist, so nothing rebuilds them.
        </p>
        <ul className="paths" tabIndex={0} aria-label="Orphans">
          {orphans.items.flatMap((each) => each.paths.map((path) => <li key={path}><code>{path}</code></li>))}
          {orphans.total > orphans.items.length && <li className="faint">and {count(orphans.total - orphans.items.length)} more</li>}
        </ul>
        <label>
          <span>Action</span>
          <select className="field" value={how} onChange={(event) => setHow(event.target.value)}>
            <option value="archive">archive: move them to the archive folder</option>
            <option value="delete">delete: remove them permanently</option>
          </select>
        </label>
      </div>
      <footer>
        <Button onClick={onClose}>Close</Button>
        <Button kind={how === "delete" ? "danger" : "main"} busy={action.isPending} onClick={() => action.mutate()}>
          {how === "delete" ? "Delete" : "Archive"} {statesOf(orphans.total)}
        </Button>
      </footer>
    </Dialog>
  );
}

/** A value after it has not changed for a moment. */
function useDebounced<T extends object>(value: T): T {
  const text = JSON.stringify(value);
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(text), 300);
    return () => window.clearTimeout(timer);
  }, [text]);
  return JSON.parse(settled) as T;
}
