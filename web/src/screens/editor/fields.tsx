/** One field of a form, generated from its schema. Invalid values are kept, and marked. */
import { useEffect, useId, useState } from "react";
import { parseJson } from "../../components/details/json";
import type { FieldSchema, FileProblem } from "./types";
import { ValueInput } from "./value-input";

export interface FieldProps {
  name: string;
  label?: string;
  schema: FieldSchema;
  value: unknown;
  required: boolean;
  disabled: boolean;
  /** Whether values may be references to other nodes. */
  isDag?: boolean;
  suggestions?: string[];
  problems: FileProblem[];
  onChange: (value: unknown) => void;
}

const types = (schema: FieldSchema): string[] => (schema.type === undefined ? [] : Array.isArray(schema.type) ? schema.type : [schema.type]);

const isPlain = (value: unknown) => value === undefined || value === null || typeof value !== "object";

export function Field(props: FieldProps) {
  const { name, label, schema, value, disabled, required, problems, onChange } = props;
  const id = useId();
  const kinds = types(schema);
  const wrong = problems.length > 0;
  const about = `${id}-about`;
  const shared = { id, disabled, "aria-invalid": wrong, "aria-describedby": about };
  const isText = kinds.length > 0 && kinds.every((kind) => ["string", "number", "integer"].includes(kind));
  let input = null;
  if (kinds[0] === "boolean" && isPlain(value)) {
    const usual = schema.default === true;
    input = <input type="checkbox" {...shared} checked={value === undefined ? usual : value === true} onChange={(event) => onChange(event.target.checked === usual ? undefined : event.target.checked)} />;
  } else if (schema.enum && isPlain(value)) {
    const options = schema.enum.map(String);
    const written = value === undefined || value === null ? "" : String(value);
    input = (
      <select className="select" {...shared} value={written} onChange={(event) => onChange(event.target.value === "" && !required ? undefined : event.target.value)}>
        {!options.includes("") && <option value="">{required ? "select …" : schema.default === undefined ? "default" : `default (${String(schema.default)})`}</option>}
        {[...options, ...(written && !options.includes(written) ? [written] : [])].map((each) => (
          <option key={each} value={each}>
            {each}
          </option>
        ))}
      </select>
    );
  } else if ((isText || schema.format === "expression" || schema.format === "textarea") && isPlain(value)) {
    input = <TextInput {...props} shared={shared} numeric={kinds.some((kind) => kind !== "string")} onlyNumbers={!kinds.includes("string")} />;
  } else if (schema.properties && (value === undefined || isFields(value))) {
    input = <Inner {...props} />;
  } else if (schema.format === "json") {
    input = <JsonInput value={value} shared={shared} free={kinds.length === 0 || kinds.includes("string")} onChange={onChange} />;
  } else {
    input = <ValueInput id={id} label={label ?? name} schema={schema} value={value} isDag={props.isDag ?? false} disabled={disabled} onChange={(next) => onChange(next === undefined && required ? "" : next)} />;
  }
  const isCheck = kinds[0] === "boolean" && isPlain(value);
  return (
    <div className={isCheck ? "entry tick" : "entry"}>
      <label htmlFor={id}>
        {label ?? name}
        {required && <em aria-hidden="true"> *</em>}
      </label>
      {input}
      <small id={about}>
        {problems.map((each) => (
          <span key={each.message} className={each.severity === "error" ? "wrong" : "doubt"}>
            {each.message}
          </span>
        ))}
        {schema.description && <span>{schema.description}</span>}
      </small>
    </div>
  );
}

const isFields = (value: unknown): value is Record<string, unknown> => value !== null && typeof value === "object" && !Array.isArray(value);

