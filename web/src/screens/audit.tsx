/** The audit trail: who did what to which object, and how it was before and after. */
import { useMemo } from "react";
import { MoreRows, usePages } from "../parts/lists";
import { Table } from "../parts/table";
import { Empty, Head, Loading, Panel, Search, Trouble } from "../parts/ui";
import { Link, useFilters } from "../router";
import { Ago } from "../times";
import type { AuditEntry } from "../types";

export function Audit() {
  const [query, change] = useFilters();
  const text = query.toString();
  const filter = useMemo(() => {
    const found = new URLSearchParams(text);
    return { who: found.get("who") ?? undefined, action: found.get("action") ?? undefined };
  }, [text]);
  const pages = usePages<AuditEntry>("audit", "/audit", filter);
  return (
    <>
      <Head title="Audit" under="What people and programs did to this system, the newest first." />
      <div className="filters">
        <Search label="Who" value={filter.who ?? ""} onChange={(who) => change({ who })} />
        <Search label="Action" value={filter.action ?? ""} list={["job", "run", "queue", "worker", "schedule", "token", "session"]} onChange={(action) => change({ action })} />
      </div>
      {pages.error && <Trouble error={pages.error} retry={() => void pages.refetch()} />}
      <Panel>
        {pages.isPending ? (
          <Loading lines={8} />
        ) : pages.rows.length === 0 ? (
          <Empty title={text ? "Nothing like that was done" : "Nobody has done anything yet"}>Every cancel, retry, pause, answer and token is written down here.</Empty>
        ) : (
          <Table label="Audit trail" heads={["When", "Who", "Action", "Target", "Before", "After"]}>
            {pages.rows.map((entry) => (
              <tr key={entry.id}>
                <td className="nowrap">
                  <Ago at={entry.at} />
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
      </Panel>
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
    <div className="cut mono" title={text}>
      {text}
    </div>
  );
}
