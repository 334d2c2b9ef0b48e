/** The audit log: who changed what, with the values before and after. */
import { useMemo } from "react";
import type { AuditEntry } from "../../api/types";
import { Link, useFilters } from "../../app/router";
import { Empty, LoadStatus } from "../../components/feedback";
import { Search, TimeFilter, timeRange } from "../../components/forms/filters";
import { PageHeader, Panel } from "../../components/layout";
import { MoreRows, usePages } from "../../components/lists/paging";
import { Table } from "../../components/lists/table";
import { At } from "../../components/times";

export function Audit() {
  const [query, change] = useFilters();
  const text = query.toString();
  const filter = useMemo(() => {
    const found = new URLSearchParams(text);
    const word = (name: string) => found.get(name) ?? undefined;
    return { who: word("who"), action: word("action"), target: word("target"), ...timeRange(found) };
  }, [text]);
  const pages = usePages<AuditEntry>("audit", "/audit", filter);
  return (
    <>
      <PageHeader title="Audit log" subtitle="Changes made by people and programs, newest first." />
      <div className="filters">
        <Search label="User" value={filter.who ?? ""} onChange={(who) => change({ who })} />
        <Search label="Action" value={filter.action ?? ""} list={["job", "run", "queue", "worker", "schedule", "batch", "stream", "alert", "pipeline", "workflow", "token", "session"]} onChange={(action) => change({ action })} />
        <Search label="Target" value={filter.target ?? ""} onChange={(target) => change({ target })} />
        <TimeFilter what="Changed" query={query} onChange={change} />
      </div>
      <LoadStatus query={pages} lines={8} />
      {pages.data && <Panel>
        {pages.rows.length === 0 ? (
          <Empty title={text ? "No entries match these filters" : "No entries yet"}>Every cancel, retry, pause, answer and token change is recorded here.</Empty>
        ) : (
          <Table label="Audit log" heads={["Time", "User", "Action", "Target", "Before", "After"]}>
            {pages.rows.map((entry) => (
              <tr key={entry.id}>
                <td className="nowrap">
                  <At at={entry.at} />
                </td>
                <td>{entry.who}</td>
                <td className="nowrap">{entry.action}</td>
                <td>{target(entry)}</td>
                <td>
                  <Change value={entry.before} />
                </td>
                <td>
                  <Change value={entry.after} />
                </td>
              </tr>
            ))}
          </Table>
        )}
        <MoreRows pages={pages} />
      </Panel>}
    </>
  );
}

function target({ action, target: name }: AuditEntry) {
  if (/^r\d+/.test(name)) return <Link to={`/runs/${name.slice(1).split(" ")[0]}`}>{name}</Link>;
  if (action.startsWith("job.") && /^\d+$/.test(name)) return <Link to={`/jobs/${name}`}>{name}</Link>;
  return name;
}

function Change({ value }: { value: unknown }) {
  if (value === null || value === undefined) return <span className="faint">–</span>;
  const text = typeof value === "object" ? Object.entries(value).map(([name, each]) => `${name}: ${typeof each === "object" ? JSON.stringify(each) : String(each)}`).join(", ") : String(value);
  return (
    <div className="clamp mono" title={text}>
      {text}
    </div>
  );
}
