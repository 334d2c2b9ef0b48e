/** A dialog that enqueues a job: a form from the parameters of its task. */
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

export function EnqueueDialog({ onClose }: { onClose: () => void }) {
  const [choice, setChoice] = useState(NOTHING);
  const [queue, setQueue] = useState("");
  const [delay, setDelay] = useState("");
  const [rateKey, setRateKey] = useState("");
  const action = useAction<void, Started>({
    request: () => post<Started>("/jobs", { task: choice.name, args: choice.args, queue: queue.trim() || null, delay: delay.trim() || null, rate_key: rateKey.trim() || null }),
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
        <label>
          <span>Queue</span>
          <input className="field" value={queue} onChange={(event) => setQueue(event.target.value)} placeholder="the task's default" />
        </label>
        <label>
          <span>Delay</span>
          <input className="field" value={delay} onChange={(event) => setDelay(event.target.value)} placeholder="none, or 10s, 5m" />
        </label>
        <label>
          <span>Rate key</span>
          <input className="field" value={rateKey} onChange={(event) => setRateKey(event.target.value)} placeholder="the declared one" />
          <small>Jobs with the same key start at the declared rate together.</small>
        </label>
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending} disabled={choice.isInvalid}>
          Enqueue
        </Button>
      </form>
    </Dialog>
  );
}
