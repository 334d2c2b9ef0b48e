/** Runs of all shapes in one list, with filters in the address, views that are kept, and actions on many. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { BulkDialog, inWords, MoreRows, useChosen, usePages, useRowKeys } from "../parts/lists";
import { Button, Chips, count, Empty, Head, Loading, Panel, Search, State, Tag, toneOf, Trouble } from "../parts/ui";
import { Views } from "../parts/views";
import { go, Link, useFilters } from "../router";
import { useMay } from "../session";
import { Ago, Took } from "../times";
import type { Declared, List, RunLine } from "../types";
import { StartRun } from "./enqueue";

const STATES = ["running", "parked", "succeeded", "failed", "timed_out", "cancelled"];

interface Asked {
  count: number;
  ids: number[];
  unchanged: number;
}

const told = (result: Asked) => `${count(result.count)} runs were asked to end${result.unchanged ? `, ${count(result.unchanged)} had ended already` : ""}.`;

export function Runs() {
  const [query, change] = useFilters();
  const may = useMay("operate");
  const [ending, setEnding] = useState(false);
  const [starting, setStarting] = useState(false);
  const text = query.toString();
  const filter = useMemo(() => {
    const found = new URLSearchParams(text);
    const number = (name: string) => (found.get(name) ? Number(found.get(name)) : undefined);
    const word = (name: string) => found.get(name) ?? undefined;
    return { state: found.getAll("state"), shape: word("shape"), workflow: word("workflow"), key: word("key"), parent: number("parent"), forked_from: number("forked_from") };
  }, [text]);
  const bulk = useMemo(() => ({ state: filter.state.filter((state) => state === "running" || state === "parked"), shape: filter.shape, workflow: filter.workflow, parent: filter.parent }), [filter]);
  const pages = usePages<RunLine>("runs", "/runs", filter);
  const declared = useQuery({ queryKey: ["workflows"], queryFn: () => get<List<Declared>>("/workflows") });
  const ids = useMemo(() => pages.rows.map((run) => run.id), [pages.rows]);
  const chosen = useChosen(ids);
  const at = useRowKeys(ids, (id) => go(`/runs/${id}`), chosen.toggle);
  const cancel = useAction<void, Asked>({ act: () => post<Asked>("/runs/cancel", { ids: chosen.ids }), told, then: chosen.clear });
  return (
    <>
      <Head title="Runs" under="Flows and dags in one list, the newest first.">
        {may && (
          <>
            <Button onClick={() => setEnding(true)}>Cancel all that match …</Button>
            <Button kind="main" onClick={() => setStarting(true)}>
              Start a run
            </Button>
          </>
        )}
      </Head>
      <div className="filters">
        <Chips label="State" options={STATES.map((value) => ({ value, tone: toneOf(value) }))} value={filter.state} onChange={(state) => change({ state })} />
        <Chips label="Shape" options={[{ value: "flow" }, { value: "dag" }]} value={filter.shape ? [filter.shape] : []} onChange={(shape) => change({ shape: shape.at(-1) ?? null })} />
        <Search label="Workflow" value={filter.workflow ?? ""} list={declared.data?.items.map((each) => each.name)} onChange={(workflow) => change({ workflow })} />
        <Search label="Key" value={filter.key ?? ""} onChange={(key) => change({ key })} />
        {filter.parent !== undefined && (
          <Button kind="quiet" onClick={() => change({ parent: null })}>
            children of r{filter.parent} ✕
          </Button>
        )}
        {filter.forked_from !== undefined && (
          <Button kind="quiet" onClick={() => change({ forked_from: null })}>
            forks of r{filter.forked_from} ✕
          </Button>
        )}
        <Views screen="/runs" />
      </div>
      {pages.error && <Trouble error={pages.error} retry={() => void pages.refetch()} />}
      <Panel>
        {pages.isPending ? (
          <Loading lines={10} />
        ) : pages.rows.length === 0 ? (
          text ? (
            <Empty title="No run matches">
              <Button kind="quiet" onClick={() => go("/runs")}>
                Show all runs
              </Button>
            </Empty>
          ) : (
            <Empty title="No runs yet">
              Declare a flow with <code>@app.workflow</code> or a dag with <code>app.dag(…)</code>, and start it with <code>await app.start(…)</code>, or here.
            </Empty>
          )
        ) : (
          <div className="scroll" tabIndex={0} role="region" aria-label="Runs">
            <table>
              <thead>
                <tr>
                  {may && (
                    <th>
                      <input type="checkbox" aria-label="Choose all" checked={chosen.all} onChange={chosen.toggleAll} />
                    </th>
                  )}
                  <th>Run</th>
                  <th>State</th>
                  <th>Workflow</th>
                  <th>Shape</th>
                  <th className="num">Ticks</th>
                  <th>Started</th>
                  <th>Took</th>
                  <th>Note</th>
                </tr>
              </thead>
              <tbody>
                {pages.rows.map((run) => (
                  <tr key={run.id} data-row={run.id} aria-selected={at === run.id || chosen.has(run.id)}>
                    {may && (
                      <td>
                        <input type="checkbox" aria-label={`Choose run ${run.id}`} checked={chosen.has(run.id)} onChange={() => chosen.toggle(run.id)} />
                      </td>
                    )}
                    <td>
                      <Link to={`/runs/${run.id}`}>r{run.id}</Link>
                    </td>
                    <td>
                      <State state={run.asks ? "waiting" : run.state} label={run.asks ? "waits for an answer" : undefined} />
                    </td>
                    <td className="nowrap">
                      {run.workflow} {run.key && <Tag>{run.key}</Tag>} {run.forked_from && <Tag>fork of r{run.forked_from}</Tag>}
                    </td>
                    <td className="soft">{run.shape}</td>
                    <td className="num">{count(run.ticks)}</td>
                    <td className="nowrap">
                      <Ago at={run.created_at} />
                    </td>
                    <td className="nowrap">
                      <Took from={run.created_at} to={run.ended_at} />
                    </td>
                    <td>
                      <div className="cut note" title={run.note ?? ""}>
                        {run.note ?? (run.state === "running" && !run.owned && !run.awake && !run.asks ? "waits for an event, a timer or its jobs" : "")}
                      </div>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        <MoreRows pages={pages} />
      </Panel>
      {chosen.ids.length > 0 && (
        <div className="bulk" role="toolbar" aria-label="Chosen runs">
          <b>{count(chosen.ids.length)} chosen</b>
          <Button kind="danger" busy={cancel.isPending} onClick={() => cancel.mutate()}>
            Cancel
          </Button>
          <Button kind="quiet" onClick={chosen.clear}>
            Forget the choice
          </Button>
        </div>
      )}
      {ending && (
        <BulkDialog<Asked> verb="cancel" what="runs" path="/runs/cancel" filter={bulk} filtered={inWords(bulk)} told={told} danger note={<p className="soft">Only runs that are running or parked can be cancelled.</p>} onClose={() => setEnding(false)} />
      )}
      {starting && <StartRun onClose={() => setStarting(false)} />}
    </>
  );
}
