/** Silences that have not ended, and an end to each. */
import { useQuery } from "@tanstack/react-query";
import { get, remove } from "../api";
import { useAction } from "../parts/acting";
import { Button, Panel, Tag } from "../parts/ui";
import { Ago } from "../times";
import type { List } from "../types";
import type { Silence } from "./model";

export function Silences({ may }: { may: boolean }) {
  const found = useQuery({ queryKey: ["alerts", "silences"], queryFn: () => get<List<Silence>>("/silences"), refetchInterval: 10_000 });
  const end = useAction<Silence>({ act: (silence) => remove(`/silences/${silence.id}`), told: () => "People are told again from now on." });
  const items = found.data?.items ?? [];
  if (items.length === 0) return null;
  return (
    <Panel title="Silences">
      <ul className="why">
        {items.map((silence) => (
          <li key={silence.id}>
            {silence.monitor} {Object.entries(silence.matchers).map(([name, value]) => <Tag key={name}>{name} {value}</Tag>)} until <Ago at={silence.ends_at} />{" "}
            {may && (
              <Button className="small" aria-label={`End silence ${silence.id}`} busy={end.isPending} onClick={() => end.mutate(silence)}>
                End it
              </Button>
            )}
          </li>
        ))}
      </ul>
    </Panel>
  );
}
