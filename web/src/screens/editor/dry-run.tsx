/** Simulates the file for one entity, event or set of arguments, without side effects. */
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useEffect, useState } from "react";
import { postQuery } from "../../api/client";
import { Button } from "../../components/button";
import { parseJson } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { Empty, ErrorMessage } from "../../components/feedback";
import { Tag } from "../../components/state";
import type { Planned, WorkflowDryRun, DryRunField, DryRunNode, DryRunStage } from "./types";

interface DryRunInput {
  entity?: string;
  payload?: unknown;
}

export function DryRun({ path, text, isPipeline, isDag, onClose }: { path: string; text: string; isPipeline: boolean; isDag: boolean; onClose: () => void }) {
  const [entity, setEntity] = useState("");
  const [payload, setPayload] = useState("{}");
  const read = parseJson(payload);
  const trial = useMutation({ mutationFn: (input: DryRunInput) => postQuery<WorkflowDryRun>("/workflow-files/dry-run", { path, text, ...input }) });
  const listed = useMutation({ mutationFn: () => postQuery<WorkflowDryRun>("/workflow-files/dry-run", { path, text }) });
  const { mutate: list } = listed;
  useEffect(() => {
    if (isPipeline) list();
  }, [isPipeline, list]);
  const ask = (event: FormEvent) => {
    event.preventDefault();
    trial.mutate(isPipeline ? { entity: entity.trim() } : { payload: read.value });
  };
  const entities = listed.data?.entities ?? [];
  const notes = [...new Set([...(listed.data?.notes ?? []), ...(trial.data?.notes ?? [])])];
  return (
    <Dialog title="Dry run" wide onClose={onClose}>
      <p className="soft">Simulates the current text, saved or not. Nothing is built, written, requested or run.</p>
      <form className="row" onSubmit={ask}>
        {isPipeline ? (
          <>
            <label htmlFor="entity">Entity</label>
            <input id="entity" className="field mono grow" value={entity} list="entities" autoComplete="off" placeholder={entities.at(-1) ?? "2026-01-15"} onChange={(event) => setEntity(event.target.value)} />
            <datalist id="entities">
              {entities.map((each) => (
                <option key={each} value={each} />
              ))}
            </datalist>
          </>
        ) : (
          <>
            <label htmlFor="payload">{isDag ? "Arguments of the run" : "Payload of the event"}</label>
            <textarea id="payload" className="field" rows={2} spellCheck={false} value={payload} aria-invalid={read.wrong !== undefined} onChange={(event) => setPayload(event.target.value)} />
            {read.wrong && <small className="wrong">{read.wrong}</small>}
          </>
        )}
        <Button kind="main" type="submit" busy={trial.isPending} disabled={isPipeline ? !entity.trim() : read.wrong !== undefined}>
          Run
        </Button>
      </form>
      {listed.error && !trial.data && <ErrorMessage error={listed.error} />}
      {trial.error && <ErrorMessage error={trial.error} />}
      {notes.map((note) => (
        <p key={note} className="doubt">
          {note}
        </p>
      ))}
      {isPipeline && listed.data?.looked && entities.length === 0 && <p className="soft">No entities yet: no file matches the pattern of the first stage.</p>}
      {trial.data && <Result tried={trial.data} />}
    </Dialog>
  );
}

function Result({ tried }: { tried: WorkflowDryRun }) {
  if (tried.stages.length + tried.nodes.length + tried.plan.length === 0) return <Empty title="Nothing would run" />;
  return (
    <div className="tried" role="region" aria-label="Result of the dry run">
      {tried.stages.map((stage) => (
        <Stage key={stage.stage} stage={stage} />
      ))}
      {tried.nodes.map((node) => (
        <section key={node.id}>
          <Node node={node} />
        </section>
      ))}
      {tried.plan.map((node) => (
        <DagNode key={node.node} node={node} />
      ))}
    </div>
  );
}

const VERDICTS = {
  build: { tone: "run", text: "would be built" },
  wait: { tone: "wait", text: "would wait" },
  fresh: { tone: "ok", text: "is up to date" },
  unknown: { tone: "off", text: "unknown" },
  none: { tone: "off", text: "nothing to do" },
} as const;

function Stage({ stage }: { stage: DryRunStage }) {
  const verdict = VERDICTS[stage.verdict];
  return (
    <section>
      <header>
        <b>{stage.stage}</b> <Tag tone={verdict.tone}>{verdict.text}</Tag> <span className="soft">{stage.why}</span>
      </header>
      <dl className="facts">
        {stage.inputs.map((input) => (
          <FromTo key={input.name} name={input.name ? `from ${input.name}` : "from"} paths={input.paths} pattern={input.pattern} missing={input.missing} />
        ))}
        {stage.output && <FromTo name="to" paths={[stage.output]} pattern="" missing={[]} />}
      </dl>
      {stage.nodes.map((node) => (
        <Node key={node.id} node={node} />
      ))}
      {stage.content !== null && (
        <>
          <h3>Content</h3>
          <pre className="trace">{stage.content || "empty"}</pre>
        </>
      )}
    </section>
  );
}

function FromTo({ name, paths, pattern, missing }: { name: string; paths: string[]; pattern: string; missing: string[] }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>
        {paths.length === 0 && <span className="faint">{pattern}: no file</span>}
        {paths.slice(0, 8).map((path) => (
          <div key={path}>
            <code>{path}</code> {missing.includes(path) && <small className="faint">does not exist yet</small>}
          </div>
        ))}
        {paths.length > 8 && <small className="faint">and {paths.length - 8} more</small>}
      </dd>
    </>
  );
}

function Node({ node }: { node: DryRunNode }) {
  return (
    <div className="tried-node">
      <div>
        <b>{node.name}</b> <small className="faint">{node.type}</small> {node.items > 1 && <Tag>{node.items} items</Tag>} {node.note && <small className="soft">{node.note}</small>}
      </div>
      <FieldList fields={node.fields} />
      {node.is_run && <FieldList fields={[{ name: "output", value: node.output }]} />}
    </div>
  );
}

function DagNode({ node }: { node: Planned }) {
  const tone = node.skipped ? "off" : node.skipped === null ? "wait" : "run";
  return (
    <section>
      <header>
        <Tag>{node.level + 1}</Tag> <b>{node.node}</b> <Tag tone={tone}>{node.skipped ? "would be skipped" : node.skipped === null ? "may be skipped" : "would run"}</Tag> <span className="soft">{node.note}</span>
      </header>
      {node.after.length > 0 && <small className="faint">after {node.after.join(", ")}</small>}
      <FieldList fields={node.fields} />
    </section>
  );
}

function FieldList({ fields }: { fields: DryRunField[] }) {
  if (fields.length === 0) return null;
  return (
    <dl className="facts">
      {fields.map((field) => (
        <FieldValue key={field.name} field={field} />
      ))}
    </dl>
  );
}

function FieldValue({ field }: { field: DryRunField }) {
  const text = typeof field.value === "string" ? field.value : field.value === undefined ? "null" : JSON.stringify(field.value);
  return (
    <>
      <dt>{field.name}</dt>
      <dd>
        <code>{text}</code>
        {field.waits && <small className="doubt"> {field.waits}</small>}
        {field.wrong && <small className="wrong"> {field.wrong}</small>}
      </dd>
    </>
  );
}
