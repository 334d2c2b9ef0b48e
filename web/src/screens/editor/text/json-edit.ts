/** Edits a JSON text in one place; every other character stays as it is. */
import type { Edit, Step } from "../types";

interface Value {
  start: number;
  end: number;
  entries?: { key: string; start: number; value: Value }[];
  items?: Value[];
}

const SPACE = new Set([" ", "\t", "\n", "\r", "\ufeff"]);
const INLINE = 88;

/** The start and end of every value in a JSON text. */
function scan(text: string): Value {
  let at = 0;
  const skip = () => {
    while (SPACE.has(text[at] ?? "")) at += 1;
  };
  const string = (): string => {
    const start = at;
    at += 1;
    while (text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
    at += 1;
    return JSON.parse(text.slice(start, at)) as string;
  };
  const value = (): Value => {
    skip();
    const start = at;
    const opening = text[at];
    if (opening === "{") {
      const entries: { key: string; start: number; value: Value }[] = [];
      at += 1;
      for (skip(); text[at] !== "}"; skip()) {
        const from = at;
        const key = string();
        skip();
        at += 1;
        entries.push({ key, start: from, value: value() });
        skip();
        if (text[at] === ",") at += 1;
      }
      at += 1;
      return { start, end: at, entries };
    }
    if (opening === "[") {
      const items: Value[] = [];
      at += 1;
      for (skip(); text[at] !== "]"; skip()) {
        items.push(value());
        skip();
        if (text[at] === ",") at += 1;
      }
      at += 1;
      return { start, end: at, items };
    }
    if (opening === '"') string();
    else while (at < text.length && !SPACE.has(text[at] ?? "") && !",]}".includes(text[at] ?? "")) at += 1;
    return { start, end: at };
  };
  return value();
}

/** The text after one edit. */
export function editJson(text: string, edit: Edit): string {
  if ("order" in edit) return reorder(text, edit.path, edit.order);
  const root = scan(text);
  const path = [...edit.path];
  let parent: Value = root;
  let value = edit.value;
  for (let depth = 0; depth < path.length - 1; depth += 1) {
    const next = child(parent, path[depth] as Step);
    if (next === undefined || (next.entries === undefined && next.items === undefined)) {
      if (value === undefined) return text;
      // The parent does not exist yet: create it with the value.
      for (const step of path.slice(depth + 1).reverse()) value = typeof step === "number" ? [value] : { [step]: value };
      return place(text, root, parent, path[depth] as Step, value);
    }
    parent = next;
  }
  return place(text, root, parent, path[path.length - 1] as Step, value);
}

function child(parent: Value, step: Step): Value | undefined {
  return typeof step === "number" ? parent.items?.[step] : parent.entries?.find((entry) => entry.key === step)?.value;
}

const splice = (text: string, start: number, end: number, by: string) => text.slice(0, start) + by + text.slice(end);

function place(text: string, root: Value, parent: Value, step: Step, value: unknown): string {
  const parts = parent.entries?.map((entry) => ({ start: entry.start, end: entry.value.end, value: entry.value, key: entry.key as Step }))
    ?? (parent.items ?? []).map((item, index) => ({ start: item.start, end: item.end, value: item, key: index as Step }));
  const index = parts.findIndex((part) => part.key === step);
  const found = parts[index];
  if (value === undefined) {
    if (!found) return text;
    const before = parts[index - 1];
    const after = parts[index + 1];
    if (before) return splice(text, before.end, found.end, "");
    if (after) return splice(text, found.start, after.start, "");
    return splice(text, parent.start + 1, parent.end - 1, "");
  }
  const unit = unitOf(text, root);
  if (found) {
    const isLow = !text.slice(found.value.start, found.value.end).includes("\n");
    return splice(text, found.value.start, found.value.end, render(value, indentAt(text, found.start), unit, isLow));
  }
  const name = typeof step === "string" ? `${JSON.stringify(step)}: ` : "";
  const last = parts[parts.length - 1];
  if (last) {
    const isTall = text.slice(parent.start, last.start).includes("\n");
    const indent = indentAt(text, last.start);
    const isLow = !text.slice(last.value.start, last.value.end).includes("\n");
    return splice(text, last.end, last.end, isTall ? `,\n${indent}${name}${render(value, indent, unit, isLow)}` : `, ${name}${render(value, indent, unit, true)}`);
  }
  const outer = indentAt(text, parent.start);
  const inline = `${name}${render(value, outer, unit, true)}`;
  const made = typeof step === "string" && inline.length <= INLINE ? inline : `\n${outer}${unit}${name}${render(value, outer + unit, unit, false)}\n${outer}`;
  return splice(text, parent.start + 1, parent.end - 1, made);
}

/** The indentation of the line at a position. */
function indentAt(text: string, at: number): string {
  const line = text.lastIndexOf("\n", at - 1) + 1;
  return /^[ \t]*/.exec(text.slice(line))?.[0] ?? "";
}

/** The indentation of one level. */
function unitOf(text: string, root: Value): string {
  const first = root.entries?.[0]?.start ?? root.items?.[0]?.start;
  return (first === undefined ? "" : indentAt(text, first)) || "  ";
}

/** A value as JSON text, on one line if it is short. */
export function render(value: unknown, indent: string, unit: string, low: boolean): string {
  const flat = inlined(value);
  if (value === null || typeof value !== "object") return flat;
  if (low && flat.length + indent.length <= INLINE + 20) return flat;
  const inner = indent + unit;
  const each = (part: unknown) => render(part, inner, unit, inlined(part).length + inner.length <= INLINE);
  if (Array.isArray(value)) return value.length ? `[\n${value.map((part) => inner + each(part)).join(",\n")}\n${indent}]` : "[]";
  const entries = Object.entries(value).filter(([, part]) => part !== undefined);
  return entries.length ? `{\n${entries.map(([name, part]) => `${inner}${JSON.stringify(name)}: ${each(part)}`).join(",\n")}\n${indent}}` : "{}";
}

function inlined(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(inlined).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value).filter(([, part]) => part !== undefined).map(([name, part]) => `${JSON.stringify(name)}: ${inlined(part)}`).join(", ")}}`;
  }
  return JSON.stringify(value) ?? "null";
}

/** Reorder the entries of a list; the text of each stays. */
function reorder(text: string, path: Step[], order: number[]): string {
  let list: Value | undefined = scan(text);
  for (const step of path) list = list && child(list, step);
  const items = list?.items;
  if (!items || order.length !== items.length) return text;
  let made = "";
  let at = 0;
  items.forEach((item, index) => {
    const other = items[order[index] as number] as Value;
    made += text.slice(at, item.start) + text.slice(other.start, other.end);
    at = item.end;
  });
  return made + text.slice(at);
}
