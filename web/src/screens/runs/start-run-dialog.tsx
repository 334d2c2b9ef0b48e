/** A dialog that starts a run of a flow or dag. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../../api/client";
import type { Declared, List } from "../../api/types";
import { useAction } from "../../api/use-action";
import { go } from "../../app/router";
import { Button } from "../../components/button";
import { parseJson } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { ErrorMessage } from "../../components/feedback";

interface Started {
  id: number;
  created: boolean;
}

export function StartRunDialog({ onClose }: { onClose: () => void }) {
  const declared = useQuery({ queryKey: ["workflows"], queryFn: () => get<List<Declared>>("/workflows") });
  const [workflow, setWorkflow] = useState("");
  const [args, setArgs] = useState("{}");
  const [key, setKey] = useState("");
  const read = parseJson(args);
  const chosen = workflow || declared.data?.items[0]?.name || "";
  const action = useAction<void, Started>({
    request: () => post<Started>("/runs", { workflow: chosen, args: read.value, key: key.trim() || null }),
    message: (run) => (run.created ? `Started run r${run.id}.` : `Run r${run.id} already exists.`),
    onSuccess: (run) => {
      onClose();
      go(`/runs/${run.id}`);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate();
  };
  return (
    <Dialog title="Start a run" onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Flow or dag</span>
          <select className="select" value={chosen} onChange={(event) => setWorkflow(event.target.value)}>
            {declared.data?.items.map((each) => (
              <option key={each.name} value={each.name}>
                {each.name} ({each.shape})
              </option>
            ))}
          </select>
          {declared.data?.items.length === 0 && <small>This application declares no flow or dag. Use @app.workflow or app.dag(…).</small>}
          {declared.isPending && <small>Loading …</small>}
          {declared.error && <small className="wrong">{declared.error.message}</small>}
        </label>
        <label>
          <span>Arguments</span>
          <textarea className="field" rows={4} value={args} onChange={(event) => setArgs(event.target.value)} aria-invalid={read.wrong !== undefined} />
          {read.wrong ? <small className="wrong">{read.wrong}</small> : <small>A JSON object: the fields of the start event, or the arguments of the dag.</small>}
        </label>
        <label>
          <span>Key</span>
          <input className="field" value={key} onChange={(event) => setKey(event.target.value)} placeholder="none" />
          <small>Only one run with this key is started, even if this form is sent again.</small>
        </label>
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending} disabled={read.wrong !== undefined || !chosen}>
          Start
        </Button>
      </form>
    </Dialog>
  );
}
