/** Acting on states: first how many that is, then the deed on exactly those. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { post } from "../api";
import { useAction } from "../parts/acting";
import { Button, count, Dialog, Loading, plural, Trouble } from "../parts/ui";
import { apiOf, type Effect, type Pipeline } from "./types";

/** Which states: as `StatesWanted` of the API. */
export interface Wanted {
  stage?: string;
  entities?: string[];
  standings?: string[];
  text?: string;
}

const statesOf = (number: number) => plural(number, "state");

/** What would be reached, asked anew whenever the wish changes. */
function usePreview(path: string, wish: object, enabled = true) {
  return useQuery({ queryKey: ["pipelines", "preview", path, wish], queryFn: () => post<Effect>(`${path}/preview`, wish), enabled, placeholderData: keepPreviousData, retry: false });
}

/** What a preview has found, in words. */
function Reached({ effect }: { effect: Effect }) {
  const stages = Object.entries(effect.stages);
  return (
    <>
      <p>
        <b>{statesOf(effect.count)}</b>
        {stages.length > 1 && `: ${stages.map(([stage, number]) => `${count(number)} of ${stage}`).join(", ")}`}.
      </p>
      {effect.count > 1 && effect.sample.length > 0 && (
        <p className="faint">
          Among them: {effect.sample.slice(0, 5).join(", ")}
          {effect.count > 5 ? " …" : ""}
        </p>
      )}
    </>
  );
}

/** So many that somebody must agree: do it here. */
function Approve({ effect, value, onChange }: { effect: Effect; value: boolean; onChange: (value: boolean) => void }) {
  const stages = Object.keys(effect.approvals);
  if (stages.length === 0) return null;
  return (
    <label className="check">
      <input type="checkbox" checked={value} onChange={(event) => onChange(event.target.checked)} />
      <span>So many of {stages.join(" and ")} wait until somebody approves. Approve it now.</span>
    </label>
  );
}

/** Have states built again, after saying how many. */
export function RebuildDialog({ pipeline, wanted, what, onClose }: { pipeline: string; wanted: Wanted; what: ReactNode; onClose: () => void }) {
  const [downstream, setDownstream] = useState(false);
  const [approve, setApprove] = useState(false);
  const path = `${apiOf(pipeline)}/invalidate`;
  const wish = { ...wanted, downstream };
  const found = usePreview(path, wish);
  const doing = useAction<void, Effect>({
    act: () => post<Effect>(path, { ...wish, approve, count: found.data?.count }),
    told: (done) => (Object.keys(done.approvals).length ? `${statesOf(done.count)} wait for approval.` : `${statesOf(done.count)} will be built again.`),
    then: onClose,
  });
  return (
    <Dialog title="Build again" onClose={onClose}>
      <div className="form">
        <p className="soft">{what} is built again, whatever it looks like. A result that is the same as before goes no further.</p>
        <label className="check">
          <input type="checkbox" checked={downstream} onChange={(event) => setDownstream(event.target.checked)} />
          <span>Also everything that is made from it</span>
        </label>
        {found.error && <Trouble error={found.error} />}
        {found.isPending && <Loading lines={2} />}
        {found.data && <Reached effect={found.data} />}
        {found.data && <Approve effect={found.data} value={approve} onChange={setApprove} />}
      </div>
      <footer>
        <Button onClick={onClose}>Leave it</Button>
        <Button kind="main" disabled={!found.data?.count || found.isPlaceholderData} busy={doing.isPending} onClick={() => doing.mutate()}>
          Build {statesOf(found.data?.count ?? 0)} again
        </Button>
      </footer>
    </Dialog>
  );
}

/** Try failed and parked states at once, after saying how many. */
export function RetryDialog({ pipeline, wanted, onClose }: { pipeline: string; wanted: Wanted; onClose: () => void }) {
  const path = `${apiOf(pipeline)}/retry`;
  const found = usePreview(path, wanted);
  const doing = useAction<void, Effect>({
    act: () => post<Effect>(path, { ...wanted, count: found.data?.count }),
    told: (done) => `${statesOf(done.count)} ${done.count === 1 ? "is" : "are"} tried again.`,
    then: onClose,
  });
  return (
    <Dialog title="Try again what failed" onClose={onClose}>
      {found.error && <Trouble error={found.error} />}
      {found.isPending && <Loading lines={2} />}
      {found.data && <Reached effect={found.data} />}
      <footer>
        <Button onClick={onClose}>Leave it</Button>
        <Button kind="main" disabled={!found.data?.count} busy={doing.isPending} onClick={() => doing.mutate()}>
          Retry {statesOf(found.data?.count ?? 0)}
        </Button>
      </footer>
    </Dialog>
  );
}

