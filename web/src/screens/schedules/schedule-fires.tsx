/** A dialog with the fires of a schedule: the next ones, what became of the last ones and why, and a backfill of a time range. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../../api/client";
import type { ScheduleExplained } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Link } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { ErrorMessage, LoadStatus } from "../../components/feedback";
import { Table } from "../../components/lists/table";
import { State } from "../../components/state";
import { absolute } from "../../components/times";

export function ScheduleFires({ name, onClose }: { name: string; onClose: () => void }) {
  const path = `/schedules/${encodeURIComponent(name)}`;
  const found = useQuery({ queryKey: ["schedules", name], queryFn: () => get<ScheduleExplained>(`${path}/explain`), refetchInterval: 10_000 });
  const schedule = found.data?.schedule;
  return (
    <Dialog title={`Schedule ${name}`} onClose={onClose}>
      <LoadStatus query={found} />
      {schedule && (
        <>
          {found.data?.why.map((sentence) => <p key={sentence}>{sentence}</p>)}
          <p>
            <Link to={schedule.kind === "run" ? `/runs?workflow=${encodeURIComponent(schedule.task)}` : `/jobs?task=${encodeURIComponent(schedule.task)}`}>All {schedule.kind === "run" ? "runs" : "jobs"} of {schedule.task}</Link>
          </p>
          <h3>Next fires</h3>
          {schedule.paused || schedule.disabled_by ? <p className="faint">None while it is {schedule.paused ? "paused" : "disabled"}.</p> : <ul>{[schedule.next_fire, ...schedule.then].map((at) => <li key={at}>{absolute(at)}</li>)}</ul>}
          <h3>Past fires</h3>
          {found.data?.fires.length === 0 ? (
            <p className="faint">None yet.</p>
          ) : (
            <Table label="Past fires" heads={["For", "Outcome", "Reason", "Started"]}>
              {found.data?.fires.map((fire) => (
                <tr key={`${fire.fire} ${fire.at} ${fire.job_id ?? ""} ${fire.run_id ?? ""}`}>
                  <td className="nowrap">{absolute(fire.fire)}</td>
                  <td><State state={fire.outcome} /></td>
                  <td>{fire.reason}{fire.note && <div className="faint">{fire.note}</div>}</td>
                  <td>{fire.run_id ? <Link to={`/runs/${fire.run_id}`}>r{fire.run_id}</Link> : fire.job_id ? <Link to={`/jobs/${fire.job_id}`}>{fire.job_id}</Link> : "–"}</td>
                </tr>
              ))}
            </Table>
          )}
          <Backfill path={path} />
        </>
      )}
    </Dialog>
  );
}

/** Starts what the schedule would have started between two times. */
function Backfill({ path }: { path: string }) {
  const may = useMay("operator");
  const [since, setSince] = useState("");
  const [until, setUntil] = useState("");
  const iso = (text: string) => (text ? new Date(text).toISOString() : null);
  const action = useAction<void, { fires: number }>({
    request: () => post<{ fires: number }>(`${path}/backfill`, { since: iso(since), until: iso(until) }),
    message: (done) => `Backfilled ${done.fires} fires.`,
  });
  if (!may) return null;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate();
  };
  return (
    <form className="form" onSubmit={submit}>
      <h3>Backfill</h3>
      <label>
        <span>Since</span>
        <input className="field" type="datetime-local" value={since} onChange={(event) => setSince(event.target.value)} required />
      </label>
      <label>
        <span>Until</span>
        <input className="field" type="datetime-local" value={until} onChange={(event) => setUntil(event.target.value)} />
        <small>Now, if it is left out. What would have been started in this time is started.</small>
      </label>
      {action.error && <ErrorMessage error={action.error} />}
      <div>
        <Button type="submit" busy={action.isPending}>
          Backfill
        </Button>
      </div>
    </form>
  );
}
