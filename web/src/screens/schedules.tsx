/** Schedules: what is enqueued by itself, and when next. */
import { useQuery } from "@tanstack/react-query";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { Acts, num, Table } from "../parts/table";
import { Button, count, Empty, Head, Loading, Panel, Search, State, Trouble } from "../parts/ui";
import { Link, useFilters } from "../router";
import { useMay } from "../session";
import { absolute, Ago } from "../times";
import type { List, Schedule } from "../types";

/** A moment in a few characters: the time of day, to the second where that matters, with the day where it is another one. */
function clock(at: string, isOften: boolean): string {
  const moment = new Date(at);
  const time = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: isOften ? "2-digit" : undefined });
  return moment.toDateString() === new Date().toDateString() ? time : `${moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

/** The two moments after the next, where one would want to know them. */
function After({ schedule }: { schedule: Schedule }) {
  const [first, second] = schedule.then;
  if (first === undefined) return null;
  const isOften = second !== undefined && Date.parse(second) - Date.parse(first) < 60_000;
  return <span className="faint">then {schedule.then.slice(0, 2).map((at) => clock(at, isOften)).join(", ")}</span>;
}

export function Schedules() {
  const may = useMay("operate");
  const [query, change] = useFilters();
  const name = query.get("name") ?? "";
  const found = useQuery({ queryKey: ["schedules"], queryFn: () => get<List<Schedule>>("/schedules"), refetchInterval: 10_000 });
  const act = useAction<{ name: string; verb: "run" | "pause" | "resume" }, { id?: number }>({
    act: (wish) => post<{ id?: number }>(`/schedules/${encodeURIComponent(wish.name)}/${wish.verb}`),
    told: (result, wish) => (wish.verb === "run" ? `Job ${result.id} is enqueued.` : wish.verb === "pause" ? `${wish.name} does not fire until it is resumed.` : `${wish.name} fires again.`),
  });
  const rows = found.data?.items.filter((schedule) => schedule.name.toLowerCase().includes(name.toLowerCase())) ?? [];
  return (
    <>
      <Head title="Schedules" under="What is enqueued by itself, and when next." />
      <div className="filters">
        <Search label="Name" value={name} onChange={(text) => change({ name: text })} />
      </div>
      {found.error && <Trouble error={found.error} retry={() => void found.refetch()} />}
      <Panel>
        {found.isPending ? (
          <Loading />
        ) : rows.length === 0 ? (
          <Empty title={name ? `No schedule has “${name}” in its name` : "No schedules yet"}>
            Give a task <code>every="10m"</code> or <code>cron="0 7 * * 1-5"</code>: <code>tidemill up</code> takes it from there.
          </Empty>
        ) : (
          <Table label="Schedules" heads={["Schedule", "State", "When", "Next", "Last", num("Fired"), num("Missed"), "Queue"]} acts={may}>
            {rows.map((schedule) => (
              <tr key={schedule.name}>
                <td>
                  <Link to={`/jobs?task=${encodeURIComponent(schedule.task)}`}>{schedule.name}</Link>
                </td>
                <td>{schedule.paused ? <State state="paused" /> : <State state="run" label="on" />}</td>
                <td className="nowrap">{schedule.when}</td>
                <td className="nowrap">{schedule.paused ? <span className="faint">–</span> : <span title={`and then\n${schedule.then.map(absolute).join("\n")}`}><Ago at={schedule.next_fire} /> <After schedule={schedule} /></span>}</td>
                <td className="nowrap">
                  {schedule.last_job_id ? (
                    <Link to={`/jobs/${schedule.last_job_id}`}>
                      <Ago at={schedule.last_fire} />
                    </Link>
                  ) : (
                    <Ago at={schedule.last_fire} />
                  )}
                </td>
                <td className="num">{count(schedule.fired)}</td>
                <td className="num">{count(schedule.missed)}</td>
                <td>{schedule.queue}</td>
                {may && (
                  <Acts>
                    <Button className="small" aria-label={`Run now: ${schedule.name}`} onClick={() => act.mutate({ name: schedule.name, verb: "run" })}>
                      Run now
                    </Button>
                    <Button className="small" aria-label={`${schedule.paused ? "Resume" : "Pause"} ${schedule.name}`} onClick={() => act.mutate({ name: schedule.name, verb: schedule.paused ? "resume" : "pause" })}>
                      {schedule.paused ? "Resume" : "Pause"}
                    </Button>
                  </Acts>
                )}
              </tr>
            ))}
          </Table>
        )}
      </Panel>
    </>
  );
}
