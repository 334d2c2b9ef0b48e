/** The entities of a monitor: state and recent activity of each; entities can be added and removed. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../../api/client";
import type { List } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { JsonView } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { Empty, ErrorMessage, LoadStatus } from "../../components/feedback";
import { count, plural } from "../../components/format";
import { Panel } from "../../components/layout";
import { State } from "../../components/state";
import { Ago } from "../../components/times";
import "./monitors.css";
import { type Alert, type Entity, monitorApi } from "./types";
import { WhyNot } from "./why-not";

export function Entities({ monitor, alerts, triggers, may }: { monitor: string; alerts: Alert[]; triggers: string[]; may: boolean }) {
  const [asked, setAsked] = useState<string | null>(null);
  const found = useQuery({ queryKey: ["entities", monitor], queryFn: () => get<List<Entity>>(`${monitorApi(monitor)}/entities`), refetchInterval: 15_000 });
  const [open, setOpen] = useState<string | null>(null);
  const [adding, setAdding] = useState(false);
  const change = useAction<{ add?: string[]; remove?: string[] }, { added: string[]; removed: string[] }>({
    request: (roster) => post<{ added: string[]; removed: string[] }>(`${monitorApi(monitor)}/roster`, roster),
    message: (result) => (result.removed.length ? `Removed ${result.removed.join(", ")}.` : result.added.length ? `Added ${result.added.join(", ")}.` : "These entities were already added."),
    onSuccess: () => setAdding(false),
  });
  const alerting = new Set(alerts.filter((alert) => !alert.resolved_at).map((alert) => alert.entity));
  return (
    <Panel
      title={`Entities of ${monitor}`}
      aside={
        <span className="row">
          {found.data && <span className="faint">{count(found.data.items.length)}</span>}
          {may && (
            <Button className="small" onClick={() => setAdding(true)}>
              Add entities …
            </Button>
          )}
        </span>
      }
    >
      <LoadStatus query={found} />
      {found.data?.items.length === 0 && (
        <Empty title="No entities yet">
          An entity appears with its first event, or with <b>Add entities</b>.
        </Empty>
      )}
      <ul className="entities">
        {found.data?.items.map((each) => (
          <li key={each.entity}>
            <button type="button" aria-expanded={open === each.entity} onClick={() => setOpen(open === each.entity ? null : each.entity)}>
              <span className="who">
                <State state={alerting.has(each.entity) ? "open" : "healthy"} label={each.entity} />
                <Spark values={each.spark} />
              </span>
              <span className="faint">{plural(each.count, "event")}, last <Ago at={each.last_at} /></span>
            </button>
            {open === each.entity && (
              <>
                <JsonView value={{ state: each.state, labels: each.labels }} label={`state of ${each.entity}`} />
                {triggers.length > 0 && (
                  <div className="card-foot">
                    <Button className="small" onClick={() => setAsked(each.entity)}>
                      Why no alert? …
                    </Button>
                  </div>
                )}
                {may && (
                  <div className="card-foot">
                    <span>Events of a removed entity are ignored, and its open alerts are resolved.</span>
                    <Button className="small" busy={change.isPending} onClick={() => change.mutate({ remove: [each.entity] })}>
                      Remove
                    </Button>
                  </div>
                )}
              </>
            )}
          </li>
        ))}
      </ul>
      {asked !== null && <WhyNot monitor={monitor} entity={asked} triggers={triggers} onClose={() => setAsked(null)} />}
      {adding && <AddEntitiesDialog monitor={monitor} busy={change.isPending} error={change.error} onAdd={(add) => change.mutate({ add })} onClose={() => setAdding(false)} />}
    </Panel>
  );
}

/** Events over the last hour. */
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

function AddEntitiesDialog({ monitor, busy, error, onAdd, onClose }: { monitor: string; busy: boolean; error: Error | null; onAdd: (entities: string[]) => void; onClose: () => void }) {
  const [text, setText] = useState("");
  const names = text.split(/[\n,]+/).map((each) => each.trim()).filter(Boolean);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onAdd(names);
  };
  return (
    <Dialog title={`Add entities to ${monitor}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Entities</span>
          <textarea className="field" rows={4} value={text} onChange={(event) => setText(event.target.value)} autoFocus />
          <small>One per line. Their events of the last 24 hours are read once.</small>
        </label>
        {error && <ErrorMessage error={error} />}
        <Button kind="main" type="submit" busy={busy} disabled={names.length === 0}>
          Add {names.length > 1 ? `${names.length} entities` : "entity"}
        </Button>
      </form>
    </Dialog>
  );
}
