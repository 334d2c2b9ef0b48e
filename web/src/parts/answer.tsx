/** Answering what a run asks: a form from the question's schema, JSON where it has none. */
import { type FormEvent, useState } from "react";
import { post } from "../api";
import type { Input } from "../types";
import { useAction } from "./acting";
import { initial, JsonField, readSchema, SchemaField, SchemaFields } from "./schemaform";
import { Button, Trouble } from "./ui";

/** What asks: a node of a dag, or a step of a flow. */
export const askerOf = (input: Pick<Input, "shape" | "node">): string => (input.shape === "flow" ? (input.node.split("/")[0] ?? input.node) : input.node);

export function AnswerForm({ input, onDone }: { input: Pick<Input, "run_id" | "node" | "schema" | "shape">; onDone?: () => void }) {
  const schema = readSchema(input.schema);
  const isFlow = input.shape === "flow";
  const [value, setValue] = useState<unknown>(() => (schema === null && isFlow ? { response: "" } : initial(schema)));
  const [wrong, setWrong] = useState(schema === null);
  const doing = useAction<void, { taken: boolean }>({
    act: () => post<{ taken: boolean }>(`/runs/${input.run_id}/inputs/${input.node.split("/").map(encodeURIComponent).join("/")}`, { value: value ?? null }),
    told: (answer) => (answer.taken ? `Run r${input.run_id} has taken the answer.` : "The answer is stored. Nobody drives the run now: start a keeper with `tidemill up`."),
    then: onDone,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    doing.mutate();
  };
  return (
    <form className="form" onSubmit={submit}>
      {schema?.properties ? (
        <SchemaFields schema={schema} value={(value ?? {}) as Record<string, unknown>} onChange={setValue} />
      ) : schema ? (
        <SchemaField name="answer" schema={schema} value={value} required onChange={setValue} />
      ) : (
        <JsonField label="Answer" about={isFlow ? "The fields of the event that is waited for, as a JSON object." : "The question has no schema: any JSON is taken."} hint={'{"ok": true}'} value={value} onChange={setValue} onWrong={setWrong} />
      )}
      {doing.error && <Trouble error={doing.error} />}
      <div>
        <Button kind="main" type="submit" busy={doing.isPending} disabled={wrong}>
          Submit
        </Button>
      </div>
    </form>
  );
}
