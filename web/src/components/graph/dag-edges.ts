/** The edges of a dag: its declared dependencies, or else those implied by references. Sub-dags are expanded. */
import type { DeclaredNode, Definition } from "../../api/types";

export interface Edge {
  from: string;
  to: string;
}

interface Drawn {
  nodes: { name: string; spec: DeclaredNode }[];
  edges: Edge[];
}

/** Node names that the references in a value start with: {"$from": "a.b"}, "{{$.a.b}}", and words of a condition. */
function heads(value: unknown, found: Set<string>, isCondition = false): void {
  if (typeof value === "string") {
    for (const match of value.matchAll(/\{\{\s*\$?\.?([\w-]+)/g)) found.add(match[1] ?? "");
    if (isCondition) for (const match of value.replaceAll(/"[^"]*"|'[^']*'/g, "").matchAll(/(?<![.\w])([A-Za-z_][\w-]*)/g)) found.add(match[1] ?? "");
  } else if (Array.isArray(value)) {
    for (const each of value) heads(each, found, isCondition);
  } else if (value !== null && typeof value === "object") {
    for (const [name, each] of Object.entries(value)) {
      if (name === "$from" && typeof each === "string") found.add(each.replace(/^\$\./, "").split(/[.[]/)[0] ?? "");
      else heads(each, found, isCondition);
    }
  }
}

export function depsOf(node: DeclaredNode, names: Set<string>): string[] {
  if (node.deps) return node.deps;
  const found = new Set<string>();
  for (const part of [node.args, node.map, node.prompt]) heads(part, found);
  heads(node.skip_if, found, true);
  return [...found].filter((name) => names.has(name) && name !== node.name);
}

/** The declaration of a node; the names of nodes of sub-dags begin with those of the sub-dags. */
export function findSpec(definition: Definition, name: string): DeclaredNode | undefined {
  const [head = "", ...rest] = name.split("/");
  const found = definition.nodes.find((node) => node.name === head);
  return rest.length > 0 && found?.dag ? findSpec(found.dag, rest.join("/")) : found;
}

/** The nodes and edges of a dag, flat. */
export function dagGraph(definition: Definition, scope = ""): Drawn {
  const drawn: Drawn = { nodes: [], edges: [] };
  const names = new Set(definition.nodes.map((node) => node.name));
  const ends = (node: DeclaredNode) => scope + node.name;
  for (const node of definition.nodes) {
    const deps = depsOf(node, names).map((name) => scope + name);
    if (node.kind !== "dag" || !node.dag) {
      drawn.nodes.push({ name: ends(node), spec: node });
      for (const from of deps) drawn.edges.push({ from, to: ends(node) });
      continue;
    }
    const enter = `${ends(node)}/run`;
    const inner = dagGraph(node.dag, `${ends(node)}/`);
    drawn.nodes.push({ name: enter, spec: { ...node, name: `${node.name}/run` } }, ...inner.nodes, { name: ends(node), spec: node });
    drawn.edges.push(...inner.edges);
    for (const from of deps) drawn.edges.push({ from, to: enter });
    for (const each of inner.nodes) {
      if (!inner.edges.some((edge) => edge.to === each.name)) drawn.edges.push({ from: enter, to: each.name });
      if (!inner.edges.some((edge) => edge.from === each.name)) drawn.edges.push({ from: each.name, to: ends(node) });
    }
  }
  return drawn;
}