/** The known fields of an object, each with an input of its own. */
function Inner({ name, schema, value, disabled, problems, isDag, onChange }: FieldProps) {
  const known = isFields(value) ? value : {};
  const change = (field: string, next: unknown) => {
    const changed = { ...known, [field]: next };
    if (next === undefined) delete changed[field];
    onChange(Object.keys(changed).length > 0 ? changed : undefined);
  };
  const others = Object.keys(known).filter((field) => !(field in (schema.properties ?? {})));
  return (
    <div className="inner" role="group" aria-label={name}>
      {[...Object.entries(schema.properties ?? {}), ...others.map((field) => [field, UNKNOWN] as const)].map(([field, each]) => (
        <Field key={field} name={field} schema={each as FieldSchema} value={known[field]} required={schema.required?.includes(field) ?? false} disabled={disabled} isDag={isDag} problems={problems.filter((one) => one.place.includes(field))} onChange={(next) => change(field, next)} />
      ))}
    </div>
  );
}

/** A field that is not known: its JSON is kept as it is. */
export const UNKNOWN: FieldSchema = { description: "Unknown field: kept unchanged.", format: "json" };

type Shared = { id: string; disabled: boolean; "aria-invalid": boolean; "aria-describedby": string };

function TextInput({ name, schema, value, required, suggestions, onChange, shared, numeric, onlyNumbers }: FieldProps & { shared: Shared; numeric: boolean; onlyNumbers: boolean }) {
  const text = value === undefined || value === null ? "" : String(value);
  const change = (next: string) => {
    if (next === "" && !required) onChange(undefined);
    else onChange(numeric && /^-?\d+(\.\d+)?$/.test(next) ? Number(next) : next);
  };
  const long = schema.format === "textarea" || schema.format === "expression" || text.includes("\n") || text.length > 60;
  const hint = schema.default === undefined ? undefined : String(schema.default);
  if (long) {
    const rows = Math.min(12, Math.max(schema.format === "textarea" ? 3 : 2, text.split("\n").length));
    return <textarea className="field" rows={rows} spellCheck={schema.format === "textarea"} {...shared} value={text} onChange={(event) => change(event.target.value)} />;
  }
  const list = `${shared.id}-list`;
  return (
    <>
      <input className="field mono" type="text" inputMode={onlyNumbers ? "numeric" : undefined} autoComplete="off" spellCheck={false} name={name} placeholder={hint} list={suggestions?.length ? list : undefined} {...shared} value={text} onChange={(event) => change(event.target.value)} />
      {suggestions && suggestions.length > 0 && (
        <datalist id={list}>
          {suggestions.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </>
  );
}

/** A value of an unknown field as JSON; where a string is allowed, other text is a string. */
function JsonInput({ value, shared, free, onChange }: { value: unknown; shared: Shared; free: boolean; onChange: (value: unknown) => void }) {
  const written = shownValue(value, free);
  const [text, setText] = useState(written);
  const read = readValue(text, free);
  useEffect(() => {
    // Show changes made elsewhere, such as undo, but do not reformat text while it is typed.
    setText((now) => (same(readValue(now, free).value, value) ? now : written));
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [written, free]);
  return (
    <>
      <textarea
        className="field"
        rows={Math.min(12, Math.max(2, text.split("\n").length))}
        spellCheck={false}
        {...shared}
        aria-invalid={shared["aria-invalid"] || read.wrong !== undefined}
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          const next = readValue(event.target.value, free);
          if (next.wrong === undefined) onChange(next.value);
        }}
      />
      {read.wrong && <small className="wrong">{read.wrong} The file keeps the previous value until this is valid.</small>}
    </>
  );
}

function readValue(text: string, free: boolean): { value?: unknown; wrong?: string } {
  if (text.trim() === "") return { value: undefined };
  const read = parseJson(text);
  return read.wrong !== undefined && free && !/^[[{"]/.test(text.trim()) ? { value: text } : read;
}

function shownValue(value: unknown, free: boolean): string {
  if (value === undefined) return "";
  if (typeof value === "string" && free && readValue(value, true).value === value) return value;
  return JSON.stringify(value, null, 2);
}

const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);
