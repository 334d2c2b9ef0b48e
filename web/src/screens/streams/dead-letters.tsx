import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { Explanation } from "../../components/details/explanation";
import { explain } from "../../components/details/followed";
import { JsonView } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { Empty, LoadStatus } from "../../components/feedback";
import { plural } from "../../components/format";
import { Panel } from "../../components/layout";
import { num, RowActions, Table } from "../../components/lists/table";
import { Tag } from "../../components/state";
import { Ago } from "../../components/times";
import { FailedAttempts } from "./failed-attempts";
import type { DeadLetter } from "./types";

export function DeadLetters({ may }: { may: boolean }) {
  const found = useQuery({ queryKey: ["dead"], queryFn: () => get<{ items: DeadLetter[]; total: number }>("/dead-letters"), refetchInterval: 15_000 });
  const replay = useAction<{ stream: string; ids?: number[] }, { count: number }>({
    request: (which) => post<{ count: number }>("/dead-letters/replay", which),
    message: (result) => `Replayed ${plural(result.count, "dead letter")}.`,
  });
  const [open, setOpen] = useState<number | null>(null);
  const letters = found.data?.items ?? [];
  const streams = [...new Set(letters.map((letter) => letter.stream))];
  return (
    <Panel
      title={found.data?.total ? plural(found.data.total, "dead letter") : "Dead letters"}
      aside={may && streams.map((stream) => (
        <Button key={stream} className="small" busy={replay.isPending} onClick={() => replay.mutate({ stream })}>
          Replay all of {stream}
        </Button>
      ))}
    >
      {!found.data ? (
        <LoadStatus query={found} />
      ) : letters.length === 0 ? (
        <Empty good title="No dead letters">A message that fails at every attempt is stored here and can be replayed.</Empty>
      ) : (
        <Table label="Dead letters" heads={["Id", "Source", "Reason", num("Attempts"), "Failed", "Message"]} hasActions={may}>
          {letters.map((letter) => (
            <tr key={letter.id}>
              <td>
                <button type="button" className="link" aria-label={`Explain d${letter.id}`} onClick={() => setOpen(letter.id)}>
                  d{letter.id}
                </button>
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
                  <Button className="small" aria-label={`Replay ${letter.id}`} onClick={() => replay.mutate({ stream: letter.stream, ids: [letter.id] })}>
                    Replay
                  </Button>
                </RowActions>
              )}
            </tr>
          ))}
        </Table>
      )}
      {open !== null && <DeadLetterDialog id={open} onClose={() => setOpen(null)} />}
    </Panel>
  );
}

/** One dead letter in full: its explanation, headers and payload. */
function DeadLetterDialog({ id, onClose }: { id: number; onClose: () => void }) {
  const found = useQuery({ queryKey: ["dead", id], queryFn: () => explain(`d${id}`) });
  const letter = found.data?.dead_letter;
  return (
    <Dialog title={`Dead letter d${id}`} onClose={onClose} wide>
      <LoadStatus query={found} />
      {found.data && letter && (
        <>
          <Explanation lines={found.data.why} />
          <p className="soft">
            Message {letter.place}{letter.key && <>, key {letter.key}</>}, given up <Ago at={letter.buried_at} />
          </p>
          {letter.headers !== null && <JsonView value={letter.headers} label="headers" />}
          <pre tabIndex={0} aria-label="Payload">{letter.payload}</pre>
          <FailedAttempts attempts={letter.history ?? []} />
        </>
      )}
    </Dialog>
  );
}
