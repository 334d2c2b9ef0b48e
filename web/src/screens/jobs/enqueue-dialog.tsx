/** A dialog that enqueues a job. */
import { type FormEvent, useState } from "react";
import { post } from "../../api/client";
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

export function EnqueueDialog({ onClose }: { onClose: () => void }) {
  const [task, setTask] = useState("");
  const [args, setArgs] = useState("{}");
  const [queue, setQueue] = useState("");
  const [delay, setDelay] = useState("");
  const read = parseJson(args);
  const action = useAction<void, Started>({
    request: () => post<Started>("/jobs", { task: task.trim(), args: read.value, queue: queue.trim() || null, delay: delay.trim() || null }),
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
        <label>
          <span>Task</span>
          <input className="field" value={task} onChange={(event) => setTask(event.target.value)} required autoFocus />
          <small>The name of a task: a function decorated with @app.task.</small>
        </label>
        <label>
          <span>Arguments</span>
          <textarea className="field" rows={4} value={args} onChange={(event) => setArgs(event.target.value)} aria-invalid={read.wrong !== undefined} />
          {read.wrong ? <small className="wrong">{read.wrong}</small> : <small>A JSON object with the task's parameters by name.</small>}
        </label>
        <label>
          <span>Queue</span>
          <input className="field" value={queue} onChange={(event) => setQueue(event.target.value)} placeholder="the task's default" />
        </label>
        <label>
          <span>Delay</span>
          <input className="field" value={delay} onChange={(event) => setDelay(event.target.value)} placeholder="none, or 10s, 5m" />
        </label>
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending} disabled={read.wrong !== undefined}>
          Enqueue
        </Button>
      </form>
    </Dialog>
  );
}
