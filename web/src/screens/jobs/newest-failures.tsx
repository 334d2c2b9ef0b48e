/** The newest failed jobs of a task or a queue, each with its error. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import type { JobLine, Page } from "../../api/types";
import { Link } from "../../app/router";
import { Empty, LoadStatus } from "../../components/feedback";
import { Panel } from "../../components/layout";
import { Note } from "../../components/lists/list-panel";
import { num, Table } from "../../components/lists/table";
import { Ago } from "../../components/times";

const MOST = 10;

export function NewestFailures({ filter }: { filter: { task?: string; queue?: string } }) {
  const query = { ...filter, state: "failed" };
  const found = useQuery({ queryKey: ["jobs", query, MOST], queryFn: () => get<Page<JobLine>>("/jobs", { ...query, limit: MOST }) });
  return (
    <Panel title="Newest failures" aside={<Link to={`/jobs?${new URLSearchParams(query)}`}>All failed jobs</Link>}>
      {!found.data ? (
        <LoadStatus query={found} lines={3} />
      ) : found.data.items.length === 0 ? (
        <Empty good title="No failed jobs">A job appears here when its last attempt has failed.</Empty>
      ) : (
        <Table label="Newest failures" heads={["Job", "Task", num("Attempt"), "Failed", "Error"]}>
          {found.data.items.map((job) => (
            <tr key={job.id}>
              <td><Link to={`/jobs/${job.id}`}>{job.id}</Link></td>
              <td className="name"><div className="name-cell" title={job.task}><span className="cut">{job.task}</span></div></td>
              <td className="num">{job.attempt}</td>
              <td className="nowrap"><Ago at={job.finished_at} /></td>
              <td><Note title={job.note ?? ""}>{job.note}</Note></td>
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  );
}
