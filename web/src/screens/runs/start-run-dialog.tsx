/** A dialog that starts a run of a flow or dag: a form from the fields that it declares. */
import { type FormEvent, useState } from "react";
import { post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { go } from "../../app/router";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { ErrorMessage } from "../../components/feedback";
import { NOTHING, StartForm } from "../../components/forms/start-form";

interface Started {
  id: number;
  created: boolean;
}

export function StartRunDialog({ onClose }: { onClose: () => void }) {
  const [choice, setChoice] = useState(NOTHING);
  const [key, setKey] = useState("");
  const [priority, setPriority] = useState("");
  const [rateKey, setRateKey] = useState("");
  const action = useAction<void, Started>({
    request: () => post<Started>("/runs", { workflow: choice.name, args: choice.args, unique_key: key.trim() || null, priority: priority === "" ? null : Number(priority), rate_key: rateKey.trim() || null }),
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
        <StartForm label="Flow or dag" kinds={["flow", "dag"]} onChange={setChoice} />
        <label>
          <span>Key</span>
          <input className="field" value={key} onChange={(event) => setKey(event.target.value)} placeholder="none" />
          <small>Only one run with this key is started, even if this form is sent again.</small>
        </label>
        <label>
          <span>Priority</span>
          <input className="field" type="number" min={0} max={9} value={priority} onChange={(event) => setPriority(event.target.value)} placeholder="5; 9 goes first" />
        </label>
        <label>
          <span>Rate key</span>
          <input className="field" value={rateKey} onChange={(event) => setRateKey(event.target.value)} placeholder="the declared one" />
          <small>Runs with the same key begin at the declared rate together.</small>
        </label>
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending} disabled={choice.isInvalid}>
          Start
        </Button>
      </form>
    </Dialog>
  );
}
