/** Tasks by what they did: which take most time, which are slowest, which fail most. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import type { List, Schemas } from "../../api/types";
import { Link, useFilters } from "../../app/router";
import { Empty, LoadStatus } from "../../components/feedback";
import { Chips, Search } from "../../components/forms/filters";
import { SPANS } from "../../components/history";
import { PageHeader, Panel } from "../../components/layout";
import { Count, num, Table } from "../../components/lists/table";
import { Duration } from "../../components/times";

type Task = Schemas["WorkOf"];

const ORDERS: Record<string, { label: string; by: (task: Task) => number }> = {
  time: { label: "most time", by: (task) => task.seconds },
  slow: { label: "slowest", by: (task) => task.seconds / Math.max(1, task.ended) },
  failing: { label: "most failing", by: (task) => task.failed },
};

export function Tasks() {
  const [query, change] = useFilters();
  const within = query.get("within") ?? "1d";
  const order = query.get("order") ?? "time";
  const found = useQuery({ queryKey: ["history", "task", within], queryFn: () => get<List<Task>>("/history/task", { within }), refetchInterval: 15_000, placeholderData: keepPreviousData });
  const by = (ORDERS[order] ?? ORDERS.time)?.by;
  const name = query.get("name") ?? "";
  const tasks = (found.data?.items ?? []).filter((task) => task.name.toLowerCase().includes(name.toLowerCase())).sort((a, b) => (by ? by(b) - by(a) : 0));
  return (
    <>
      <PageHeader title="Tasks" subtitle="Attempts of each task that ended, how long they took and how many failed.">
        <Chips label="Order" options={Object.entries(ORDERS).map(([value, { label }]) => ({ value, label }))} value={[order]} onChange={(next) => change({ order: next.at(-1) ?? null })} />
        <Chips label="Period" options={SPANS} value={[within]} onChange={(next) => change({ within: next.at(-1) ?? null })} />
      </PageHeader>
      <div className="filters">
        <Search label="Name" value={name} onChange={(text) => change({ name: text })} />
      </div>
      <LoadStatus query={found} lines={8} />
      {found.data && (
        <Panel>
          {tasks.length === 0 ? (
            <Empty title={name ? `No task with “${name}” in its name did anything in this period` : "No task did anything in this period"}>
              A task appears here when its first job has ended. Enqueue one with <code>await app.enqueue(…)</code>.
            </Empty>
          ) : (
            <Table label="Tasks" heads={[{ name: "Task", kind: "name" }, num("Attempts"), num("Failed"), num("Failing", "Part of the attempts that failed"), num("Mean"), num("p50", "Half of the attempts took at most so long"), num("p99", "99 of 100 attempts took at most so long"), num("Total time")]}>
              {tasks.map((task) => (
                <tr key={task.name}>
                  <td className="name">
                    <div className="name-cell" title={task.name}>
                      <Link className="cut" to={`/tasks/${encodeURIComponent(task.name)}`}>{task.name}</Link>
                    </div>
                  </td>
                  <td className="num"><Count value={task.ended} /></td>
                  <td className="num"><Count value={task.failed} to={`/jobs?task=${encodeURIComponent(task.name)}&state=failed`} /></td>
                  <td className="num">{task.failed ? `${((task.failed / task.ended) * 100).toFixed(1)}%` : <span className="faint">0%</span>}</td>
                  <td className="num nowrap"><Duration seconds={task.ended ? task.seconds / task.ended : null} /></td>
                  <td className="num nowrap"><Duration seconds={task.p50 ?? null} atMost /></td>
                  <td className="num nowrap"><Duration seconds={task.p99 ?? null} atMost /></td>
                  <td className="num nowrap"><Duration seconds={task.seconds} /></td>
                </tr>
              ))}
            </Table>
          )}
        </Panel>
      )}
    </>
  );
}
