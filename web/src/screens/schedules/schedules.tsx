/** Schedules: jobs and runs that are started at fixed times. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post, remove } from "../../api/client";
import type { List, Schedule } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Link, useFilters } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Confirm } from "../../components/dialog";
import { Empty, LoadStatus } from "../../components/feedback";
import { Search } from "../../components/forms/filters";
import { PageHeader, Panel } from "../../components/layout";
import { Count, num, RowActions, Table } from "../../components/lists/table";
import { State } from "../../components/state";
import { absolute, Ago } from "../../components/times";
import { ScheduleDialog } from "./schedule-dialog";
import { ScheduleFires } from "./schedule-fires";

/** A short time of day, with seconds for frequent schedules and with the date unless it is today. */
function clock(at: string, isOften: boolean): string {
  const moment = new Date(at);
  const time = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: isOften ? "2-digit" : undefined });
  return moment.toDateString() === new Date().toDateString() ? time : `${moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

/** The two times after the next one. */
function After({ schedule }: { schedule: Schedule }) {
  const [first, second] = schedule.then;
  if (first === undefined) return null;
  const isOften = second !== undefined && Date.parse(second) - Date.parse(first) < 60_000;
  return <span className="faint">then {schedule.then.slice(0, 2).map((at) => clock(at, isOften)).join(", ")}</span>;
}

export function Schedules() {
  const may = useMay("operator");
  const [query, change] = useFilters();
  const name = query.get("name") ?? "";
  const found = useQuery({ queryKey: ["schedules"], queryFn: () => get<List<Schedule>>("/schedules"), refetchInterval: 10_000 });
  const [making, setMaking] = useState(false);
  const [shown, setShown] = useState<string | null>(null);
  const [deleting, setDeleting] = useState<Schedule | null>(null);
  const drop = useAction<Schedule>({ request: (each) => remove(`/schedules/${encodeURIComponent(each.name)}`), message: (_, each) => `Deleted schedule ${each.name}.` });
  const act = useAction<{ name: string; verb: "run" | "pause" | "resume" }, { id?: number; kind?: string }>({
    request: ({ name: of, verb }) => post<{ id?: number; kind?: string }>(`/schedules/${encodeURIComponent(of)}/${verb}`),
    message: (result, { name: of, verb }) => (verb === "run" ? (result.kind === "run" ? `Started run r${result.id}.` : `Enqueued job ${result.id}.`) : verb === "pause" ? `Paused schedule ${of}.` : `Resumed schedule ${of}.`),
  });
  const rows = found.data?.items.filter((schedule) => schedule.name.toLowerCase().includes(name.toLowerCase())) ?? [];
  return (
    <>
      <PageHeader title="Schedules" subtitle="Jobs and runs that are started at fixed times, and when they fire next.">
        {may && <Button kind="main" onClick={() => setMaking(true)}>New schedule</Button>}
      </PageHeader>
      <div className="filters">
        <Search label="Name" value={name} onChange={(text) => change({ name: text })} />
      </div>
      <LoadStatus query={found} />
      {found.data && <Panel>
        {rows.length === 0 ? (
          <Empty title={name ? `No schedule has a name with “${name}”` : "No schedules yet"}>
            Declare a task with <code>every="10m"</code> or <code>cron="0 7 * * 1-5"</code>, and start it with <code>tidemill up</code>.
          </Empty>
        ) : (
          <Table label="Schedules" heads={["Schedule", "State", "Rule", "Next", "Last", num("Fired"), num("Missed"), "Queue"]} hasActions={may}>
            {rows.map((schedule) => (
              <tr key={schedule.name}>
                <td>
                  <button type="button" className="link" aria-label={`Fires of ${schedule.name}`} onClick={() => setShown(schedule.name)}>
                    {schedule.name}
                  </button>
                  {schedule.made_by && <div className="faint">by {schedule.made_by}</div>}
                </td>
                <td title={schedule.disabled_by ? `${schedule.disabled_by} has disabled its workflow.` : undefined}><State state={schedule.paused ? "paused" : schedule.disabled_by ? "disabled" : "active"} /></td>
                <td className="nowrap">{schedule.when}</td>
                <td className="nowrap">{schedule.paused || schedule.disabled_by ? <span className="faint">–</span> : <span title={`Next times\n${schedule.then.map(absolute).join("\n")}`}><Ago at={schedule.next_fire} /> <After schedule={schedule} /></span>}</td>
                <td className="nowrap">
                  {schedule.last_run_id ? (
                    <Link to={`/runs/${schedule.last_run_id}`}>
                      <Ago at={schedule.last_fire} />
                    </Link>
                  ) : schedule.last_job_id ? (
                    <Link to={`/jobs/${schedule.last_job_id}`}>
                      <Ago at={schedule.last_fire} />
                    </Link>
                  ) : (
                    <Ago at={schedule.last_fire} />
                  )}
                </td>
                <td className="num"><Count value={schedule.fired} /></td>
                <td className="num"><Count value={schedule.missed + schedule.overlapped} /></td>
                <td>{schedule.queue || <span className="faint">–</span>}</td>
                {may && (
                  <RowActions>
                    <Button className="small" aria-label={`Run now: ${schedule.name}`} onClick={() => act.mutateAsync({ name: schedule.name, verb: "run" })}>
                      Run now
                    </Button>
                    <Button className="small" aria-label={`${schedule.paused ? "Resume" : "Pause"} ${schedule.name}`} onClick={() => act.mutateAsync({ name: schedule.name, verb: schedule.paused ? "resume" : "pause" })}>
                      {schedule.paused ? "Resume" : "Pause"}
                    </Button>
                    {schedule.made_by && (
                      <Button kind="danger" className="small" aria-label={`Delete ${schedule.name}`} onClick={() => setDeleting(schedule)}>
                        Delete
                      </Button>
                    )}
                  </RowActions>
                )}
              </tr>
            ))}
          </Table>
        )}
      </Panel>}
      {making && <ScheduleDialog onClose={() => setMaking(false)} />}
      {shown && <ScheduleFires name={shown} onClose={() => setShown(null)} />}
      {deleting && (
        <Confirm title={`Delete schedule ${deleting.name}?`} verb="Delete" act={() => drop.mutateAsync(deleting)} onClose={() => setDeleting(null)}>
          It no longer fires. What it has started continues.
        </Confirm>
      )}
    </>
  );
}
