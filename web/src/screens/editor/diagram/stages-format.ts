/** The format with a list of stages: each is built from its `input`, which must come before it in the list. */
import type { Data } from "../text/document";
import type { Edit } from "../types";
import { append, type Box, entries, type FileFormat, freeName, isPinned, type Line, renamed, rewrite, without } from "./diagram";

const text = (value: unknown): string => (typeof value === "string" ? value : "");

const typeOf = (stage: Data): string => text(stage.type) || ("node" in stage ? "transform" : "source");

/** The stages that the expressions of a stage reference. */
function named(stage: Data): Set<string> {
  const written = JSON.stringify([stage.node, stage.then]);
  return new Set([...written.matchAll(/\$\.([A-Za-z_][\w-]*)/g)].map((match) => match[1] ?? ""));
}

/** The node that runs where the condition of a stage's `if` holds: beside the stage's node, in it, or in its data. */
export function thenOf(stage: Data): { place: string[]; node: Data } | null {
  const node = (stage.node ?? {}) as Data;
  const places: [string[], unknown][] = [[["then"], stage.then], [["node", "then"], node.then], [["node", "data", "then"], (node.data as Data | undefined)?.then]];
  const [place, found] = places.find(([, value]) => value !== undefined) ?? [[], undefined];
  return found !== null && typeof found === "object" ? { place, node: found as Data } : null;
}

export const stagesFormat: FileFormat = {
  list: "stages",
  storesPositions: false,
  kindOf: (entry, kinds) => kinds.kinds.find((kind) => kind.form === "stages" && kind.type === typeOf(entry)),
  palette: (_, kinds) => kinds.kinds.filter((kind) => kind.form === "stages"),
  draw(data) {
    const stages = entries(data, "stages");
    const seen = new Set<string>();
    const boxes = stages.map((stage, at): Box => {
      const id = text(stage.id) && !seen.has(text(stage.id)) ? text(stage.id) : `#${at}`;
      seen.add(id);
      const type = typeOf(stage);
      const by = text((stage.node as Data | undefined)?.typeId);
      return { id, at, label: text(stage.name) || text(stage.id) || "unnamed", type: type === "transform" ? by || "transform" : type, about: [stage.node, thenOf(stage)?.node].some((node) => isPinned(node as Data | undefined)) ? "pinned" : text(stage.pattern), position: null, isStart: type === "source", exits: [] };
    });
    const byName = new Map<string, string>();
    for (const box of boxes) {
      byName.set(box.label, byName.get(box.label) ?? box.id);
      byName.set(box.id, box.id);
    }
    const lines: Line[] = [];
    stages.forEach((stage, at) => {
      const to = (boxes[at] as Box).id;
      const input = byName.get(text(stage.input));
      if (input && typeOf(stage) === "transform") lines.push({ id: `i ${input} ${to}`, from: input, to, exit: null, implied: false, at });
      for (const name of named(stage)) {
        const from = byName.get(name);
        if (from && from !== input && from !== to) lines.push({ id: `r ${from} ${to}`, from, to, exit: null, implied: true, at: null });
      }
    });
    return { boxes, lines };
  },
  dataOf(data, diagram, name) {
    const stages = entries(data, "stages");
    const box = diagram.boxes.find((each) => each.label === name);
    if (box) return ["stages", box.at, "node", "data"];
    const at = stages.findIndex((stage) => `${text(stage.id)}.then` === name);
    const then = at < 0 ? null : thenOf(stages[at] as Data);
    return then && ["stages", at, ...then.place, "data"];
  },
  add(data, kind, _, after) {
    const stages = entries(data, "stages");
    const id = freeName(kind.type === "source" ? "source" : "stage", stages.flatMap((stage) => [text(stage.id), text(stage.name)]));
    if (kind.type === "source") return [append(data, "stages", { id, type: "source", pattern: `${id}/{id}.txt` })];
    const input = after?.id ?? text(stages[stages.length - 1]?.id);
    return [append(data, "stages", { id, type: "transform", input, pattern: `${id}/{id}.txt`, node: { typeId: "transform", data: { expression: "" } } })];
  },
  connect(data, diagram, from, to) {
    const stage = entries(data, "stages")[to.at] ?? {};
    if (from.id === to.id || typeOf(stage) !== "transform" || leadsTo(diagram.lines, to.id, from.id)) return [];
    const edits: Edit[] = [{ path: ["stages", to.at, "input"], value: from.id }];
    if (from.at < to.at) return edits;
    const lines = [...diagram.lines.filter((line) => line.to !== to.id || line.implied), { id: "", from: from.id, to: to.id, exit: null, implied: false, at: null }];
    return [...edits, { path: ["stages"], order: inOrder(diagram.boxes, lines) }];
  },
  cut: (_, __, lines) => lines.flatMap((line) => (line.implied || line.at === null ? [] : [{ path: ["stages", line.at, "input"], value: undefined }])),
  drop(_, diagram, boxes) {
    const gone = new Set(boxes.map((box) => box.id));
    const cut = diagram.lines.filter((line) => gone.has(line.from) && !gone.has(line.to) && !line.implied);
    return [...stagesFormat.cut({}, diagram, cut), ...without("stages", boxes.map((box) => box.at))];
  },
  rename(data, _, box, name) {
    const stages = entries(data, "stages");
    const before = text(stages[box.at]?.id);
    const edits: Edit[] = [{ path: ["stages", box.at, "id"], value: name }];
    stages.forEach((stage, at) => {
      if (stage.input === before) edits.push({ path: ["stages", at, "input"], value: name });
      if (at !== box.at) for (const part of ["node", "then"]) edits.push(...rewrite(stage[part], ["stages", at, part], (each) => renamed(each, before, name)));
    });
    return edits;
  },
};

/** Whether a path of lines leads from one box to another. */
function leadsTo(lines: Line[], from: string, to: string): boolean {
  const seen = new Set<string>();
  const ahead = [from];
  while (ahead.length > 0) {
    const at = ahead.pop() as string;
    if (at === to) return true;
    if (seen.has(at)) continue;
    seen.add(at);
    for (const line of lines) if (line.from === at) ahead.push(line.to);
  }
  return false;
}

/** A stable topological order of the boxes, as indexes. */
function inOrder(boxes: Box[], lines: Line[]): number[] {
  const order: number[] = [];
  const left = new Set(boxes.map((box) => box.id));
  while (left.size > 0) {
    const next = boxes.find((box) => left.has(box.id) && !lines.some((line) => line.to === box.id && left.has(line.from))) ?? boxes.find((box) => left.has(box.id));
    if (!next) break;
    left.delete(next.id);
    order.push(next.at);
  }
  return order;
}
