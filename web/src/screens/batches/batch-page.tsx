/** One batch: how many of its jobs ended how, and what it waits for. */
import { useQuery } from "@tanstack/react-query";
import { get, post } from "../../api/client";
import type { BatchDetails } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Link } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Explanation } from "../../components/details/explanation";
import { FollowedPanel } from "../../components/details/followed";
import { PageStatus } from "../../components/feedback";
import { count, plural } from "../../components/format";
import { Fact, Meter, PageHeader, Panel } from "../../components/layout";
import { State } from "../../components/state";
import { toneOf } from "../../components/states";
import { Took, When } from "../../components/times";

export function BatchPage({ id }: { id: string }) {
  const may = useMay("operator");
  const number = id.replace(/^b/, "");
  const found = useQuery({ queryKey: ["batches", number], queryFn: () => get<BatchDetails>(`/batches/${number}`), refetchInterval: (query) => (query.state.data?.state === "running" ? 2000 : false) });
  const act = useAction<"cancel" | "close", BatchDetails>({
    request: (verb) => post<BatchDetails>(`/batches/${number}/${verb}`),
    message: (_, verb) => (verb === "cancel" ? `Cancelled batch b${number}: waiting jobs at once, running ones are asked to stop.` : `Closed batch b${number}: it ends with its jobs.`),
  });
  const batch = found.data;
  if (!batch) return <PageStatus title={`Batch b${number}`} query={found} lines={8} />;
  const jobs = (state: string, value: number) => (value ? <Link to={`/jobs?batch=${batch.id}&state=${state}`}>{count(value)}</Link> : "0");
  return (
    <>
      <PageHeader
        title={batch.name ?? `Batch b${batch.id}`}
        subtitle={
          <span className="row">
            <State state={batch.state} /> batch b{batch.id} of <Link to={`/jobs?batch=${batch.id}`}>{plural(batch.total, "job")}</Link>
          </span>
        }
      >
        {may && batch.state === "running" && (
          <>
            {batch.is_open && (
              <Button busy={act.isPending} onClick={() => act.mutate("close")}>
                Close
              </Button>
            )}
            <Button kind="danger" busy={act.isPending} onClick={() => act.mutate("cancel")}>
              Cancel
            </Button>
          </>
        )}
      </PageHeader>
      <div className="stack">
        <Panel title="State">
          <div className="pad">
            <Meter value={batch.total ? 1 - batch.unfinished / batch.total : batch.ended_at ? 1 : 0} tone={toneOf(batch.state)} label="Progress" />
          </div>
          <Explanation lines={batch.why} />
        </Panel>
        <Panel title="Jobs">
          <dl className="facts">
            <Fact name="Unfinished">{count(batch.unfinished)}</Fact>
            <Fact name="Succeeded">{jobs("succeeded", batch.succeeded)}</Fact>
            <Fact name="Failed">{jobs("failed", batch.failed)}</Fact>
            <Fact name="Cancelled">{jobs("cancelled", batch.cancelled)}</Fact>
            <Fact name="Expired">{jobs("expired", batch.expired)}</Fact>
            <Fact name="Created"><When at={batch.created_at} /></Fact>
            <Fact name="Duration"><Took from={batch.created_at} to={batch.ended_at} /></Fact>
          </dl>
        </Panel>
        <FollowedPanel id={`b${batch.id}`} />
      </div>
    </>
  );
}
