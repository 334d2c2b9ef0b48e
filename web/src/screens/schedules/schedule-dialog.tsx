/** A dialog that makes a schedule for a task, flow or dag. */
import { type FormEvent, useState } from "react";
import { put } from "../../api/client";
import type { Schedule } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { ErrorMessage } from "../../components/feedback";
import { NOTHING, StartForm } from "../../components/forms/start-form";

export function ScheduleDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [choice, setChoice] = useState(NOTHING);
  const [kind, setKind] = useState<"every" | "cron">("every");
  const [when, setWhen] = useState("");
  const [overlap, setOverlap] = useState("allow");
  const [timezone, setTimezone] = useState("UTC");
  const [catchup, setCatchup] = useState("one");
  const action = useAction<void, Schedule>({
    request: () => put<Schedule>(`/schedules/${encodeURIComponent(name.trim())}`, { start: choice.name, args: choice.args, [kind]: when.trim(), overlap, catchup, ...(kind === "cron" && { timezone: timezone.trim() || "UTC" }) }),
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
        <StartForm label="Starts" kinds={["task", "flow", "dag"]} onChange={setChoice} />
        <label>
          <span>When</span>
          <select className="select" aria-label="Kind of rule" value={kind} onChange={(event) => setKind(event.target.value as "every" | "cron")}>
            <option value="every">every</option>
            <option value="cron">cron expression</option>
          </select>
        </label>
        <label>
          <span>{kind === "every" ? "Interval" : "Cron expression"}</span>
          <input className="field" value={when} onChange={(event) => setWhen(event.target.value)} required placeholder={kind === "every" ? "15m" : "0 3 * * *"} />
        </label>
        {kind === "cron" && (
          <label>
            <span>Time zone</span>
            <input className="field" value={timezone} onChange={(event) => setTimezone(event.target.value)} />
          </label>
        )}
        <label>
          <span>Fires that were missed</span>
          <select className="select" value={catchup} onChange={(event) => setCatchup(event.target.value)}>
            <option value="one">start the latest</option>
            <option value="all">start each</option>
            <option value="skip">skip them</option>
          </select>
        </label>
        <label>
          <span>While the previous one is unfinished</span>
          <select className="select" value={overlap} onChange={(event) => setOverlap(event.target.value)}>
            <option value="allow">start it all the same</option>
            <option value="skip">skip the fire</option>
            <option value="queue">wait for its end</option>
            <option value="cancel">cancel it, and start</option>
          </select>
        </label>
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending} disabled={choice.isInvalid}>
          Create
        </Button>
      </form>
    </Dialog>
  );
}
