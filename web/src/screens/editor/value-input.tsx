/** A value of any shape without raw JSON: a text, a list, named fields, or a reference, each edited in place. */
import { useEffect, useId, useState } from "react";
import { Button } from "../../components/button";
import { parseJson } from "../../components/details/json";
import type { FieldSchema } from "./types";

type ValueKind = "text" | "list" | "fields" | "reference";

const isObject = (value: unknown): value is Record<string, unknown> => value !== null && typeof value === "object" && !Array.isArray(value);

/** `{"$from": "node.field"}`, as dags write the value of another node. */
const isReference = (value: unknown): value is { $from: string } => isObject(value) && Object.keys(value).length === 1 && typeof value.$from === "string";

const kindOf = (value: unknown): ValueKind | null => (value === undefined ? null : Array.isArray(value) ? "list" : isReference(value) ? "reference" : isObject(value) ? "fields" : "text");

const EMPTY: Record<ValueKind, unknown> = { text: undefined, list: [], fields: {}, reference: { $from: "" } };

/** The kinds of value that a field may have. */
function kindsOf(schema: FieldSchema, isDag: boolean): ValueKind[] {
  const types = schema.type === undefined ? ["string", "array", "object"] : Array.isArray(schema.type) ? schema.type : [schema.type];
  const kinds: ValueKind[] = [];
  if (types.some((each) => ["string", "number", "integer", "boolean"].includes(each))) kinds.push("text");
  if (types.includes("array")) kinds.push("list");
  if (types.includes("object")) kinds.push("fields");
  if (isDag && (schema.type === undefined || types.includes("object"))) kinds.push("reference");
  return kinds;
}

/** Whether a field is a list of names with values. */
const isPairs = (schema: FieldSchema): boolean => schema.items?.properties?.name !== undefined && schema.items.properties.value !== undefined;

interface Props {
  id?: string;
  label: string;
  schema: FieldSchema;
  value: unknown;
  isDag: boolean;
  disabled: boolean;
  onChange: (value: unknown) => void;
}

