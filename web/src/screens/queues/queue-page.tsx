/** One queue: what is in it now, its history, and its newest failures. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import type { List, Queue } from "../../api/types";
import { Link } from "../../app/router";
import { useMay } from "../../app/session";
import { Empty, LoadStatus } from "../../components/feedback";
import { count } from "../../components/format";
import { History } from "../../components/history";
import { Fact, PageHeader, Panel } from "../../components/layout";
import { Duration } from "../../components/times";
import { NewestFailures } from "../jobs/newest-failures";
import { perTime, QueueActions, QueueState } from "./queues";

export function QueuePage({ id }: { id: string }) {
  const may = useMay("operator");
  const found = useQuery({ queryKey: ["queues", true], queryFn: () => get<List<Queue>>("/queues", { internal: true }), refetchInterval: 5000 });
  const queue = found.data?.items.find((each) => each.name === id);
  return (
    <>
      <PageHeader title={id} subtitle={queue && <QueueState queue={queue} />}>
        {queue && may && <QueueActions queue={queue} />}
        <Link className="button" to={`/jobs?queue=${encodeURIComponent(id)}`}>Jobs of this queue</Link>
      </PageHeader>
      <div className="stack">
        <Panel title="Now">
          {!found.data ? (
            <LoadStatus query={found} lines={3} />
          ) : !queue ? (
            <Empty title="This queue is not in use">No job is in it and no worker takes jobs from it.</Empty>
          ) : (
            <dl className="facts">
              <Fact name="Waiting">{count(queue.waiting)}</Fact>
              <Fact name="Running">{count(queue.running)}</Fact>
              <Fact name="Scheduled">{count(queue.scheduled)}</Fact>
              <Fact name="Throttled">{count(queue.throttled)}</Fact>
              <Fact name="Oldest waiting"><Duration seconds={queue.oldest} /></Fact>
              <Fact name="Workers">{count(queue.workers)}</Fact>
              <Fact name="Limit">{queue.rate === null ? "none" : perTime(queue.rate)}</Fact>
            </dl>
          )}
        </Panel>
        <History kind="queue" name={id} />
        <NewestFailures filter={{ queue: id }} />
      </div>
    </>
  );
}
