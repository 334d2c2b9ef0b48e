/** What a job, run, alert or dead letter followed from, and what followed from it: the lists of `tidemill explain ID --forward`. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import type { Schemas } from "../../api/types";
import { Link } from "../../app/router";
import { LoadStatus } from "../feedback";
import { Panel } from "../layout";
import { Table } from "../lists/table";
import { State } from "../state";

export type Explained = Schemas["Explanation"];

export const explain = (id: string, forward = false) => get<Explained>(`/explain/${id}`, { forward });

export function FollowedPanel({ id }: { id: string }) {
  const found = useQuery({ queryKey: ["explain", id], queryFn: () => explain(id, true), refetchInterval: 15_000 });
  const followed = found.data?.followed ?? [];
  const because = found.data?.because ?? [];
  return (
    <>
      {because.length > 0 && (
        <Panel title="Followed from">
          <FollowedTable label="Followed from" followed={because} />
        </Panel>
      )}
      <Panel title="Followed by">
        {!found.data ? (
          <LoadStatus query={found} lines={2} />
        ) : followed.length === 0 ? (
          <p className="pad faint">Nothing so far.</p>
        ) : (
          <FollowedTable label="Followed by" followed={followed} />
        )}
      </Panel>
    </>
  );
}

export function FollowedTable({ label, followed }: { label: string; followed: Explained["followed"] }) {
  return (
    <Table label={label} heads={["Id", "What", "State"]}>
      {(followed ?? []).map((each, index) => (
        <tr key={index}>
          <td className="nowrap"><ExplainedLink id={each.id} /></td>
          <td>{each.what}</td>
          <td>{each.state && <State state={each.state} />}</td>
        </tr>
      ))}
    </Table>
  );
}

/** An id of a job, a run or a dead letter as a link; other ids as text. */
function ExplainedLink({ id }: { id: string }) {
  if (/^\d+$/.test(id)) return <Link to={`/jobs/${id}`}>{id}</Link>;
  if (/^r\d+$/.test(id)) return <Link to={`/runs/${id.slice(1)}`}>{id}</Link>;
  if (/^b\d+$/.test(id)) return <Link to={`/batches/${id.slice(1)}`}>{id}</Link>;
  if (/^d\d+$/.test(id)) return <Link to={`/streams/${id}`}>{id}</Link>;
  return <>{id}</>;
}
