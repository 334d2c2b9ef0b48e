/** Enqueueing a job, or starting a run, by hand. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { parseJson } from "../parts/json";
import { Button, Dialog, Trouble } from "../parts/ui";
import { go } from "../router";
import type { Declared, List } from "../types";

interface Started {
  id: number;
  created: boolean;
}

/** A job by its task and arguments. */
export function Enqueue({ onClose }: { onClose: () => void }) {
  const [task, setTask] = useState("");
  const [args, setArgs] = useState("{}");
  const [queue, setQueue] = useState("");
  const [delay, setDelay] = useState("");
  const read = parseJson(args);
  const doing = useAction<void, Started>({
    act: () => post<Started>("/jobs", { task: task.trim(), args: read.value, queue: queue.trim() || null, delay: delay.trim() || null }),
    told: (job) => (job.created ? `Job ${job.id} is enqueued.` : `Job ${job.id} was there already.`),
    then: (job) => {
      onClose();
      go(`/jobs/${job.id}`);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    doing.mutate();
  };
  return (
    <Dialog title="Enqueue a job" onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Task</span>
          <input className="field" value={task} onChange={(event) => setTask(event.target.value)} required autoFocus />
          <small>The name of a function with @app.task.</small>
        </label>
        <label>
          <span>Arguments</span>
          <textarea className="field" rows={4} value={args} onChange={(event) => setArgs(event.target.value)} aria-invalid={read.wrong !== undefined} />
          {read.wrong ? <small className="wrong">{read.wrong}</small> : <small>A JSON object: the task's parameters by name.</small>}
        </label>
        <label>
          <span>Queue</span>
          <input className="field" value={queue} onChange={(event) => setQueue(event.target.value)} placeholder="the task's own" />
        </label>
        <label>
          <span>Delay</span>
          <input className="field" value={delay} onChange={(event) => setDelay(event.target.value)} placeholder="none; or 10s, 5m" />
        </label>
        {doing.error && <Trouble error={doing.error} />}
        <Button kind="main" type="submit" busy={doing.isPending} disabled={read.wrong !== undefined}>
          Enqueue
        </Button>
      </form>
    </Dialog>
  );
}

/** A run of a declared flow or dag. */
export function StartRun({ onClose }: { onClose: () => void }) {
  const declared = useQuery({ queryKey: ["workflows"], queryFn: () => get<List<Declared>>("/workflows") });
  const [workflow, setWorkflow] = useState("");
  const [args, setArgs] = useState("{}");
  const [key, setKey] = useState("");
  const read = parseJson(args);
  const chosen = workflow || declared.data?.items[0]?.name || "";
  const doing = useAction<void, Started>({
    act: () => post<Started>("/runs", { workflow: chosen, args: read.value, key: key.trim() || null }),
    told: (run) => (run.created ? `Run r${run.id} has started.` : `Run r${run.id} was there already.`),
    then: (run) => {
      onClose();
      go(`/runs/${run.id}`);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    doing.mutate();
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
          {declared.data?.items.length === 0 && <small>This application declares none: use @app.workflow or app.dag(…).</small>}
        </label>
        <label>
          <span>Arguments</span>
          <textarea className="field" rows={4} value={args} onChange={(event) => setArgs(event.target.value)} aria-invalid={read.wrong !== undefined} />
          {read.wrong ? <small className="wrong">{read.wrong}</small> : <small>A JSON object: fields of the start event, or the run's arguments.</small>}
        </label>
        <label>
          <span>Key</span>
          <input className="field" value={key} onChange={(event) => setKey(event.target.value)} placeholder="none" />
          <small>With a key there is one run only, however often this is sent.</small>
        </label>
        {doing.error && <Trouble error={doing.error} />}
        <Button kind="main" type="submit" busy={doing.isPending} disabled={read.wrong !== undefined || !chosen}>
          Start
        </Button>
      </form>
    </Dialog>
  );
}
