/** A dialog that enqueues a job: a form from the parameters of its task. */
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

export function EnqueueDialog({ onClose }: { onClose: () => void }) {
  const [choice, setChoice] = useState(NOTHING);
  const [options, setOptions] = useState<Typed>({});
  const action = useAction<void, Started>({
    request: () => post<Started>("/jobs", { task: choice.name, args: choice.args, ...readOptions(options) }),
    message: (job) => (job.created ? `Enqueued job ${job.id}.` : `Job ${job.id} already exists.`),
    onSuccess: (job) => {
      onClose();
      go(`/jobs/${job.id}`);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate();
  };
  return (
    <Dialog title="Enqueue a job" onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <StartForm label="Task" kinds={["task"]} onChange={setChoice} />
        <StartOptions of="job" onChange={setOptions} />
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending} disabled={choice.isInvalid}>
          Enqueue
        </Button>
      </form>
    </Dialog>
  );
}
