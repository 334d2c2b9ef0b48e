/** A dialog that makes a schedule for a task, flow or dag. */
import { type FormEvent, useState } from "react";
import { put } from "../../api/client";
import type { Schedule } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { parseJson } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { ErrorMessage } from "../../components/feedback";

export function ScheduleDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [start, setStart] = useState("");
  const [args, setArgs] = useState("{}");
  const [kind, setKind] = useState<"every" | "cron">("every");
  const [when, setWhen] = useState("");
  const [overlap, setOverlap] = useState("allow");
  const read = parseJson(args);
  const action = useAction<void, Schedule>({
    request: () => put<Schedule>(`/schedules/${encodeURIComponent(name.trim())}`, { start: start.trim(), args: read.value, [kind]: when.trim(), overlap }),
    message: (made) => `Schedule ${made.name} starts ${made.task} ${made.when}.`,
    onSuccess: onClose,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate();
  };
  return (
    <Dialog title="New schedule" onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Name</span>
          <input className="field" value={name} onChange={(event) => setName(event.target.value)} required autoFocus />
        </label>
        <label>
          <span>Starts</span>
          <input className="field" value={start} onChange={(event) => setStart(event.target.value)} required />
          <small>The name of a task, flow or dag of the application.</small>
        </label>
        <label>
          <span>Arguments</span>
          <textarea className="field mono" rows={3} value={args} onChange={(event) => setArgs(event.target.value)} aria-invalid={read.wrong !== undefined} />
          {read.wrong && <small className="bad">{read.wrong}</small>}
        </label>
        <label>
          <span>When</span>
          <select className="select" aria-label="Kind of rule" value={kind} onChange={(event) => setKind(event.target.value as "every" | "cron")}>
            <option value="every">every</option>
            <option value="cron">cron expression, in UTC</option>
          </select>
        </label>
        <label>
          <span>{kind === "every" ? "Interval" : "Cron expression"}</span>
          <input className="field" value={when} onChange={(event) => setWhen(event.target.value)} required placeholder={kind === "every" ? "15m" : "0 3 * * *"} />
        </label>
        <label>
          <span>While the one before is unfinished</span>
          <select className="select" value={overlap} onChange={(event) => setOverlap(event.target.value)}>
            <option value="allow">start it all the same</option>
            <option value="skip">skip the fire</option>
            <option value="queue">wait for its end</option>
            <option value="cancel">cancel it, and start</option>
          </select>
        </label>
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending} disabled={read.wrong !== undefined}>
          Create
        </Button>
      </form>
    </Dialog>
  );
}
