/** A form generated from a JSON Schema; parts without a matching field are edited as JSON. */
import { useId, useState } from "react";
import { parseJson } from "../details/json";

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  items?: Schema;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  format?: string;
  anyOf?: Schema[];
  oneOf?: Schema[];
  $ref?: string;
  $defs?: Record<string, Schema>;
}

export function readSchema(schema: unknown): Schema | null {
  const found = schema !== null && typeof schema === "object" && !Array.isArray(schema) && Object.keys(schema).length > 0 ? (schema as Schema) : null;
  return found && resolve(found, found.$defs ?? {});
}

const DEEPEST = 6;
/** Up to this many options are shown as radio buttons. */
const MOST_RADIOS = 4;

/** Resolve references, and reduce an optional type to the type itself. */
function resolve(schema: Schema, defs: Record<string, Schema>, depth = 0): Schema {
  if (depth > DEEPEST) return schema;
  const { $ref, anyOf, ...rest } = schema;
  const named = $ref === undefined ? undefined : defs[$ref.split("/").at(-1) ?? ""];
  if (named) return resolve({ ...named, ...rest }, defs, depth + 1);
  const kinds = anyOf?.filter((each) => each.type !== "null");
  if (kinds?.length === 1 && kinds[0]) return resolve({ ...kinds[0], ...rest }, defs, depth + 1);
  if (!schema.properties) return schema;
  return { ...schema, properties: Object.fromEntries(Object.entries(schema.properties).map(([name, each]) => [name, resolve(each, defs, depth + 1)])) };
}

const typeOf = (schema: Schema): string | undefined => (Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type);

/** The initial value of a form. */
export function initial(schema: Schema | null): unknown {
  if (schema === null) return undefined;
  if (schema.default !== undefined) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (typeOf(schema) === "object" || schema.properties) {
    const entries = Object.entries(schema.properties ?? {}).map(([name, each]) => [name, initial(each)] as const);
    return Object.fromEntries(entries.filter(([name, value]) => value !== undefined && (schema.required?.includes(name) || value !== "")));
  }
  if (typeOf(schema) === "boolean") return false;
  return undefined;
}

interface FieldProps {
  name: string;
  schema: Schema;
  value: unknown;
  required: boolean;
  onChange: (value: unknown) => void;
}

/** The field of one property. */
export function SchemaField({ name, schema, value, required, onChange }: FieldProps) {
  const id = useId();
  const label = schema.title ?? name.replaceAll("_", " ");
  const type = typeOf(schema);
  const about = schema.description;
  if (schema.enum && required && schema.enum.length <= MOST_RADIOS) {
    return (
      <fieldset className="choices">
        <legend>{label}</legend>
        {schema.enum.map((each) => (
          <label key={JSON.stringify(each)} className="check">
            <input type="radio" name={id} required checked={JSON.stringify(value) === JSON.stringify(each)} onChange={() => onChange(each)} />
            <span>{String(each)}</span>
          </label>
        ))}
        {about && <small>{about}</small>}
      </fieldset>
    );
  }
  if (schema.enum) {
    return (
      <label htmlFor={id}>
        <span>{label}</span>
        <select id={id} className="select" required={required} value={value === undefined ? "" : JSON.stringify(value)} onChange={(event) => onChange(event.target.value === "" ? undefined : JSON.parse(event.target.value))}>
          <option value="">select …</option>
          {schema.enum.map((each) => (
            <option key={JSON.stringify(each)} value={JSON.stringify(each)}>
              {String(each)}
            </option>
          ))}
        </select>
        {about && <small>{about}</small>}
      </label>
    );
  }
  if (type === "boolean") {
    return (
      <label className="check" htmlFor={id}>
        <input id={id} type="checkbox" checked={value === true} onChange={(event) => onChange(event.target.checked)} />
        <span>{label}</span>
        {about && <small>{about}</small>}
      </label>
    );
  }
  if (type === "number" || type === "integer") {
    return (
      <label htmlFor={id}>
        <span>{label}</span>
        <input id={id} className="field" type="number" step={type === "integer" ? 1 : "any"} min={schema.minimum} max={schema.maximum} required={required} value={typeof value === "number" ? value : ""} onChange={(event) => onChange(event.target.value === "" ? undefined : Number(event.target.value))} />
        {about && <small>{about}</small>}
      </label>
    );
  }
  if (type === "string") {
    const long = (schema.maxLength ?? 0) > 200 || schema.format === "textarea";
    const shared = { id, className: "field", required, value: typeof value === "string" ? value : "", minLength: schema.minLength, maxLength: schema.maxLength };
    const kind = schema.format === "date" ? "date" : schema.format === "email" ? "email" : schema.format === "uri" ? "url" : "text";
    const change = (text: string) => onChange(text === "" && !required ? undefined : text);
    return (
      <label htmlFor={id}>
        <span>{label}</span>
        {long ? <textarea rows={4} {...shared} onChange={(event) => change(event.target.value)} /> : <input type={kind} pattern={schema.pattern} {...shared} onChange={(event) => change(event.target.value)} />}
        {about && <small>{about}</small>}
      </label>
    );
  }
  if (type === "object" && schema.properties) {
    const known = (value ?? {}) as Record<string, unknown>;
    return (
      <fieldset>
        <legend>{label}</legend>
        {about && <small>{about}</small>}
        <SchemaFields schema={schema} value={known} onChange={onChange} />
      </fieldset>
    );
  }
  return <JsonField label={label} about={about} value={value} onChange={onChange} />;
}

/** The properties of an object, one field each. */
export function SchemaFields({ schema, value, onChange }: { schema: Schema; value: Record<string, unknown>; onChange: (value: Record<string, unknown>) => void }) {
  return (
    <>
      {Object.entries(schema.properties ?? {}).map(([name, each]) => (
        <SchemaField
          key={name}
          name={name}
          schema={each}
          value={value[name]}
          required={schema.required?.includes(name) ?? false}
          onChange={(changed) => {
            const next = { ...value };
            if (changed === undefined) delete next[name];
            else next[name] = changed;
            onChange(next);
          }}
        />
      ))}
    </>
  );
}

/** A value without a matching field, edited as JSON. */
export function JsonField({ label, about, value, hint, onChange, onInvalid }: { label: string; about?: string; hint?: string; value: unknown; onChange: (value: unknown) => void; onInvalid?: (isInvalid: boolean) => void }) {
  const [text, setText] = useState(() => (value === undefined ? "" : JSON.stringify(value, null, 2)));
  const read = parseJson(text);
  return (
    <label>
      <span>{label}</span>
      <textarea
        className="field"
        rows={Math.min(8, Math.max(2, text.split("\n").length))}
        value={text}
        placeholder={hint}
        aria-invalid={read.wrong !== undefined}
        onChange={(event) => {
          setText(event.target.value);
          const next = parseJson(event.target.value);
          onInvalid?.(next.wrong !== undefined || event.target.value.trim() === "");
          if (next.wrong === undefined) onChange(next.value);
        }}
      />
      {read.wrong ? <small className="wrong">{read.wrong}</small> : <small>{about ?? "A JSON value."}</small>}
    </label>
  );
}
