/** The diagram of a workflow file: boxes and lines, and how changes of the diagram become edits of the text. */
import { layoutGraph } from "../../../components/graph/layout";
import type { Data } from "../text/document";
import type { Edit, Form, Kind, Kinds, Step } from "../types";
import { dagFormat } from "./dag-format";
import { graphFormat } from "./graph-format";
import { stagesFormat } from "./stages-format";

export interface Point {
  x: number;
  y: number;
}

export interface Box {
  /** Unique in the diagram. */
  id: string;
  /** Index in the file's list of nodes or stages. */
  at: number;
  label: string;
  type: string;
  about: string;
  position: Point | null;
  isStart: boolean;
  exits: string[];
}

export interface Line {
  id: string;
  from: string;
  to: string;
  exit: string | null;
  /** Implied by a reference, not declared in the file. */
  implied: boolean;
  /** Index in the list of connections, for formats that have one. */
  at: number | null;
}

export interface Diagram {
  boxes: Box[];
  lines: Line[];
}

/** One format of workflow files. */
export interface FileFormat {
  /** The field with the list of nodes. */
  list: "nodes" | "stages";
  draw: (data: Data, kinds: Kinds) => Diagram;
  kindOf: (entry: Data, kinds: Kinds) => Kind | undefined;
  palette: (data: Data, kinds: Kinds) => Kind[];
  add: (data: Data, kind: Kind, at: Point, after: Box | null) => Edit[];
  connect: (data: Data, diagram: Diagram, from: Box, to: Box, exit: string | null) => Edit[];
  cut: (data: Data, diagram: Diagram, lines: Line[]) => Edit[];
  drop: (data: Data, diagram: Diagram, boxes: Box[]) => Edit[];
  rename: (data: Data, diagram: Diagram, box: Box, name: string) => Edit[];
  /** Where the data of a node is, by the name that runs give it; null if nodes have no data of their own. */
  dataOf: (data: Data, diagram: Diagram, name: string) => Step[] | null;
  /** Whether the file stores the positions of boxes. */
  storesPositions: boolean;
}

export const FORMATS: Record<Form, FileFormat> = { graph: graphFormat, stages: stagesFormat, dag: dagFormat };

/** The format of a file, by the same rule as the server. */
export function formOf(data: Data, file: string): Form {
  if (!file.endsWith(".json")) return "dag";
  if ("stages" in data) return "stages";
  const nodes = entries(data, "nodes");
  if (nodes.some((node) => "typeId" in node)) return "graph";
  if (nodes.some((node) => "task" in node || "prompt" in node || "dag" in node)) return "dag";
  return ["connections", "mode", "stateRoot", "settings"].some((field) => field in data) ? "graph" : "dag";
}

/** The objects of a list; other values become empty objects, so that indexes stay. */
export function entries(data: Data, field: string): Data[] {
  const found = data[field];
  return Array.isArray(found) ? found.map((each: unknown) => (each !== null && typeof each === "object" && !Array.isArray(each) ? (each as Data) : {})) : [];
}

/** An unused name: the wanted one, or one with a number. */
export function freeName(wanted: string, taken: Iterable<string>): string {
  const known = new Set(taken);
  if (!known.has(wanted)) return wanted;
  for (let number = 2; ; number += 1) if (!known.has(`${wanted}_${number}`)) return `${wanted}_${number}`;
}

/** The required fields of a new node, empty. */
export function requiredFields(kind: Kind): Data {
  const groups = (kind.schema.allOf ?? []).map((group) => group.anyOf[0]?.required[0]).filter((name) => name !== undefined);
  const names = [...(kind.schema.required ?? []), ...groups];
  return Object.fromEntries(names.filter((name) => name !== "name").map((name) => [name, empty(kind.schema.properties[name]?.type)]));
}

function empty(type: string | string[] | undefined): unknown {
  if (type === "array") return [];
  if (type === "object") return {};
  return "";
}

/** Append an entry to a list, which is created if missing. */
export const append = (data: Data, field: string, value: unknown): Edit => (Array.isArray(data[field]) ? { path: [field, (data[field] as unknown[]).length], value } : { path: [field], value: [value] });

/** Remove entries from a list, the last one first. */
export const without = (field: string, places: number[]): Edit[] => [...places].sort((a, b) => b - a).map((at) => ({ path: [field, at], value: undefined }));

/** Edits for all strings in a value that a function changes. */
export function rewrite(value: unknown, path: Step[], change: (text: string, path: Step[]) => string): Edit[] {
  if (typeof value === "string") {
    const next = change(value, path);
    return next === value ? [] : [{ path, value: next }];
  }
  if (Array.isArray(value)) return value.flatMap((each, index) => rewrite(each, [...path, index], change));
  if (value !== null && typeof value === "object") return Object.entries(value).flatMap(([name, each]) => rewrite(each, [...path, name], change));
  return [];
}

/** Rename the first part of paths in a text: `$.old.x` becomes `$.new.x`, or `$['a new'].x` where that is not a name in JavaScript. */
export function renamed(text: string, before: string, after: string, isScript = true): string {
  const name = before.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const quoted = (quote: string) => quote + after.replaceAll("\\", "\\\\").replaceAll(quote, `\\${quote}`) + quote;
  const isPlain = !isScript || /^[\p{L}_][\p{L}\p{N}_]*$/u.test(after);
  const members = new RegExp(`\\$(\\??\\.)${name}(?![\\w$]|-[A-Za-z_])|\\$((?:\\?\\.)?\\[\\s*)(['"])${name}\\3`, "gu");
  return text.replaceAll(members, (_, dot: string | undefined, open: string, quote: string) => {
    if (dot === undefined) return `$${open}${quoted(quote)}`;
    return isPlain ? `$${dot}${after}` : `$${dot === "?." ? dot : ""}[${quoted(after.includes("'") ? '"' : "'")}]`;
  });
}

/** Whether a node returns its pinned output and does nothing. */
export const isPinned = (node: Data | undefined) => (node?.data as Data | undefined)?.pinned === true;

/** The width of a box. */
export const BOX_WIDTH = 184;

/** Automatic positions: layers from left to right. */
export function autoLayout(diagram: Diagram): Map<string, Point> {
  const places = layoutGraph(diagram.boxes.map((box) => box.id), diagram.lines, BOX_WIDTH);
  for (const [id, place] of places) places.set(id, { x: Math.round(place.x), y: Math.round(place.y * 1.3) });
  return places;
}
