/** Answers a question of a run: a form from the question's JSON Schema, or a JSON field without one. */
import { type FormEvent, useState } from "react";
import { post } from "../../api/client";
import type { Input } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Button } from "../button";
import { ErrorMessage } from "../feedback";
import { initial, JsonField, readSchema, SchemaField, SchemaFields } from "./schema-form";

/** The node of a dag or the step of a flow that asks. */
export const askingStep = (input: Pick<Input, "shape" | "node">): string => (input.shape === "flow" ? (input.node.split("/")[0] ?? input.node) : input.node);

export function InputForm({ input, onDone }: { input: Pick<Input, "run_id" | "node" | "schema" | "shape">; onDone?: () => void }) {
  const schema = readSchema(input.schema);
  const isFlow = input.shape === "flow";
  const [value, setValue] = useState<unknown>(() => (schema === null && isFlow ? { response: "" } : initial(schema)));
  const [isInvalid, setInvalid] = useState(schema === null);
  const action = useAction<void, { taken: boolean }>({
    request: () => post<{ taken: boolean }>(`/runs/${input.run_id}/inputs/${input.node.split("/").map(encodeURIComponent).join("/")}`, { value: value ?? null }),
    message: (answer) => (answer.taken ? `Answer sent to run r${input.run_id}.` : "The answer is stored, but no run worker is running. Start one with `tidemill up`."),
    onSuccess: onDone,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate();
  };
  return (
    <form className="form" onSubmit={submit}>
      {schema?.properties ? (
        <SchemaFields schema={schema} value={(value ?? {}) as Record<string, unknown>} onChange={setValue} />
      ) : schema ? (
        <SchemaField name="answer" schema={schema} value={value} required onChange={setValue} />
      ) : (
        <JsonField label="Answer" about={isFlow ? "The fields of the expected event, as a JSON object." : "The question has no schema, so any JSON value is accepted."} hint={'{"ok": true}'} value={value} onChange={setValue} onInvalid={setInvalid} />
      )}
      {action.error && <ErrorMessage error={action.error} />}
      <div>
        <Button kind="main" type="submit" busy={action.isPending} disabled={isInvalid}>
          Submit
        </Button>
      </div>
    </form>
  );
}
