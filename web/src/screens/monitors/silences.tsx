/** Active silences, each with a button that ends it. */
import { useQuery } from "@tanstack/react-query";
import { get, remove } from "../../api/client";
import type { List } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { ErrorMessage } from "../../components/feedback";
import { Panel } from "../../components/layout";
import { Tag } from "../../components/state";
import { Ago } from "../../components/times";
import type { Silence } from "./types";

export function Silences({ may }: { may: boolean }) {
  const found = useQuery({ queryKey: ["alerts", "silences"], queryFn: () => get<List<Silence>>("/silences"), refetchInterval: 10_000 });
  const end = useAction<Silence>({ request: (silence) => remove(`/silences/${silence.id}`), message: (_, silence) => `Ended silence ${silence.id}. Notifications are sent again.` });
  const items = found.data?.items ?? [];
  if (found.error) return <ErrorMessage error={found.error} />;
  if (items.length === 0) return null;
  return (
    <Panel title="Silences">
      <ul className="why">
        {items.map((silence) => (
          <li key={silence.id}>
            {silence.monitor} {Object.entries(silence.matchers).map(([name, value]) => <Tag key={name}>{name} {value}</Tag>)} until <Ago at={silence.ends_at} />, by {silence.by}{silence.comment && `: ${silence.comment}`}{" "}
            {may && (
              <Button className="small" aria-label={`End silence ${silence.id}`} busy={end.isPending} onClick={() => end.mutate(silence)}>
                End silence
              </Button>
            )}
          </li>
        ))}
      </ul>
    </Panel>
  );
}
