/** A dialog that starts a run of a flow or dag: a form from the fields that it declares. */
import { type FormEvent, useState } from "react";
import { post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { go } from "../../app/router";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { ErrorMessage } from "../../components/feedback";
import { NOTHING, StartForm } from "../../components/forms/start-form";
import { readOptions, StartOptions, type Typed } from "../../components/forms/start-options";

interface Started {
  id: number;
  created: boolean;
}

export function StartRunDialog({ onClose }: { onClose: () => void }) {
  const [choice, setChoice] = useState(NOTHING);
  const [options, setOptions] = useState<Typed>({});
  const action = useAction<void, Started>({
    request: () => post<Started>("/runs", { workflow: choice.name, args: choice.args, ...readOptions(options) }),
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
        <StartOptions of="run" onChange={setOptions} />
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending} disabled={choice.isInvalid}>
          Start
        </Button>
      </form>
    </Dialog>
  );
}
