/** The versions of a workflow that have unfinished runs, and the move of older runs to the present one. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post } from "../../api/client";
import type { FlowVersion, List, RunsMigrated } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { ErrorMessage, Loading } from "../../components/feedback";
import { count, plural } from "../../components/format";
import { Panel } from "../../components/layout";
import { Tag } from "../../components/state";
import { Ago } from "../../components/times";
import "./runs.css";

export function FlowVersions({ workflow, may }: { workflow: string; may: boolean }) {
  const [moving, setMoving] = useState(false);
  const versions = useQuery({ queryKey: ["flow-versions", workflow], queryFn: () => get<List<FlowVersion>>(`/flows/${encodeURIComponent(workflow)}/versions`) });
  const items = versions.data?.items ?? [];
  if (!items.length) return null;
  return (
    <Panel className="flow-versions" title="Unfinished runs by version" aside={may && items.some((each) => each.is_current === false) && <Button onClick={() => setMoving(true)}>Migrate runs …</Button>}>
      <ul className="versions">
        {items.map((each) => (
          <li key={each.version}>
            <code>{each.version}</code> <b>{plural(each.runs, "run")}</b>
            {each.needs_attention > 0 && <Tag>{count(each.needs_attention)} need attention</Tag>}
            {each.is_current && <Tag>current</Tag>}
            {!each.is_alive && <Tag>no run worker has it</Tag>}
            {each.since && <small className="soft">since <Ago at={each.since} /></small>}
          </li>
        ))}
      </ul>
      {moving && <MigrateRuns workflow={workflow} onClose={() => setMoving(false)} />}
    </Panel>
  );
}

/** Says what a migration would reach before it is done. */
function MigrateRuns({ workflow, onClose }: { workflow: string; onClose: () => void }) {
  const tried = useQuery({ queryKey: ["migrate-runs", workflow], queryFn: () => post<RunsMigrated>("/runs/migrate", { flow: workflow, dry_run: true }), staleTime: Infinity });
  const action = useAction<void, RunsMigrated>({ request: () => post<RunsMigrated>("/runs/migrate", { flow: workflow }), message: (done) => `${plural(done.count, "run")} migrated.`, onSuccess: onClose });
  const found = tried.data;
  return (
    <Dialog title={`Migrate runs of ${workflow}?`} onClose={onClose}>
      {tried.isLoading && <Loading />}
      {tried.error && <ErrorMessage error={tried.error} />}
      {found && (
        <>
          <p>
            <b>{plural(found.count, "run")}</b> would go on with the current version.
            {found.owned > 0 && ` ${plural(found.owned, "run")} driven by a run worker now: migrated when it releases them.`}
          </p>
          {found.stuck.map((each) => (
            <p key={`${each.version} ${each.why}`} className="soft">
              {plural(each.count, "run")} of version <code>{each.version}</code> cannot go on: {each.why}
            </p>
          ))}
        </>
      )}
      <footer>
        <Button onClick={onClose}>Leave them</Button>
        <Button kind="main" busy={action.isPending} disabled={!found?.count} onClick={() => action.mutate()}>
          Migrate
        </Button>
      </footer>
    </Dialog>
  );
}
