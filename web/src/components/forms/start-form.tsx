/** Chooses a task, flow or dag and its arguments: a form from the declared parameters, or a JSON field without any. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { get } from "../../api/client";
import type { List, Startable } from "../../api/types";
import { initial, JsonField, readSchema, SchemaFields } from "./schema-form";

export interface Choice {
  name: string;
  args: Record<string, unknown>;
  isInvalid: boolean;
}

export const NOTHING: Choice = { name: "", args: {}, isInvalid: true };

export function StartForm({ label, kinds, onChange }: { label: string; kinds: Startable["kind"][]; onChange: (choice: Choice) => void }) {
  const found = useQuery({ queryKey: ["startable"], queryFn: () => get<List<Startable>>("/start") });
  const items = found.data?.items.filter((each) => kinds.includes(each.kind)) ?? [];
  const [chosen, setChosen] = useState("");
  const name = chosen || items[0]?.name || "";
  const schema = readSchema(items.find((each) => each.name === name)?.schema);
  const fields = schema?.properties && Object.keys(schema.properties).length > 0 ? schema : null;
  const [args, setArgs] = useState<Record<string, unknown>>({});
  const [isInvalid, setInvalid] = useState(false);
  const key = `${name} ${found.isSuccess}`; // What is typed stays when the list is loaded again.
  // Another choice begins with its own defaults.
  useEffect(() => {
    setArgs((fields ? (initial(fields) as Record<string, unknown>) : {}) ?? {});
    setInvalid(false);
    // biome-ignore lint/correctness/useExhaustiveDependencies: the fields follow from the key
  }, [key]);
  useEffect(() => onChange({ name, args, isInvalid: isInvalid || !name }), [name, args, isInvalid, onChange]);
  return (
    <>
      <label>
        <span>{label}</span>
        <select className="select" value={name} onChange={(event) => setChosen(event.target.value)}>
          {items.map((each) => (
            <option key={`${each.kind} ${each.name}`} value={each.name}>
              {each.name} ({each.kind})
            </option>
          ))}
        </select>
        {found.isPending && <small>Loading …</small>}
        {found.error && <small className="wrong">{found.error.message}</small>}
        {found.data && items.length === 0 && <small>This application declares no {kinds.join(" or ")}.</small>}
      </label>
      {fields ? (
        <SchemaFields key={key} schema={fields} value={args} onChange={setArgs} />
      ) : (
        <JsonField key={key} label="Arguments" about="A JSON object; it declares no parameters." value={{}} onChange={(value) => setArgs((value ?? {}) as Record<string, unknown>)} onInvalid={setInvalid} />
      )}
    </>
  );
}