export function ValueInput({ id, label, schema, value, isDag, disabled, onChange }: Props) {
  const kinds = kindsOf(schema, isDag);
  const [wanted, setWanted] = useState<ValueKind | null>(null);
  const kind = kindOf(value) ?? wanted ?? kinds[0] ?? "text";
  // A list of names and values is written as rows; one that a file has as an object stays one.
  const options = isPairs(schema) ? [kind] : kinds.includes(kind) ? kinds : [...kinds, kind];
  const choose = (next: ValueKind) => {
    setWanted(next);
    onChange(EMPTY[next]);
  };
  return (
    <div className="value-input">
      {options.length > 1 && (
        <select className="select kind-of" aria-label={`Kind of ${label}`} value={kind} disabled={disabled} onChange={(event) => choose(event.target.value as ValueKind)}>
          {options.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      )}
      {kind === "text" && <TextCell id={id} label={label} schema={schema} value={value} disabled={disabled} onChange={onChange} />}
      {kind === "reference" && <TextCell id={id} label={`${label} from`} schema={{ type: "string", description: "node.field" }} value={(value as { $from: string }).$from} disabled={disabled} onChange={(next) => onChange({ $from: String(next ?? "") })} />}
      {kind === "list" && <ListCells label={label} schema={schema} value={Array.isArray(value) ? value : []} isDag={isDag} disabled={disabled} onChange={onChange} />}
      {kind === "fields" && <FieldCells label={label} schema={schema} value={isObject(value) ? value : {}} isDag={isDag} disabled={disabled} onChange={onChange} />}
    </div>
  );
}

/** A text; where the schema leaves the type open, one that is a number, true, false or null is that. */
function TextCell({ id, label, schema, value, disabled, onChange }: Omit<Props, "isDag">) {
  const types = schema.type === undefined ? [] : Array.isArray(schema.type) ? schema.type : [schema.type];
  const isOpen = !(types.length === 1 && types[0] === "string");
  const written = writeCell(value, isOpen);
  const [text, setText] = useState(written);
  // Show changes made elsewhere, such as undo, but keep what is typed, such as `1.`.
  useEffect(() => setText((now) => (writeCell(readCell(now, isOpen), isOpen) === written ? now : written)), [written, isOpen]);
  const shared = { id, className: "field mono", "aria-label": label, disabled, spellCheck: false, value: text };
  const change = (next: string) => {
    setText(next);
    onChange(next === "" ? undefined : readCell(next, isOpen));
  };
  if (schema.format === "textarea" || schema.format === "expression" || text.includes("\n") || text.length > 60) {
    return <textarea rows={Math.min(12, Math.max(2, text.split("\n").length))} {...shared} onChange={(event) => change(event.target.value)} />;
  }
  return <input type="text" autoComplete="off" {...shared} onChange={(event) => change(event.target.value)} />;
}

function readCell(text: string, isOpen: boolean): unknown {
  if (!isOpen || !/^(-?\d+(\.\d+)?([eE][+-]?\d+)?|true|false|null|"(.|\n)*")$/.test(text)) return text;
  const read = parseJson(text);
  return read.wrong === undefined ? read.value : text;
}

function writeCell(value: unknown, isOpen: boolean): string {
  if (value === undefined) return "";
  if (typeof value !== "string") return JSON.stringify(value);
  return readCell(value, isOpen) === value ? value : JSON.stringify(value);
}

/** The entries of a list; pairs of a name and a value where the schema says so. */
function ListCells({ label, schema, value, isDag, disabled, onChange }: Omit<Props, "id" | "value"> & { value: unknown[] }) {
  const item: FieldSchema = (schema.items as FieldSchema | undefined) ?? {};
  const arePairs = isPairs(schema);
  const replace = (at: number, next: unknown) => onChange(value.map((each, index) => (index === at ? (next ?? "") : each)));
  return (
    <div className="cells" role="group" aria-label={label}>
      {value.map((each, at) => {
        const pair = arePairs && isObject(each) ? each : null;
        return (
          // biome-ignore lint/suspicious/noArrayIndexKey: the entries have no other identity
          <div className="cell" key={at}>
            {pair ? (
              <>
                <TextCell label={`${label} ${at + 1} name`} schema={{ type: "string" }} value={pair.name} disabled={disabled} onChange={(name) => replace(at, { ...pair, name: name ?? "" })} />
                <ValueInput label={`${label} ${at + 1} value`} schema={{ type: ["string", "number"] }} value={pair.value} isDag={isDag} disabled={disabled} onChange={(next) => replace(at, { ...pair, value: next ?? "" })} />
              </>
            ) : (
              <ValueInput label={`${label} ${at + 1}`} schema={item} value={each} isDag={isDag} disabled={disabled} onChange={(next) => replace(at, next)} />
            )}
            <Button kind="quiet" disabled={disabled} aria-label={`Remove ${label} ${at + 1}`} onClick={() => onChange(value.filter((_, index) => index !== at))}>
              ✕
            </Button>
          </div>
        );
      })}
      <Button kind="quiet" disabled={disabled} aria-label={`Add to ${label}`} onClick={() => onChange([...value, arePairs ? { name: "", value: "" } : ""])}>
        + Add
      </Button>
    </div>
  );
}

/** Named values. A name is applied when its field loses focus: two may be equal while one is typed. */
function FieldCells({ label, schema, value, isDag, disabled, onChange }: Omit<Props, "id" | "value"> & { value: Record<string, unknown> }) {
  const each = typeof schema.additionalProperties === "object" ? schema.additionalProperties : {};
  const rename = (from: string, to: string) => {
    if (to && to !== from && !(to in value)) onChange(Object.fromEntries(Object.entries(value).map(([name, one]) => [name === from ? to : name, one])));
  };
  const change = (name: string, next: unknown) => onChange({ ...value, [name]: next ?? "" });
  const free = () => {
    for (let at = 1; ; at += 1) if (!(`field${at}` in value)) return `field${at}`;
  };
  return (
    <div className="cells" role="group" aria-label={label}>
      {Object.entries(value).map(([name, one]) => (
        <div className="cell" key={name}>
          <NameCell label={`${label} name of ${name}`} name={name} disabled={disabled} onRename={(to) => rename(name, to)} />
          <ValueInput label={`${label} ${name}`} schema={each} value={one} isDag={isDag} disabled={disabled} onChange={(next) => change(name, next)} />
          <Button kind="quiet" disabled={disabled} aria-label={`Remove ${label} ${name}`} onClick={() => onChange(Object.fromEntries(Object.entries(value).filter(([other]) => other !== name)))}>
            ✕
          </Button>
        </div>
      ))}
      <Button kind="quiet" disabled={disabled} aria-label={`Add to ${label}`} onClick={() => onChange({ ...value, [free()]: "" })}>
        + Add
      </Button>
    </div>
  );
}

function NameCell({ label, name, disabled, onRename }: { label: string; name: string; disabled: boolean; onRename: (name: string) => void }) {
  const id = useId();
  const [text, setText] = useState(name);
  const done = () => {
    if (text.trim()) onRename(text.trim());
    else setText(name);
  };
  return <input id={id} className="field mono" type="text" autoComplete="off" spellCheck={false} aria-label={label} disabled={disabled} value={text} onChange={(event) => setText(event.target.value)} onBlur={done} onKeyDown={(event) => event.key === "Enter" && done()} />;
}
