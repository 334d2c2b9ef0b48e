/** The format with nodes and a list of connections: pipelines and trigger workflows. */
import type { Data } from "../text/document";
import type { Edit, Kind, Kinds } from "../types";
import { append, type Box, entries, type FileFormat, freeName, isPinned, type Line, type Point, renamed, requiredFields, rewrite, without } from "./diagram";

const text = (value: unknown): string => (typeof value === "string" || typeof value === "number" ? String(value) : "");

/** A short description of a node. */
function about(node: Data): string {
  const data = (node.data ?? {}) as Data;
  const found = ["pattern", "output", "expression", "condition", "url", "command", "cron", "interval", "prompt", "transform", "path"].map((name) => text(data[name])).find(Boolean);
  return found ?? "";
}

function point(value: unknown): Point | null {
  const found = (value ?? {}) as { x?: unknown; y?: unknown };
  return typeof found.x === "number" && typeof found.y === "number" ? { x: found.x, y: found.y } : null;
}

export const modeOf = (data: Data): string => text(data.mode) || (entries(data, "nodes").some((node) => ["state_scan", "state_trigger", "state_transform"].includes(text(node.typeId))) ? "pipeline" : "trigger");

const kindOf = (entry: Data, kinds: Kinds): Kind | undefined => kinds.kinds.find((kind) => kind.form === "graph" && kind.type === entry.typeId);

export const graphFormat: FileFormat = {
  list: "nodes",
  storesPositions: true,
  kindOf,
  palette: (data, kinds) => kinds.kinds.filter((kind) => kind.form === "graph" && kind.group !== "imported" && kind.modes.includes(modeOf(data))),
  draw(data, kinds) {
    const seen = new Set<string>();
    const boxes = entries(data, "nodes").map((node, at): Box => {
      const id = text(node.id) && !seen.has(text(node.id)) ? text(node.id) : `#${at}`;
      seen.add(id);
      const kind = kindOf(node, kinds);
      return { id, at, label: text(node.name) || text(node.id) || "unnamed", type: text(node.typeId) || "no type", about: isPinned(node) ? "pinned" : about(node), position: point(node.position), isStart: kind?.is_start ?? false, exits: kind?.exits ?? [] };
    });
    const lines = entries(data, "connections").flatMap((link, at): Line[] => {
      const [from, to] = [text(link.sourceNodeId), text(link.targetNodeId)];
      if (!seen.has(from) || !seen.has(to)) return [];
      const exits = boxes.find((box) => box.id === from)?.exits ?? [];
      const exit = text(link.sourceConnectorId);
      return [{ id: `c${at} ${from} ${to}`, from, to, exit: exits.includes(exit) ? exit : null, implied: false, at }];
    });
    return { boxes, lines };
  },
  dataOf(_, diagram, name) {
    const at = diagram.boxes.find((box) => box.label === name)?.at;
    return at === undefined ? null : ["nodes", at, "data"];
  },
  add(data, kind, at, after) {
    const nodes = entries(data, "nodes");
    const base = kind.type.replace(/^state_/, "");
    const name = freeName(base, nodes.flatMap((node) => [text(node.name), text(node.id)]));
    const made = { id: name, typeId: kind.type, name, position: at, data: requiredFields(kind) };
    const edits = [append(data, "nodes", made)];
    if (after && !kind.is_start) edits.push(link(data, after.id, name, after.exits[0] ?? null));
    return edits;
  },
  connect(data, diagram, from, to, exit) {
    const isThere = diagram.lines.some((line) => line.from === from.id && line.to === to.id && (line.exit ?? null) === exit);
    return isThere || from.id === to.id ? [] : [link(data, from.id, to.id, exit)];
  },
  cut: (_, __, lines) => without("connections", lines.flatMap((line) => (line.at === null ? [] : [line.at]))),
  drop(data, diagram, boxes) {
    const gone = new Set(boxes.map((box) => box.id));
    const lines = diagram.lines.filter((line) => gone.has(line.from) || gone.has(line.to));
    return [...graphFormat.cut(data, diagram, lines), ...without("nodes", boxes.map((box) => box.at))];
  },
  rename(data, _, box, name) {
    const before = box.label;
    const edits: Edit[] = [{ path: ["nodes", box.at, "name"], value: name }];
    entries(data, "nodes").forEach((node, at) => {
      if (at !== box.at) edits.push(...rewrite(node.data, ["nodes", at, "data"], (each) => renamed(each, before, name)));
    });
    return edits;
  },
};

/** A new connection, with the same fields as the others in the file. */
function link(data: Data, from: string, to: string, exit: string | null): Edit {
  const others = entries(data, "connections");
  const made: Data = {};
  if (others.some((each) => "id" in each)) made.id = freeName("c1", others.map((each) => text(each.id)));
  made.sourceNodeId = from;
  const usual = others.find((each) => text(each.sourceConnectorId) && !["true", "false"].includes(text(each.sourceConnectorId)));
  if (exit ?? usual) made.sourceConnectorId = exit ?? usual?.sourceConnectorId;
  made.targetNodeId = to;
  const target = others.find((each) => text(each.targetConnectorId));
  if (target) made.targetConnectorId = target.targetConnectorId;
  return append(data, "connections", made);
}
