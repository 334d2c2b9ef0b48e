/** The dialog for a new file: name and format. The file is written when it is first saved. */
import { type FormEvent, useState } from "react";
import { go } from "../../../app/router";
import { Button } from "../../../components/button";
import { Dialog } from "../../../components/dialog";
import { cleanName, editorUrl, nameProblem } from "./paths";

const stem = (path: string) => (path.split("/").at(-1) ?? "").replace(/\.[^.]*$/, "");

const TEMPLATES = {
  pipeline: { label: "Pipeline", about: "Builds states from other states; a graph of nodes.", ending: ".json" },
  stages: { label: "Pipeline as stages", about: "Builds states one from another; a list of stages.", ending: ".json" },
  trigger: { label: "Workflow", about: "Runs for each event, or on a schedule.", ending: ".json" },
  dag: { label: "Dag", about: "Tasks in the order of their dependencies.", ending: ".yaml" },
} as const;

type Template = keyof typeof TEMPLATES;

/** The initial text of a new file. */
export function newFileText(kind: Template, path: string): string {
  const name = stem(path).replaceAll(/[^A-Za-z0-9_-]/g, "-");
  if (kind === "dag") return path.endsWith(".json") ? `${JSON.stringify({ name, nodes: [] }, null, 2)}\n` : `name: ${name}\nnodes: []\n`;
  if (kind === "stages") return `${JSON.stringify({ name, mode: "pipeline", stateRoot: "states/", scanInterval: 60, stages: [] }, null, 2)}\n`;
  if (kind === "trigger") return `${JSON.stringify({ name, mode: "trigger", nodes: [], connections: [] }, null, 2)}\n`;
  return `${JSON.stringify({ name, mode: "pipeline", stateRoot: "states/", scanInterval: 60, nodes: [], connections: [] }, null, 2)}\n`;
}

export const isTemplate = (text: string | null): text is Template => text !== null && text in TEMPLATES;

export function NewFile({ taken, onClose }: { taken: string[]; onClose: () => void }) {
  const [name, setName] = useState("");
  const [kind, setKind] = useState<Template>("pipeline");
  const clean = cleanName(name);
  const path = /\.(json|yaml|yml)$/.test(clean) ? clean : clean && clean + TEMPLATES[kind].ending;
  const isYaml = /\.ya?ml$/.test(path);
  const problem = nameProblem(path, taken) ?? (isYaml && kind !== "dag" ? "Only dags can be YAML files. Use a name that ends with .json." : null);
  const open = (event: FormEvent) => {
    event.preventDefault();
    if (path && !problem) go(`${editorUrl(path)}?new=${kind}`);
  };
  return (
    <Dialog title="New workflow file" onClose={onClose}>
      <form className="form" onSubmit={open}>
        <label>
          <span>Name</span>
          <input className="field mono" value={name} placeholder="auto-blog" autoComplete="off" spellCheck={false} aria-invalid={problem !== null} onChange={(event) => setName(event.target.value)} />
          {problem ? <small className="wrong">{problem}</small> : <small>{path ? `Creates ${path}.` : "Letters, digits and dashes; use a slash for folders."}</small>}
        </label>
        <fieldset>
          <legend>Format</legend>
          {(Object.keys(TEMPLATES) as Template[]).map((each) => (
            <label key={each} className="check">
              <input type="radio" name="kind" checked={kind === each} onChange={() => setKind(each)} />
              <span>{TEMPLATES[each].label}</span>
              <small>{TEMPLATES[each].about}</small>
            </label>
          ))}
        </fieldset>
        <footer className="actions">
          <Button kind="main" type="submit" disabled={!path || problem !== null}>
            Create
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
