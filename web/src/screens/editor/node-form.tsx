/** The form of the selected node or stage, or of the file if nothing is selected. */
import { useEffect, useState } from "react";
import { Button } from "../../components/button";
import { Panel } from "../../components/layout";
import { type Box, type Diagram, entries, type FileFormat, FORMATS } from "./diagram/diagram";
import { modeOf } from "./diagram/graph-format";
import { thenOf } from "./diagram/stages-format";
import { Field, UNKNOWN } from "./fields";
import type { Data } from "./text/document";
import type { DataSchema, Edit, FieldSchema, FileProblem, Form, Kinds, Step } from "./types";

interface FormProps {
  form: Form;
  data: Data;
  kinds: Kinds;
  files: string[];
  diagram: Diagram;
  problems: FileProblem[];
  locked: boolean;
  /** Apply edits; consecutive edits with the same key are one undo step. */
  onEdit: (edits: Edit[], key?: string) => void;
}

/** The fields of a schema at a path of the file, and other fields found there. */
interface Section {
  title?: string;
  place: Step[];
  value: Data;
  schema: DataSchema;
  hide: string[];
}

function Fields({ section, props }: { section: Section; props: FormProps }) {
  const { schema, value, place, hide } = section;
  const known = Object.entries(schema.properties).filter(([name, each]) => !hide.includes(name) && (!each.deprecated || name in value));
  const others = Object.keys(value).filter((name) => !(name in schema.properties) && !hide.includes(name));
  const lists: Record<string, string[]> = { tasks: props.kinds.tasks, queues: props.kinds.queues, transforms: props.kinds.transforms, files: props.files, credentials: props.kinds.credentials };
  const groups = (schema.allOf ?? []).map((group) => group.anyOf.map((each) => each.required[0] ?? ""));
  const isNeeded = (name: string) => (schema.required?.includes(name) ?? false) || groups.some((group) => group[0] === name && !group.some((each) => each !== name && each in value));
  const change = (name: string, next: unknown) => props.onEdit([{ path: [...place, name], value: next }], [...place, name].join("."));
  const problemsAt = (name: string) => props.problems.filter((each) => starts(each.place, [...place, name]));
  const one = ([name, each]: [string, FieldSchema]) => (
    <Field key={name} name={name} schema={each} value={value[name]} required={isNeeded(name)} disabled={props.locked} isDag={props.form === "dag"} suggestions={each.suggest ? lists[each.suggest] : undefined} problems={problemsAt(name)} onChange={(next) => change(name, next)} />
  );
  // Fixed when the form opens, so that a field does not move while it is edited.
  const [there] = useState(() => new Set(Object.keys(value)));
  const isRare = ([name, each]: [string, FieldSchema]) => each.rare === true && !there.has(name);
  const rare = known.filter(isRare);
  return (
    <>
      {section.title && <h3>{section.title}</h3>}
      {known.filter((each) => !isRare(each)).map(one)}
      {others.map((name) => one([name, schema.additionalProperties ? { description: "A custom field." } : UNKNOWN]))}
      {rare.length > 0 && (
        <details className="rare">
          <summary>More: {rare.map(([name]) => name).join(", ")}</summary>
          <div className="form">{rare.map(one)}</div>
        </details>
      )}
    </>
  );
}

/** The name that other nodes use for a box. */
const nameOf = (form: Form, entry: Data): string => String((form === "stages" ? entry.id : (entry.name ?? entry.id)) ?? "");

const starts = (place: Step[], head: Step[]) => head.every((step, index) => place[index] === step);

const object = (value: unknown): Data => (value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Data) : {});

