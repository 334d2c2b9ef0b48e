/** A new file: its name and its form; it begins in the editor, and is written when it is saved. */
import { type FormEvent, useState } from "react";
import { Button, Dialog } from "../parts/ui";
import { go } from "../router";
import { cleaned, pageOf, wrongName } from "./paths";

const STEMS = (path: string) => (path.split("/").at(-1) ?? "").replace(/\.[^.]*$/, "");

export const BEGINNINGS = {
  pipeline: { label: "Pipeline", about: "States that are made from others, as a graph of nodes.", ending: ".json" },
  stages: { label: "Pipeline as stages", about: "States that are made one from another, as a list.", ending: ".json" },
  trigger: { label: "Workflow", about: "Runs once for each event, or by a schedule.", ending: ".json" },
  dag: { label: "Dag", about: "Tasks in the order in which they depend on each other.", ending: ".yaml" },
} as const;

export type Beginning = keyof typeof BEGINNINGS;

/** The text that a new file begins with. */
export function begin(kind: Beginning, path: string): string {
  const name = STEMS(path).replaceAll(/[^A-Za-z0-9_-]/g, "-");
  if (kind === "dag") return path.endsWith(".json") ? `${JSON.stringify({ name, nodes: [] }, null, 2)}\n` : `name: ${name}\nnodes: []\n`;
  if (kind === "stages") return `${JSON.stringify({ name, mode: "pipeline", stateRoot: "states/", scanInterval: 60, stages: [] }, null, 2)}\n`;
  if (kind === "trigger") return `${JSON.stringify({ name, mode: "trigger", nodes: [], connections: [] }, null, 2)}\n`;
  return `${JSON.stringify({ name, mode: "pipeline", stateRoot: "states/", scanInterval: 60, nodes: [], connections: [] }, null, 2)}\n`;
}

export const isBeginning = (text: string | null): text is Beginning => text !== null && text in BEGINNINGS;

export function NewFile({ taken, onClose }: { taken: string[]; onClose: () => void }) {
  const [name, setName] = useState("");
  const [kind, setKind] = useState<Beginning>("pipeline");
  const clean = cleaned(name);
  const path = /\.(json|yaml|yml)$/.test(clean) ? clean : clean && clean + BEGINNINGS[kind].ending;
  const isYaml = /\.ya?ml$/.test(path);
  const wrong = wrongName(path, taken) ?? (isYaml && kind !== "dag" ? "Only dags are written in YAML: let the name end in .json." : null);
  const open = (event: FormEvent) => {
    event.preventDefault();
    if (path && !wrong) go(`${pageOf(path)}?new=${kind}`);
  };
  return (
    <Dialog title="New workflow file" onClose={onClose}>
      <form className="form" onSubmit={open}>
        <label>
          <span>Name</span>
          <input className="field mono" value={name} placeholder="auto-blog" autoComplete="off" spellCheck={false} aria-invalid={wrong !== null} onChange={(event) => setName(event.target.value)} />
          {wrong ? <small className="wrong">{wrong}</small> : <small>{path ? `It will be ${path}.` : "Letters, digits, dashes; folders with a slash."}</small>}
        </label>
        <fieldset>
          <legend>What it is</legend>
          {(Object.keys(BEGINNINGS) as Beginning[]).map((each) => (
            <label key={each} className="check">
              <input type="radio" name="kind" checked={kind === each} onChange={() => setKind(each)} />
              <span>{BEGINNINGS[each].label}</span>
              <small>{BEGINNINGS[each].about}</small>
            </label>
          ))}
        </fieldset>
        <footer className="actions">
          <Button kind="main" type="submit" disabled={!path || wrong !== null}>
            Begin
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
