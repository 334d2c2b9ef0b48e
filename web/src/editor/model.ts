/** The picture of a workflow file: its boxes and lines, and what a change of the picture means for the text. */
import { layOut } from "../run/layout";
import type { Data } from "./doc";
import { graphForm } from "./graphform";
import { dagForm } from "./dagform";
import { stagesForm } from "./stagesform";
import type { Edit, Form, Kind, Kinds, Step } from "./types";

export interface Point {
  x: number;
  y: number;
}

export interface Box {
  /** Unlike that of any other box of the picture. */
  id: string;
  /** Which of the nodes or stages it is. */
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
  /** Nobody wrote it: it follows from what the box reads. */
  implied: boolean;
  /** Which of the connections it is, where they are a list of their own. */
  at: number | null;
}

export interface Picture {
  boxes: Box[];
  lines: Line[];
}

/** What a form of files knows of itself. */
export interface Shape {
  /** The field that lists the boxes. */
  list: "nodes" | "stages";
  draw: (data: Data, kinds: Kinds) => Picture;
  kindOf: (entry: Data, kinds: Kinds) => Kind | undefined;
  palette: (data: Data, kinds: Kinds) => Kind[];
  add: (data: Data, kind: Kind, at: Point, after: Box | null) => Edit[];
  connect: (data: Data, picture: Picture, from: Box, to: Box, exit: string | null) => Edit[];
  cut: (data: Data, picture: Picture, lines: Line[]) => Edit[];
  drop: (data: Data, picture: Picture, boxes: Box[]) => Edit[];
  rename: (data: Data, picture: Picture, box: Box, name: string) => Edit[];
  /** Whether the file says where boxes stand. */
  keepsPlaces: boolean;
}

export const SHAPES: Record<Form, Shape> = { graph: graphForm, stages: stagesForm, dag: dagForm };

/** Which form a file has: the same rule as the server's. */
export function formOf(data: Data, file: string): Form {
  if (!file.endsWith(".json")) return "dag";
  if ("stages" in data) return "stages";
  const nodes = entries(data, "nodes");
  if (nodes.some((node) => "typeId" in node)) return "graph";
  if (nodes.some((node) => "task" in node || "prompt" in node || "dag" in node)) return "dag";
  return ["connections", "mode", "stateRoot", "settings"].some((field) => field in data) ? "graph" : "dag";
}

/** The objects in a list of a file; what is no object stands as an empty one, so that places stay. */
export function entries(data: Data, field: string): Data[] {
  const found = data[field];
  return Array.isArray(found) ? found.map((each: unknown) => (each !== null && typeof each === "object" && !Array.isArray(each) ? (each as Data) : {})) : [];
}

/** A name that is not taken: the wanted one, or one with a number. */
export function free(wanted: string, taken: Iterable<string>): string {
  const known = new Set(taken);
  if (!known.has(wanted)) return wanted;
  for (let number = 2; ; number += 1) if (!known.has(`${wanted}_${number}`)) return `${wanted}_${number}`;
}

/** What the data of a new node begins with: what must be there, empty. */
export function begun(kind: Kind): Data {
  const groups = (kind.schema.allOf ?? []).map((group) => group.anyOf[0]?.required[0]).filter((name) => name !== undefined);
  const names = [...(kind.schema.required ?? []), ...groups];
  return Object.fromEntries(names.filter((name) => name !== "name").map((name) => [name, empty(kind.schema.properties[name]?.type)]));
}

function empty(type: string | string[] | undefined): unknown {
  if (type === "array") return [];
  if (type === "object") return {};
  return "";
}

/** Puts one entry after the others of a list, which may not be there yet. */
export const append = (data: Data, field: string, value: unknown): Edit => (Array.isArray(data[field]) ? { path: [field, (data[field] as unknown[]).length], value } : { path: [field], value: [value] });

/** Takes entries out of a list, the last one first. */
export const without = (field: string, places: number[]): Edit[] => [...places].sort((a, b) => b - a).map((at) => ({ path: [field, at], value: undefined }));

/** All texts in a value that a function changes, as edits. */
export function rewrite(value: unknown, path: Step[], change: (text: string, path: Step[]) => string): Edit[] {
  if (typeof value === "string") {
    const next = change(value, path);
    return next === value ? [] : [{ path, value: next }];
  }
  if (Array.isArray(value)) return value.flatMap((each, index) => rewrite(each, [...path, index], change));
  if (value !== null && typeof value === "object") return Object.entries(value).flatMap(([name, each]) => rewrite(each, [...path, name], change));
  return [];
}

/** A text in which paths that begin with one name begin with another: `$.old.x` becomes `$.new.x`. */
export function renamed(text: string, before: string, after: string): string {
  const name = before.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return text.replaceAll(new RegExp(`(\\$\\.)${name}(?![\\w-])`, "g"), `$1${after.replaceAll("$", "$$$$")}`);
}

/** How wide a box is drawn. */
export const WIDE = 184;

/** Where boxes go that have no place: in layers, from left to right. */
export function arranged(picture: Picture): Map<string, Point> {
  const places = layOut(picture.boxes.map((box) => box.id), picture.lines, WIDE);
  for (const [id, place] of places) places.set(id, { x: Math.round(place.x), y: Math.round(place.y * 1.3) });
  return places;
}