/** The form of one box. */
export function BoxForm({ box, onRename, onChoose, onDelete, ...props }: FormProps & { box: Box; onRename: (name: string) => void; onChoose: (id: string) => void; onDelete: () => void }) {
  const format = FORMATS[props.form];
  const entry = entries(props.data, format.list)[box.at] ?? {};
  const place: Step[] = [format.list, box.at];
  const kind = format.kindOf(entry, props.kinds);
  const own = props.problems.filter((each) => starts(each.place, place));
  const sections = sectionsOf(props, entry, place, format);
  const shown = sections.flatMap((section) => Object.keys({ ...section.schema.properties, ...section.value }).map((name) => [...section.place, name]));
  const loose = own.filter((each) => !shown.some((field) => starts(each.place, field)));
  return (
    <Panel
      className="box-form"
      title={box.label}
      aside={
        <Button kind="quiet" onClick={onDelete} disabled={props.locked}>
          Remove
        </Button>
      }
    >
      <div className="pad form">
        <p className="soft">{kind ? `${kind.type}: ${kind.about.replaceAll("`", "")}` : `This application does not know the type ${box.type}.`}</p>
        {loose.map((each) => (
          <p key={each.message} className={each.severity === "error" ? "wrong" : "doubt"}>
            {each.message}
          </p>
        ))}
        <Name name={nameOf(props.form, entry)} label={props.form === "stages" ? "id" : "name"} locked={props.locked} onRename={onRename} />
        {sections.map((section) => (
          <Fields key={section.place.join(".")} section={section} props={props} />
        ))}
        <Before box={box} onChoose={onChoose} {...props} />
      </div>
    </Panel>
  );
}

function sectionsOf(props: FormProps, entry: Data, place: Step[], format: FileFormat): Section[] {
  const kind = format.kindOf(entry, props.kinds);
  const none: DataSchema = { properties: {}, additionalProperties: true };
  if (props.form === "dag") return [{ place, value: entry, schema: kind?.schema ?? none, hide: ["name", "deps"] }];
  if (props.form === "graph") {
    const data: Section = { place: [...place, "data"], value: object(entry.data), schema: kind?.schema ?? none, hide: [] };
    const rest: Section = { place, value: entry, schema: { properties: { agentConfig: { type: "object", rare: true, description: "How many run at once, and where.", properties: { concurrencyGroup: { type: "string", description: "Nodes of a group run one at a time." }, tags: { type: "array", items: { type: "string" }, description: "The first is the queue of its builds." } } } } }, hide: ["id", "typeId", "name", "position", "data"] };
    return [data, rest];
  }
  const found: Section[] = [{ place, value: entry, schema: kind?.schema ?? none, hide: ["id", "type", "input", "node", "then"] }];
  if (kind?.type !== "transform") return found;
  const node = object(entry.node);
  found.push(...nodeSections(props, "Transform", [...place, "node"], node, ["then"]));
  if (node.typeId === "if") {
    const then = thenOf(entry) ?? { place: ["then"], node: {} };
    found.push(...nodeSections(props, "Then, where the condition holds", [...place, ...then.place], then.node, []));
  }
  return found;
}

/** The fields of a node that is written inside a stage: its type, and its data. */
function nodeSections(props: FormProps, title: string, place: Step[], node: Data, hide: string[]): Section[] {
  const none: DataSchema = { properties: {}, additionalProperties: true };
  const by = props.kinds.kinds.find((each) => each.form === "graph" && each.type === node.typeId);
  const choices = [...props.kinds.kinds.filter((each) => each.form === "graph" && ["work", "own"].includes(each.group)).map((each) => each.type), ...props.kinds.transforms];
  return [
    { title, place, value: { typeId: node.typeId ?? "" }, schema: { properties: { typeId: { enum: choices, description: by?.about ?? "A node type, or a transform of the application." } }, required: ["typeId"] }, hide: [] },
    { place: [...place, "data"], value: object(node.data), schema: by?.schema ?? none, hide },
  ];
}

/** A name; applied when the field loses focus, because references are renamed too. */
function Name({ name, label, locked, onRename }: { name: string; label: string; locked: boolean; onRename: (name: string) => void }) {
  const [text, setText] = useState(name);
  useEffect(() => setText(name), [name]);
  const done = () => {
    const next = text.trim();
    if (next && next !== name) onRename(next);
    else setText(name);
  };
  return (
    <div className="entry">
      <label htmlFor="box-name">{label}</label>
      <input id="box-name" className="field mono" value={text} disabled={locked} spellCheck={false} autoComplete="off" onChange={(event) => setText(event.target.value)} onBlur={done} onKeyDown={(event) => event.key === "Enter" && done()} />
      <small>References to it are updated.</small>
    </div>
  );
}

/** The incoming lines of a box as a list, usable with the keyboard. */
function Before({ box, form, data, diagram, locked, onEdit, onChoose }: FormProps & { box: Box; onChoose: (id: string) => void }) {
  const format = FORMATS[form];
  const [wanted, setWanted] = useState("");
  if (box.isStart) return null;
  const lines = diagram.lines.filter((line) => line.to === box.id);
  const labels = new Map(diagram.boxes.map((each) => [each.id, each.label]));
  const choices = diagram.boxes.filter((each) => each.id !== box.id).flatMap((each) => (each.exits.length ? each.exits.map((exit) => ({ box: each, exit: exit as string | null })) : [{ box: each, exit: null }]));
  const open = choices.filter((each) => !lines.some((line) => line.from === each.box.id && line.exit === each.exit && !line.implied));
  const add = () => {
    const found = open.find((each) => `${each.box.id} ${each.exit ?? ""}` === wanted);
    if (found) onEdit(format.connect(data, diagram, found.box, box, found.exit));
    setWanted("");
  };
  return (
    <fieldset className="before">
      <legend>Runs after</legend>
      {lines.length === 0 && <small>No incoming connection.</small>}
      <ul>
        {lines.map((line) => (
          <li key={line.id}>
            <button type="button" className="link" onClick={() => onChoose(line.from)}>
              {labels.get(line.from)}
              {line.exit && ` (${line.exit})`}
            </button>
            {line.implied ? (
              <small>implied by a reference</small>
            ) : (
              <Button kind="quiet" disabled={locked} aria-label={`Remove the connection from ${labels.get(line.from)}`} onClick={() => onEdit(format.cut(data, diagram, [line]))}>
                ✕
              </Button>
            )}
          </li>
        ))}
      </ul>
      {open.length > 0 && (
        <div className="row">
          <select className="select grow" aria-label="Connect from" value={wanted} disabled={locked} onChange={(event) => setWanted(event.target.value)}>
            <option value="">connect from …</option>
            {open.map((each) => (
              <option key={`${each.box.id} ${each.exit ?? ""}`} value={`${each.box.id} ${each.exit ?? ""}`}>
                {each.box.label}
                {each.exit && ` (${each.exit})`}
              </option>
            ))}
          </select>
          <Button disabled={locked || !wanted} onClick={add}>
            Connect
          </Button>
        </div>
      )}
    </fieldset>
  );
}

/** Fields of a file that say nothing where it has no states. */
const OF_PIPELINES = ["stateRoot", "stateStore", "scanInterval"];

/** The form of the file's own fields. */
export function FileForm(props: FormProps) {
  const list = FORMATS[props.form].list;
  const isTrigger = props.form === "graph" && modeOf(props.data) === "trigger";
  const unused = isTrigger ? OF_PIPELINES.filter((name) => props.data[name] === undefined) : [];
  const hide = [list, "connections", ...unused];
  const loose = props.problems.filter((each) => each.node === null && each.place.length === 0);
  return (
    <Panel title="File" className="box-form">
      <div className="pad form">
        {loose.map((each) => (
          <p key={each.message} className={each.severity === "error" ? "wrong" : "doubt"}>
            {each.message}
          </p>
        ))}
        <Fields section={{ place: [], value: props.data, schema: props.kinds.files[props.form], hide }} props={props} />
      </div>
    </Panel>
  );
}
