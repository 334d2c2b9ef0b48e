/** One task: its history, and its newest failures. */
import { Link } from "../../app/router";
import { History } from "../../components/history";
import { PageHeader } from "../../components/layout";
import { NewestFailures } from "../jobs/newest-failures";

export function TaskPage({ id }: { id: string }) {
  const name = encodeURIComponent(id);
  return (
    <>
      <PageHeader title={id} subtitle="What this task did, how long it took and what failed.">
        <Link className="button" to={`/jobs?task=${name}`}>Jobs of this task</Link>
      </PageHeader>
      <div className="stack">
        <History kind="task" name={id} />
        <NewestFailures filter={{ task: id }} />
      </div>
    </>
  );
}
