/** Whom a monitor follows: the state of each, how busy it was, and changes of the roster. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { JsonView } from "../parts/json";
import { Button, count, Dialog, Empty, Loading, Panel, plural, State, Trouble } from "../parts/ui";
import { Ago } from "../times";
import type { List } from "../types";
import { type Alert, type Entity, pathOf } from "./model";
import "./monitors.css";

export function Entities({ monitor, alerts, may }: { monitor: string; alerts: Alert[]; may: boolean }) {
  const found = useQuery({ queryKey: ["entities", monitor], queryFn: () => get<List<Entity>>(`${pathOf(monitor)}/entities`), refetchInterval: 15_000 });
  const [open, setOpen] = useState<string | null>(null);
  const [adding, setAdding] = useState(false);
  const change = useAction<{ add?: string[]; remove?: string[] }, { added: string[]; removed: string[] }>({
    act: (wish) => post<{ added: string[]; removed: string[] }>(`${pathOf(monitor)}/roster`, wish),
    told: (result) => (result.removed.length ? `${result.removed.join(", ")} is followed no longer.` : result.added.length ? `${plural(result.added.length, "entity").replace("entitys", "entities")} followed from now on.` : "They were followed already."),
    then: () => setAdding(false),
  });
  const troubled = new Set(alerts.filter((alert) => !alert.resolved_at).map((alert) => alert.entity));
  return (
    <Panel
      title={`Whom ${monitor} follows`}
      aside={
        <span className="row">
          <span className="faint">{count(found.data?.items.length ?? 0)}</span>
          {may && (
            <Button className="small" onClick={() => setAdding(true)}>
              Follow more
            </Button>
          )}
        </span>
      }
    >
      {found.error && <Trouble error={found.error} />}
      {found.isPending && <Loading />}
      {found.data?.items.length === 0 && (
        <Empty title="Nobody yet">
          Entities come with their first event, or by <b>Follow more</b>.
        </Empty>
      )}
      <ul className="entities">
        {found.data?.items.map((each) => (
          <li key={each.entity}>
            <button type="button" aria-expanded={open === each.entity} onClick={() => setOpen(open === each.entity ? null : each.entity)}>
              <span className="who">
                <State state={troubled.has(each.entity) ? "failed" : "alive"} label={each.entity} />
                <Spark values={each.spark} />
              </span>
              <span className="faint">{plural(each.count, "event")}, the last <Ago at={each.last_at} /></span>
            </button>
            {open === each.entity && (
              <>
                <JsonView value={{ state: each.state, labels: each.labels }} label={`state of ${each.entity}`} />
                {may && (
                  <div className="card-foot">
                    <span>No longer followed, its events are ignored and its open alerts resolved.</span>
                    <Button className="small" busy={change.isPending} onClick={() => change.mutate({ remove: [each.entity] })}>
                      Follow no longer
                    </Button>
                  </div>
                )}
              </>
            )}
          </li>
        ))}
      </ul>
      {adding && <FollowMore monitor={monitor} busy={change.isPending} error={change.error} onAdd={(add) => change.mutate({ add })} onClose={() => setAdding(false)} />}
    </Panel>
  );
}

/** Events in equal parts of the last hour. */
function Spark({ values }: { values: number[] }) {
  const most = Math.max(...values, 1);
  const all = values.reduce((sum, value) => sum + value, 0);
  const points = values.map((value, index) => `${((index / Math.max(1, values.length - 1)) * 100).toFixed(1)} ${(19 - (value / most) * 17).toFixed(1)}`);
  return (
    <svg className="entity-spark" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" aria-label={`${plural(all, "event")} in the last hour`}>
      <path d={`M${points.join("L")}`} />
    </svg>
  );
}

function FollowMore({ monitor, busy, error, onAdd, onClose }: { monitor: string; busy: boolean; error: Error | null; onAdd: (entities: string[]) => void; onClose: () => void }) {
  const [text, setText] = useState("");
  const names = text.split(/[\n,]+/).map((each) => each.trim()).filter(Boolean);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onAdd(names);
  };
  return (
    <Dialog title={`Follow more with ${monitor}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Entities</span>
          <textarea className="field" rows={4} value={text} onChange={(event) => setText(event.target.value)} autoFocus />
          <small>One a line. What happened to them in the last 24 hours is read once.</small>
        </label>
        {error && <Trouble error={error} />}
        <Button kind="main" type="submit" busy={busy} disabled={names.length === 0}>
          Follow {names.length > 1 ? `${names.length} of them` : "it"}
        </Button>
      </form>
    </Dialog>
  );
}