/** Have a range of a stage's states built again. */
export function BackfillDialog({ pipeline, onClose }: { pipeline: Pipeline; onClose: () => void }) {
  const [stage, setStage] = useState(pipeline.stages[0]?.name ?? "");
  const [first, setFirst] = useState("");
  const [last, setLast] = useState("");
  const [downstream, setDownstream] = useState(true);
  const [approve, setApprove] = useState(false);
  const wish = usePaused({ stage, downstream, ...(first && { first }), ...(last && { last }) });
  const path = `${apiOf(pipeline.name)}/backfill`;
  const found = usePreview(path, wish, stage !== "");
  const doing = useAction<void, { id: number; total: number }>({
    act: () => post<{ id: number; total: number }>(path, { ...wish, approve, count: found.data?.count }),
    told: (done) => `Backfill ${done.id}: ${statesOf(done.total)} will be built again.`,
    then: onClose,
  });
  return (
    <Dialog title="Backfill" onClose={onClose}>
      <div className="form">
        <p className="soft">Have a range of states built again. The pace is that of the stage and its queue; progress is shown above the grid.</p>
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
            <input className="field" value={first} placeholder="from the beginning" onChange={(event) => setFirst(event.target.value.trim())} />
          </label>
          <label>
            <span>Last entity</span>
            <input className="field" value={last} placeholder="to the end" onChange={(event) => setLast(event.target.value.trim())} />
          </label>
        </div>
        <label className="check">
          <input type="checkbox" checked={downstream} onChange={(event) => setDownstream(event.target.checked)} />
          <span>Also everything that is made from them</span>
        </label>
        {found.error && <Trouble error={found.error} />}
        {found.isPending && <Loading lines={2} />}
        {found.data && !found.error && <Reached effect={found.data} />}
        {found.data && <Approve effect={found.data} value={approve} onChange={setApprove} />}
      </div>
      <footer>
        <Button onClick={onClose}>Leave it</Button>
        <Button kind="main" disabled={!found.data?.count || found.isPlaceholderData || found.error !== null} busy={doing.isPending} onClick={() => doing.mutate()}>
          Build {statesOf(found.data?.count ?? 0)} again
        </Button>
      </footer>
    </Dialog>
  );
}

interface Orphans {
  items: { stage: string; entity: string; paths: string[]; bytes: number; how: string }[];
  total: number;
  bytes: number;
}

/** Archive or delete states whose inputs are gone, after listing them. */
export function CleanDialog({ pipeline, orphans, onClose }: { pipeline: string; orphans: Orphans; onClose: () => void }) {
  const [how, setHow] = useState("archive");
  const doing = useAction<void, { kept: number; archived: number; deleted: number }>({
    act: () => post(`${apiOf(pipeline)}/clean`, { how, count: orphans.total }),
    told: (done) => `${done.archived ? `${count(done.archived)} archived` : `${count(done.deleted)} deleted`}.`,
    then: onClose,
  });
  return (
    <Dialog title="Clean up" onClose={onClose}>
      <div className="form">
        <p>
          The inputs of <b>{statesOf(orphans.total)}</b> are gone: nothing makes them any more.
        </p>
        <ul className="paths" tabIndex={0} aria-label="Orphans">
          {orphans.items.flatMap((each) => each.paths.map((path) => <li key={path}><code>{path}</code></li>))}
          {orphans.total > orphans.items.length && <li className="faint">and {count(orphans.total - orphans.items.length)} more</li>}
        </ul>
        <label>
          <span>What to do with them</span>
          <select className="field" value={how} onChange={(event) => setHow(event.target.value)}>
            <option value="archive">archive: move them out of the way</option>
            <option value="delete">delete them for good</option>
          </select>
        </label>
      </div>
      <footer>
        <Button onClick={onClose}>Leave them</Button>
        <Button kind={how === "delete" ? "danger" : "main"} busy={doing.isPending} onClick={() => doing.mutate()}>
          {how === "delete" ? "Delete" : "Archive"} {statesOf(orphans.total)}
        </Button>
      </footer>
    </Dialog>
  );
}

/** A value once it has been the same for a moment. */
function usePaused<T extends object>(value: T): T {
  const text = JSON.stringify(value);
  const [paused, setPaused] = useState(text);
  useEffect(() => {
    const timer = window.setTimeout(() => setPaused(text), 300);
    return () => window.clearTimeout(timer);
  }, [text]);
  return JSON.parse(paused) as T;
}
