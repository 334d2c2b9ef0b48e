import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post } from "../../api/client";
import type { List } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { count, plural } from "../../components/format";
import { Meter, Panel } from "../../components/layout";
import { Tag } from "../../components/state";
import { Ago } from "../../components/times";
import { type Backfill, pipelineApi, REFRESH_MS } from "./types";

/** Backfills that are running or have just finished. */
export function Backfills({ pipeline, may }: { pipeline: string; may: boolean }) {
  const found = useQuery({ queryKey: ["pipelines", pipeline, "backfills"], queryFn: () => get<List<Backfill>>(`${pipelineApi(pipeline)}/backfills`, { waiting: true }), refetchInterval: (query) => (query.state.data?.items.some((each) => each.left > 0) ? 3000 : REFRESH_MS) });
  const stop = useAction<Backfill, { left: number }>({ request: (each) => post<{ left: number }>(`${pipelineApi(pipeline)}/backfills/${each.id}/stop`), message: (done, each) => `Stopped backfill ${each.id}. ${plural(done.left, "state")} not rebuilt.` });
  const [hidden, setHidden] = useState<number>(0);
  const items = found.data?.items ?? [];
  const shown = items.filter((each) => each.left > 0 || (each === items[0] && each.id > hidden && each.stopped_at === null && Date.now() - Date.parse(each.started_at) < 3_600_000));
  if (shown.length === 0) return null;
  return (
    <Panel title="Backfills">
      <ul className="backfills">
        {shown.map((each) => {
          const done = each.total - each.left;
          return (
            <li key={each.id}>
              <span className="row">
                <b>
                  {each.stage} {each.first || each.last ? `${each.first ?? "…"} to ${each.last ?? "…"}` : "all"}
                </b>
                {each.downstream && <Tag>with dependents</Tag>}
                <span className="faint">
                  by {each.by}, <Ago at={each.started_at} />
                </span>
              </span>
              <span className="row grow">
                <Meter value={each.total ? done / each.total : 1} tone={each.failed > 0 ? "bad" : each.left > 0 ? "run" : "ok"} label={`Backfill ${each.id}`} />
                <span className="nowrap">
                  {count(done)} of {count(each.total)} built{each.failed > 0 && <span className="bad-text">, {count(each.failed)} failed</span>}
                  {!!each.waiting && <span className="soft" title="A state before them has failed, a stage is paused, or an approval is missing">, {count(each.waiting)} cannot be built now</span>}
                </span>
              </span>
              {each.left === 0 ? <Button kind="quiet" className="small" aria-label={`Hide backfill ${each.id}`} onClick={() => setHidden(each.id)}>✕</Button> : may && <Button className="small" busy={stop.isPending} aria-label={`Stop backfill ${each.id}`} onClick={() => stop.mutate(each)}>Stop</Button>}
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}
