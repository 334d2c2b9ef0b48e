/** A layered graph layout from left to right with few crossings; its cost is linear in the number of edges. */
import type { Edge } from "./dag-edges";

/** Layers have space for edges between them; columns of one layer only a gap. */
const BETWEEN = 40;
const GAP = 18;
const DOWN = 64;
const SWEEPS = 6;

/** The position of each node for boxes of this width; edges that close a cycle do not affect the layers. */
export function layoutGraph(names: string[], edges: Edge[], wide: number): Map<string, { x: number; y: number }> {
  const below = new Map<string, string[]>(names.map((name) => [name, []]));
  const above = new Map<string, string[]>(names.map((name) => [name, []]));
  const order = new Map(names.map((name, index) => [name, index]));
  const seen = new Map<string, "open" | "done">();
  for (const edge of edges) if (below.has(edge.from) && below.has(edge.to)) below.get(edge.from)?.push(edge.to);

  // Longest paths by an iterative depth-first search; an edge to an open node closes a cycle.
  const finished: string[] = [];
  const straight = new Map<string, string[]>(names.map((name) => [name, []]));
  for (const root of names) {
    if (seen.has(root)) continue;
    const stack: [string, number][] = [[root, 0]];
    seen.set(root, "open");
    while (stack.length > 0) {
      const top = stack[stack.length - 1] as [string, number];
      const next = below.get(top[0])?.[top[1]++];
      if (next === undefined) {
        seen.set(top[0], "done");
        finished.push(top[0]);
        stack.pop();
      } else if (seen.get(next) !== "open") {
        straight.get(top[0])?.push(next);
        above.get(next)?.push(top[0]);
        if (!seen.has(next)) {
          seen.set(next, "open");
          stack.push([next, 0]);
        }
      }
    }
  }
  const layer = new Map<string, number>(names.map((name) => [name, 0]));
  for (const name of finished.reverse()) for (const next of straight.get(name) ?? []) layer.set(next, Math.max(layer.get(next) ?? 0, (layer.get(name) ?? 0) + 1));
  // A node without predecessors goes next to its first successor: an event beside its step.
  for (const name of names) {
    const after = straight.get(name) ?? [];
    if (after.length > 0 && above.get(name)?.length === 0) layer.set(name, Math.min(...after.map((next) => layer.get(next) ?? 0)) - 1);
  }

  const rows: string[][] = [];
  for (const name of names) (rows[layer.get(name) ?? 0] ??= []).push(name);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const near = sweep % 2 === 0 ? above : straight;
    for (const row of sweep % 2 === 0 ? rows : [...rows].reverse()) {
      const weight = new Map(row.map((name) => {
        const places = (near.get(name) ?? []).map((each) => order.get(each) ?? 0);
        return [name, places.length ? places.reduce((a, b) => a + b, 0) / places.length : (order.get(name) ?? 0)];
      }));
      row.sort((a, b) => (weight.get(a) ?? 0) - (weight.get(b) ?? 0));
      row.forEach((name, index) => order.set(name, index));
    }
  }
  const tallest = Math.max(1, ...rows.map((row) => row.length));
  // Wrap wide layers into several columns, so that a fan-out of a thousand is a block and not a line.
  const most = Math.max(12, Math.ceil(Math.sqrt(names.length) * 1.3));
  const places = new Map<string, { x: number; y: number }>();
  let x = 0;
  for (const row of rows) {
    const columns = Math.ceil(row.length / most);
    const high = Math.ceil(row.length / columns);
    row.forEach((name, index) => {
      const column = Math.floor(index / high);
      const inColumn = Math.min(high, row.length - column * high);
      places.set(name, { x: x + column * (wide + GAP), y: ((index % high) - (inColumn - 1) / 2 + Math.min(tallest, most) / 2) * DOWN });
    });
    x += (columns - 1) * (wide + GAP) + wide + BETWEEN;
  }
  return places;
}
