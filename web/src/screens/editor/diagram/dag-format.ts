/** The format of dags: a node runs after its `deps`, or else after the nodes that it references. */
import type { DeclaredNode } from "../../../api/types";
import { depsOf } from "../../../components/graph/dag-edges";
import type { Data } from "../text/document";
import type { Edit, Kind, Kinds } from "../types";
import { append, type Box, entries, type FileFormat, freeName, type Line, renamed, requiredFields, rewrite, without } from "./diagram";

const text = (value: unknown): string => (typeof value === "string" ? value : "");

function kindOf(entry: Data, kinds: Kinds): Kind | undefined {
  return kinds.kinds.find((kind) => kind.form === "dag" && kind.mark !== null && kind.mark in entry);
}

function about(node: Data): string {
  if ("task" in node) return [text(node.task), text(node.queue)].filter(Boolean).join(" on ");
  if ("prompt" in node) return text(node.prompt);
  return typeof node.dag === "string" ? node.dag : "inline dag";
}

/** The nodes before a node: declared, or implied by its references. */
function before(node: Data, names: Set<string>): { names: string[]; implied: boolean } {
  if (Array.isArray(node.deps)) return { names: node.deps.filter((each): each is string => typeof each === "string"), implied: false };
  return { names: depsOf({ ...node, deps: null } as unknown as DeclaredNode, names), implied: true };
}

export const dagFormat: FileFormat = {
  list: "nodes",
  storesPositions: false,
  dataOf: () => null,
  kindOf,
  palette: (_, kinds) => kinds.kinds.filter((kind) => kind.form === "dag"),
  draw(data, kinds) {
    const nodes = entries(data, "nodes");
    const names = new Set(nodes.map((node) => text(node.name)));
    const seen = new Set<string>();
    const boxes = nodes.map((node, at): Box => {
      const name = text(node.name);
      const id = name && !seen.has(name) ? name : `#${at}`;
      seen.add(id);
      return { id, at, label: name || "unnamed", type: kindOf(node, kinds)?.type ?? "unknown type", about: about(node), position: null, isStart: false, exits: [] };
    });
    const lines = nodes.flatMap((node, at): Line[] => {
      const to = (boxes[at] as Box).id;
      const found = before(node, names);
      return [...new Set(found.names)].filter((from) => seen.has(from) && from !== to).map((from) => ({ id: `${from} → ${to}`, from, to, exit: null, implied: found.implied, at }));
    });
    return { boxes, lines };
  },
  add(data, kind, _, after) {
    const name = freeName(kind.type === "input" ? "ask" : kind.type === "dag" ? "part" : "step", entries(data, "nodes").map((node) => text(node.name)));
    const made: Data = { name, ...requiredFields(kind) };
    if (after) made.deps = [after.id];
    return [append(data, "nodes", made)];
  },
  connect(data, _, from, to) {
    const node = entries(data, "nodes")[to.at] ?? {};
    const found = before(node, new Set(entries(data, "nodes").map((each) => text(each.name))));
    if (from.id === to.id || (found.names.includes(from.id) && !found.implied)) return [];
    return [{ path: ["nodes", to.at, "deps"], value: [...new Set([...found.names, from.id])] }];
  },
  cut(data, _, lines) {
    const gone = new Map<number, Set<string>>();
    for (const line of lines) if (line.at !== null && !line.implied) gone.set(line.at, (gone.get(line.at) ?? new Set()).add(line.from));
    return [...gone].map(([at, names]): Edit => {
      const deps = entries(data, "nodes")[at]?.deps;
      return { path: ["nodes", at, "deps"], value: Array.isArray(deps) ? deps.filter((each) => !names.has(each as string)) : [] };
    });
  },
  drop(data, diagram, boxes) {
    const gone = new Set(boxes.map((box) => box.id));
    const cut = diagram.lines.filter((line) => gone.has(line.from) && !gone.has(line.to));
    return [...dagFormat.cut(data, diagram, cut), ...without("nodes", boxes.map((box) => box.at))];
  },
  rename(data, _, box, name) {
    const old = text(entries(data, "nodes")[box.at]?.name);
    const edits: Edit[] = [{ path: ["nodes", box.at, "name"], value: name }];
    const change = (each: string, path: (string | number)[]): string => {
      const field = path[path.length - 1];
      if (path[2] === "deps") return each === old ? name : each;
      if (field === "$from") return each.replace(new RegExp(`^(\\$\\.)?${old.replaceAll("-", "\\-")}(?![\\w-])`), `$1${name}`);
      if (path[2] === "skip_if" && path.length === 3) return each.replaceAll(new RegExp(`(?<![.\\w'"])${old.replaceAll("-", "\\-")}(?![\\w-])`, "g"), name);
      return renamed(each, old, name, false);
    };
    entries(data, "nodes").forEach((node, at) => {
      if (at !== box.at && old) for (const field of ["deps", "args", "map", "prompt", "skip_if"]) edits.push(...rewrite(node[field], ["nodes", at, field], change));
    });
    if (old) edits.push(...rewrite(data.result, ["result"], change));
    return edits;
  },
};
