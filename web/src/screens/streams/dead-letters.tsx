/** Dead letters: messages that failed at every attempt, found by stream, reason, error text and time, and replayed. */
import { useMemo, useState } from "react";
import { post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { Link, useFilters } from "../../app/router";
import { Button } from "../../components/button";
import { Empty, LoadStatus } from "../../components/feedback";
import { plural } from "../../components/format";
import { Chips, Search, TimeFilter, timeRange } from "../../components/forms/filters";
import { Panel } from "../../components/layout";
import { BulkDialog, describeFilter } from "../../components/lists/bulk-dialog";
import { MoreRows, usePages } from "../../components/lists/paging";
import { num, RowActions, Table } from "../../components/lists/table";
import { Tag } from "../../components/state";
import { Ago } from "../../components/times";
import { messageUrl } from "./message-page";
import type { DeadLetter } from "./types";

const REASONS = ["failed", "undecodable", "lost", "undelivered"];

const replayMessage = (result: { count: number }) => `Replayed ${plural(result.count, "dead letter")}.`;

export function DeadLetters({ may, streams }: { may: boolean; streams: string[] }) {
  const [query, change] = useFilters();
  const [replaying, setReplaying] = useState(false);
  const text = query.toString();
  const filter = useMemo(() => {
    const found = new URLSearchParams(text);
    const word = (name: string) => found.get(name) ?? undefined;
    return { stream: word("stream") ?? null, why: word("why"), error: word("error"), ...timeRange(found) };
  }, [text]);
  const isFiltered = Object.values(filter).some((value) => value !== undefined && value !== null);
  const pages = usePages<DeadLetter>("dead", "/dead-letters", filter, 15_000);
  const total = (pages.data?.pages[0] as { total?: number } | undefined)?.total ?? 0;
  const replay = useAction<{ stream: string; ids: number[] }, { count: number }>({ request: (which) => post<{ count: number }>("/dead-letters/replay", which), message: replayMessage });
  return (
    <Panel
      title={total ? plural(total, "dead letter") : "Dead letters"}
      aside={
        may && total > 0 && (
          <Button className="small" onClick={() => setReplaying(true)}>
            {isFiltered ? "Replay all matching …" : "Replay all …"}
          </Button>
        )
      }
    >
      {(isFiltered || total > 0) && (
        <div className="filters inside">
          {streams.length > 1 && <Chips label="Stream" options={streams.map((value) => ({ value }))} value={filter.stream ? [filter.stream] : []} onChange={(next) => change({ stream: next.at(-1) ?? null })} />}
          <Chips label="Reason" options={REASONS.map((value) => ({ value }))} value={filter.why ? [filter.why] : []} onChange={(next) => change({ why: next.at(-1) ?? null })} />
          <Search label="Error text" value={filter.error ?? ""} onChange={(error) => change({ error })} />
          <TimeFilter what="Given up" query={query} onChange={change} />
        </div>
      )}
      {!pages.data ? (
        <LoadStatus query={pages} />
      ) : pages.rows.length === 0 ? (
        isFiltered ? <Empty title="No dead letters match these filters" /> : <Empty good title="No dead letters">A message that fails at every attempt is stored here and can be replayed.</Empty>
      ) : (
        <Table label="Dead letters" heads={["Id", "Source", "Reason", num("Attempts"), "Given up", "Message"]} hasActions={may}>
          {pages.rows.map((letter) => (
            <tr key={letter.id}>
              <td>
                <Link to={messageUrl(`d${letter.id}`)} aria-label={`Explain d${letter.id}`}>
                  d{letter.id}
                </Link>
              </td>
              <td className="nowrap">{letter.stream}/{letter.source}{letter.sink && ` → ${letter.sink}`}</td>
              <td>
                <div className="cut" title={letter.error ?? ""}>
                  <Tag tone="bad">{letter.why}</Tag> {letter.error}
                </div>
              </td>
              <td className="num">{letter.attempts}</td>
              <td className="nowrap"><Ago at={letter.buried_at} /></td>
              <td><div className="cut mono" title={letter.payload}>{letter.payload}</div></td>
              {may && (
                <RowActions>
                  <Button className="small" aria-label={`Replay ${letter.id}`} onClick={() => replay.mutateAsync({ stream: letter.stream, ids: [letter.id] })}>
                    Replay
                  </Button>
                </RowActions>
              )}
            </tr>
          ))}
        </Table>
      )}
      <MoreRows pages={pages} />
      {replaying && <BulkDialog<{ count: number }> verb="replay" what="dead letters" path="/dead-letters/replay" filter={filter} filtered={describeFilter(filter)} message={replayMessage} flat onClose={() => setReplaying(false)} />}
    </Panel>
  );
}
