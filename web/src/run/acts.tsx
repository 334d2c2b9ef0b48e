/** What can be done to a run: cancel, repeat, fork, send an event. */
import { type FormEvent, useState } from "react";
import { post } from "../api";
import { useAction } from "../parts/acting";
import { parseJson } from "../parts/json";
import { Button, Dialog, Trouble } from "../parts/ui";
import { go } from "../router";
import type { Run } from "../types";

interface Started {
  id: number;
}

const open = (run: Started) => go(`/runs/${run.id}`);

export function CancelRun({ run, onClose }: { run: Run; onClose: () => void }) {
  const [reason, setReason] = useState("");
  const doing = useAction({ act: () => post(`/runs/${run.id}/cancel`, { reason: reason.trim() || null }), told: () => `Run r${run.id} was asked to end.`, then: onClose });
  return (
    <Dialog title={`Cancel run r${run.id}?`} onClose={onClose}>
      <p>What it has under way is stopped, and nothing more of it begins.</p>
      <div className="form">
        <label>
          <span>Reason</span>
          <input className="field" value={reason} onChange={(event) => setReason(event.target.value)} placeholder="for those who look later" />
        </label>
      </div>
      <footer>
        <Button onClick={onClose}>Let it run</Button>
        <Button kind="danger" busy={doing.isPending} onClick={() => doing.mutate()}>
          Cancel the run
        </Button>
      </footer>
    </Dialog>
  );
}

/** Repeat a dag's run, from a node on or what did not succeed. */
export function RerunDag({ run, start, onClose }: { run: Run; start: string | null; onClose: () => void }) {
  const [edited, setEdited] = useState("");
  const read = edited.trim() ? parseJson(edited) : {};
  const body = () => ({ ...(start ? { start } : {}), ...(edited.trim() && start ? { edited: read.value } : {}) });
  const doing = useAction<void, Started>({ act: () => post<Started>(`/runs/${run.id}/rerun`, body()), told: (again) => `Run r${again.id} repeats r${run.id}.`, then: (again) => { onClose(); open(again); } });
  return (
    <Dialog title={start ? `Run again from ${start}` : "Run again what did not succeed"} onClose={onClose}>
      <p>{start ? <>A new run does <b>{start}</b> and all that follows it again. What came before is carried over.</> : "A new run does again what did not succeed here; the rest is carried over."}</p>
      {start && (
        <div className="form">
          <label>
            <span>Other arguments</span>
            <textarea className="field" rows={3} value={edited} onChange={(event) => setEdited(event.target.value)} placeholder="as they were" aria-invalid={read.wrong !== undefined} />
            {read.wrong ? <small className="wrong">{read.wrong}</small> : <small>A JSON object that takes the place of the node's arguments; for a question, the answer.</small>}
          </label>
        </div>
      )}
      {doing.error && <Trouble error={doing.error} />}
      <footer>
        <Button onClick={onClose}>Not now</Button>
        <Button kind="main" busy={doing.isPending} disabled={read.wrong !== undefined} onClick={() => doing.mutate()}>
          Run again
        </Button>
      </footer>
    </Dialog>
  );
}

/** A new run that begins where this one was. */
export function ForkRun({ run, at, onClose }: { run: Run; at: number; onClose: () => void }) {
  const doing = useAction<void, Started>({ act: () => post<Started>(`/runs/${run.id}/fork`, { at }), told: (fork) => `Run r${fork.id} is a fork of r${run.id}.`, then: (fork) => { onClose(); open(fork); } });
  return (
    <Dialog title={`Fork at tick ${at}`} onClose={onClose}>
      <p>
        A new run begins where r{run.id} was after tick {at}, with the same state, and goes its own way from there. This run is left alone.
      </p>
      {doing.error && <Trouble error={doing.error} />}
      <footer>
        <Button onClick={onClose}>Not now</Button>
        <Button kind="main" busy={doing.isPending} onClick={() => doing.mutate()}>
          Fork
        </Button>
      </footer>
    </Dialog>
  );
}

/** An event for a flow that waits. */
export function SendEvent({ run, onClose }: { run: Run; onClose: () => void }) {
  const [type, setType] = useState("HumanResponseEvent");
  const [fields, setFields] = useState('{"response": ""}');
  const [step, setStep] = useState("");
  const read = parseJson(fields);
  const doing = useAction({ act: () => post(`/runs/${run.id}/events`, { type: type.trim(), fields: read.value, step: step.trim() || null }), told: () => `${type} is stored for run r${run.id}.`, then: onClose });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    doing.mutate();
  };
  return (
    <Dialog title={`Send an event to r${run.id}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Event</span>
          <input className="field" value={type} onChange={(event) => setType(event.target.value)} required />
          <small>The name of its class.</small>
        </label>
        <label>
          <span>Fields</span>
          <textarea className="field" rows={4} value={fields} onChange={(event) => setFields(event.target.value)} aria-invalid={read.wrong !== undefined} />
          {read.wrong ? <small className="wrong">{read.wrong}</small> : <small>A JSON object.</small>}
        </label>
        <label>
          <span>Only for step</span>
          <input className="field" value={step} onChange={(event) => setStep(event.target.value)} placeholder="any that accepts it" />
        </label>
        {doing.error && <Trouble error={doing.error} />}
        <Button kind="main" type="submit" busy={doing.isPending} disabled={read.wrong !== undefined}>
          Send
        </Button>
      </form>
    </Dialog>
  );
}
