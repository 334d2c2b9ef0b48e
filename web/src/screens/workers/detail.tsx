/** `/workers/HOST` is the page of a host, `/workers/HOST/NUMBER` that of a worker process on it. */
import { HostPage } from "./host-page";
import { WorkerPage } from "./worker-page";

export function HostOrWorker({ id }: { id: string }) {
  const [host = "", number] = id.split("/");
  return number ? <WorkerPage host={host} number={number} /> : <HostPage id={host} />;
}
