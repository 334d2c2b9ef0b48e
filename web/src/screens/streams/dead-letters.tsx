import { useQuery } from "@tanstack/react-query";
import { get, post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { Link } from "../../app/router";
import { Button } from "../../components/button";
import { Empty, LoadStatus } from "../../components/feedback";
import { plural } from "../../components/format";
import { Panel } from "../../components/layout";
import { num, RowActions, Table } from "../../components/lists/table";
import { Tag } from "../../components/state";
import { Ago } from "../../components/times";
import { messageUrl } from "./message-page";
import type { DeadLetter } from "./types";

export function DeadLetters({ may }: { may: boolean }) {
  const found = useQuery({ queryKey: ["dead"], queryFn: () => get<{ items: DeadLetter[]; total: number }>("/dead-letters"), refetchInterval: 15_000 });
  const replay = useAction<{ stream: string; ids?: number[] }, { count: number }>({
    request: (which) => post<{ count: number }>("/dead-letters/replay", which),
    message: (result) => `Replayed ${plural(result.count, "dead letter")}.`,
  });
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
                  <Button className="small" aria-label={`Replay ${letter.id}`} onClick={() => replay.mutate({ stream: letter.stream, ids: [letter.id] })}>
                    Replay
                  </Button>
                </RowActions>
              )}
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  );
}
