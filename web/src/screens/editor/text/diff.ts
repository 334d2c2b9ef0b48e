/** The line differences between two texts (the algorithm of Myers). */

export interface Line {
  kind: "same" | "removed" | "added";
  text: string;
  before?: number;
  after?: number;
}

const MAX_STEPS = 4000;

export function diff(before: string, after: string): Line[] {
  const a = before.split("\n");
  const b = after.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const kinds: Line["kind"][] = [
    ...Array<Line["kind"]>(head).fill("same"),
    ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...Array<Line["kind"]>(tail).fill("same"),
  ];
  let x = 0;
  let y = 0;
  return kinds.map((kind) => {
    if (kind === "removed") return { kind, text: a[x] ?? "", before: ++x };
    if (kind === "added") return { kind, text: b[y] ?? "", after: ++y };
    return { kind, text: a[x] ?? "", before: ++x, after: ++y };
  });
}

function middle(a: string[], b: string[]): Line["kind"][] {
  const most = Math.min(a.length + b.length, MAX_STEPS);
  const steps: Map<number, number>[] = [];
  let best = new Map<number, number>([[1, 0]]);
  for (let d = 0; d <= most; d += 1) {
    steps.push(new Map(best));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (best.get(k - 1) ?? -1) < (best.get(k + 1) ?? -1));
      let x = down ? (best.get(k + 1) ?? 0) : (best.get(k - 1) ?? 0) + 1;
      let y = x - k;
      while (x < a.length && y < b.length && a[x] === b[y]) {
        x += 1;
        y += 1;
      }
      best.set(k, x);
      if (x >= a.length && y >= b.length) return walkBack(a, b, steps, d);
    }
    best = new Map(best);
  }
  return [...a.map(() => "removed" as const), ...b.map(() => "added" as const)];
}

function walkBack(a: string[], b: string[], steps: Map<number, number>[], length: number): Line["kind"][] {
  const found: Line["kind"][] = [];
  let x = a.length;
  let y = b.length;
  for (let d = length; d > 0; d -= 1) {
    const best = steps[d] as Map<number, number>;
    const k = x - y;
    const down = k === -d || (k !== d && (best.get(k - 1) ?? -1) < (best.get(k + 1) ?? -1));
    const from = down ? k + 1 : k - 1;
    const fromX = best.get(from) ?? 0;
    const fromY = fromX - from;
    while (x > fromX && y > fromY && x > 0 && y > 0 && a[x - 1] === b[y - 1]) {
      found.push("same");
      x -= 1;
      y -= 1;
    }
    found.push(down ? "added" : "removed");
    x = fromX;
    y = fromY;
  }
  for (; x > 0 && y > 0; x -= 1, y -= 1) found.push("same");
  return found.reverse();
}

export interface Hunk {
  lines: Line[];
  /** How many unchanged lines before it are left out. */
  left: number;
}

/** The changes with a few lines of context. */
export function hunks(lines: Line[], around = 3): Hunk[] {
  const keep = new Set<number>();
  lines.forEach((line, index) => {
    if (line.kind !== "same") for (let at = index - around; at <= index + around; at += 1) keep.add(at);
  });
  const made: Hunk[] = [];
  let left = 0;
  let open: Hunk | null = null;
  lines.forEach((line, index) => {
    if (!keep.has(index)) {
      left += 1;
      open = null;
      return;
    }
    if (!open) {
      open = { lines: [], left };
      made.push(open);
      left = 0;
    }
    open.lines.push(line);
  });
  return made;
}
