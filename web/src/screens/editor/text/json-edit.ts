/** Edits a JSON text in one place; every other character stays as it is.
 *
 * jsonc-parser finds the place. Its own `modify` also reformats the whole lines around an edit, so the writing is done here.
 */
import { findNodeAtLocation, type Node, parseTree } from "jsonc-parser";
import type { Edit, Step } from "../types";

const INLINE = 88;

/** The text after one edit. */
export function editJson(text: string, edit: Edit): string {
  const root = parseTree(text);
  if (root === undefined) return text;
  if ("order" in edit) return reorder(text, findNodeAtLocation(root, edit.path), edit.order);
  let { value } = edit;
  let depth = edit.path.length - 1;
  let parent = findNodeAtLocation(root, edit.path.slice(0, depth));
  while (!isCollection(parent)) {
    if (value === undefined || depth === 0) return text;
    // The parent does not exist yet: create it with the value.
    const step = edit.path[depth] as Step;
    value = typeof step === "number" ? [value] : { [step]: value };
    depth -= 1;
    parent = findNodeAtLocation(root, edit.path.slice(0, depth));
  }
  return place(text, root, parent, edit.path[depth] as Step, value);
}

const isCollection = (node: Node | undefined): node is Node => node?.type === "object" || node?.type === "array";
const endOf = (node: Node) => node.offset + node.length;
const textOf = (text: string, node: Node) => text.slice(node.offset, endOf(node));

const splice = (text: string, start: number, end: number, by: string) => text.slice(0, start) + by + text.slice(end);

function place(text: string, root: Node, parent: Node, step: Step, value: unknown): string {
  const parts = (parent.children ?? []).map((node, index) => ({ node, key: parent.type === "array" ? index : (node.children?.[0]?.value as Step), value: parent.type === "array" ? node : node.children?.[1] ?? node }));
  const index = parts.findIndex((part) => part.key === step);
  const found = parts[index];
  if (value === undefined) {
    if (!found) return text;
    const before = parts[index - 1]?.node;
    const after = parts[index + 1]?.node;
    if (before) return splice(text, endOf(before), endOf(found.node), "");
    if (after) return splice(text, found.node.offset, after.offset, "");
    return splice(text, parent.offset + 1, endOf(parent) - 1, "");
  }
  const unit = unitOf(text, root);
  if (found) {
    const isLow = !textOf(text, found.value).includes("\n");
    return splice(text, found.value.offset, endOf(found.value), render(value, indentAt(text, found.node.offset), unit, isLow));
  }
  const name = typeof step === "string" ? `${JSON.stringify(step)}: ` : "";
  const last = parts[parts.length - 1];
  if (last) {
    const isTall = text.slice(parent.offset, last.node.offset).includes("\n");
    const indent = indentAt(text, last.node.offset);
    const isLow = !textOf(text, last.value).includes("\n");
    const end = endOf(last.node);
    return splice(text, end, end, isTall ? `,\n${indent}${name}${render(value, indent, unit, isLow)}` : `, ${name}${render(value, indent, unit, true)}`);
  }
  const outer = indentAt(text, parent.offset);
  const inline = `${name}${render(value, outer, unit, true)}`;
  const made = typeof step === "string" && inline.length <= INLINE ? inline : `\n${outer}${unit}${name}${render(value, outer + unit, unit, false)}\n${outer}`;
  return splice(text, parent.offset + 1, endOf(parent) - 1, made);
}

/** The indentation of the line at a position. */
function indentAt(text: string, at: number): string {
  const line = text.lastIndexOf("\n", at - 1) + 1;
  return /^[ \t]*/.exec(text.slice(line))?.[0] ?? "";
}

/** The indentation of one level. */
function unitOf(text: string, root: Node): string {
  const first = root.children?.[0]?.offset;
  return (first === undefined ? "" : indentAt(text, first)) || "  ";
}

/** A value as JSON text, on one line if it is short. */
function render(value: unknown, indent: string, unit: string, low: boolean): string {
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
function reorder(text: string, list: Node | undefined, order: number[]): string {
  const items = list?.type === "array" ? (list.children ?? []) : [];
  if (order.length !== items.length) return text;
  let made = "";
  let at = 0;
  items.forEach((item, index) => {
    made += text.slice(at, item.offset) + textOf(text, items[order[index] as number] as Node);
    at = endOf(item);
  });
  return made + text.slice(at);
}
