/** Dialogs for actions on a run: cancel it or a node, retry, run again, fork, send an event. */
import { type FormEvent, useState } from "react";
import { post } from "../../api/client";
import type { Run } from "../../api/types";
import { useAction } from "../../api/use-action";
import { go } from "../../app/router";
import { Button } from "../../components/button";
import { parseJson } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { ErrorMessage } from "../../components/feedback";

interface Started {
  id: number;
}

const open = (run: Started) => go(`/runs/${run.id}`);

export function CancelRun({ run, onClose }: { run: Run; onClose: () => void }) {
  const [reason, setReason] = useState("");
  const action = useAction({ request: () => post(`/runs/${run.id}/cancel`, { reason: reason.trim() || null }), message: () => `Run r${run.id} was asked to stop.`, onSuccess: onClose });
  return (
    <Dialog title={`Cancel run r${run.id}?`} onClose={onClose}>
      <p>Its running steps are stopped and no further step starts.</p>
      <div className="form">
        <label>
          <span>Reason</span>
          <input className="field" value={reason} onChange={(event) => setReason(event.target.value)} placeholder="optional, shown in the history" />
        </label>
      </div>
      <footer>
        <Button onClick={onClose}>Keep running</Button>
        <Button kind="danger" busy={action.isPending} onClick={() => action.mutate()}>
          Cancel run
        </Button>
      </footer>
    </Dialog>
  );
}

/** Cancel a node of a dag and all that follows from it. */
export function CancelNode({ run, node, onClose }: { run: Run; node: string; onClose: () => void }) {
  const [reason, setReason] = useState("");
  const action = useAction<void, { nodes: string[] }>({ request: () => post<{ nodes: string[] }>(`/runs/${run.id}/cancel_node`, { node, reason: reason.trim() || null }), message: (done) => `Cancelled in r${run.id}: ${done.nodes.join(", ")}.`, onSuccess: onClose });
  return (
    <Dialog title={`Cancel node ${node}?`} onClose={onClose}>
      <p>
        <b>{node}</b> and all nodes that follow from it are cancelled. The other nodes of r{run.id} go on.
      </p>
      <div className="form">
        <label>
          <span>Reason</span>
          <input className="field" value={reason} onChange={(event) => setReason(event.target.value)} placeholder="optional, shown with the nodes" />
        </label>
      </div>
      {action.error && <ErrorMessage error={action.error} />}
      <footer>
        <Button onClick={onClose}>Keep running</Button>
        <Button kind="danger" busy={action.isPending} onClick={() => action.mutate()}>
          Cancel node
        </Button>
      </footer>
    </Dialog>
  );
}

/** Start the steps of a run again that needs attention. */
export function RetryRun({ run, onClose }: { run: Run; onClose: () => void }) {
  const action = useAction({ request: () => post(`/runs/${run.id}/retry`, {}), message: () => `Run r${run.id} goes on.`, onSuccess: onClose });
  return (
    <Dialog title={`Retry run r${run.id}?`} onClose={onClose}>
      <p>Its steps in progress count as failed attempts: what they wrote is undone, and they start again from their beginning.</p>
      <footer>
        <Button onClick={onClose}>Leave it</Button>
        <Button busy={action.isPending} onClick={() => action.mutate()}>
          Retry
        </Button>
      </footer>
    </Dialog>
  );
}

/** Run a dag again: from a node on, or only the nodes that did not succeed. */
export function RerunDag({ run, start, onClose }: { run: Run; start: string | null; onClose: () => void }) {
  const [edited, setEdited] = useState("");
  const read = edited.trim() ? parseJson(edited) : {};
  const body = () => ({ ...(start ? { start } : {}), ...(edited.trim() && start ? { edited: read.value } : {}) });
  const action = useAction<void, Started>({ request: () => post<Started>(`/runs/${run.id}/rerun`, body()), message: (again) => `Started run r${again.id}, which repeats r${run.id}.`, onSuccess: (again) => { onClose(); open(again); } });
  return (
    <Dialog title={start ? `Run again from ${start}` : `Run r${run.id} again`} onClose={onClose}>
      <p>{start ? <>A new run executes <b>{start}</b> and all nodes after it again. Results of earlier nodes are reused.</> : <>A new run executes the nodes that did not succeed. Results of the others are reused.{run.state === "succeeded" && " To execute a node again that did succeed, select it in the graph."}</>}</p>
      {start && (
        <div className="form">
          <label>
            <span>Changed arguments</span>
            <textarea className="field" rows={3} value={edited} onChange={(event) => setEdited(event.target.value)} placeholder="unchanged" aria-invalid={read.wrong !== undefined} />
            {read.wrong ? <small className="wrong">{read.wrong}</small> : <small>A JSON object that replaces the node's arguments; for an input node, the answer.</small>}
          </label>
        </div>
      )}
      {action.error && <ErrorMessage error={action.error} />}
      <footer>
        <Button onClick={onClose}>Close</Button>
        <Button kind="main" busy={action.isPending} disabled={read.wrong !== undefined} onClick={() => action.mutate()}>
          Run again
        </Button>
      </footer>
    </Dialog>
  );
}

/** Start a new run from the state of this one. */
export function ForkRun({ run, at, onClose }: { run: Run; at: number; onClose: () => void }) {
  const action = useAction<void, Started>({ request: () => post<Started>(`/runs/${run.id}/fork`, { at }), message: (fork) => `Started run r${fork.id} as a fork of r${run.id}.`, onSuccess: (fork) => { onClose(); open(fork); } });
  return (
    <Dialog title={`Fork at tick ${at}`} onClose={onClose}>
      <p>
        A new run starts with the state that r{run.id} had after tick {at} and continues independently. This run is not changed.
      </p>
      {action.error && <ErrorMessage error={action.error} />}
      <footer>
        <Button onClick={onClose}>Close</Button>
        <Button kind="main" busy={action.isPending} onClick={() => action.mutate()}>
          Fork
        </Button>
      </footer>
    </Dialog>
  );
}

/** Send an event to a flow. */
export function SendEvent({ run, onClose }: { run: Run; onClose: () => void }) {
  const [type, setType] = useState("HumanResponseEvent");
  const [fields, setFields] = useState('{"response": ""}');
  const [step, setStep] = useState("");
  const read = parseJson(fields);
  const action = useAction({ request: () => post(`/runs/${run.id}/events`, { type: type.trim(), fields: read.value, step: step.trim() || null }), message: () => `Sent ${type} to run r${run.id}.`, onSuccess: onClose });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate();
  };
  return (
    <Dialog title={`Send an event to r${run.id}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Event</span>
          <input className="field" value={type} onChange={(event) => setType(event.target.value)} required />
          <small>The name of the event's class.</small>
        </label>
        <label>
          <span>Fields</span>
          <textarea className="field" rows={4} value={fields} onChange={(event) => setFields(event.target.value)} aria-invalid={read.wrong !== undefined} />
          {read.wrong ? <small className="wrong">{read.wrong}</small> : <small>A JSON object.</small>}
        </label>
        <label>
          <span>Step</span>
          <input className="field" value={step} onChange={(event) => setStep(event.target.value)} placeholder="every step that accepts it" />
        </label>
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending} disabled={read.wrong !== undefined}>
          Send
        </Button>
      </form>
    </Dialog>
  );
}
