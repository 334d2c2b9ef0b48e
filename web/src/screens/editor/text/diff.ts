/** The line differences between two texts, in hunks with a few lines of context. */
import { structuredPatch } from "diff";

interface Line {
  kind: "same" | "removed" | "added";
  text: string;
  before?: number;
  after?: number;
}

interface Hunk {
  lines: Line[];
  /** How many unchanged lines before it are left out. */
  left: number;
}

const MAX_EDITS = 4000;

/** The differences; texts that have almost nothing in common are shown as one removed and one added. */
export function diff(before: string, after: string, context = 3): Hunk[] {
  const patch = structuredPatch("", "", before, after, "", "", { context, maxEditLength: MAX_EDITS });
  if (patch === undefined) return [hunkOf([...before.split("\n").map((line) => `-${line}`), ...after.split("\n").map((line) => `+${line}`)], 1, 1, 0)];
  let end = 1;
  return patch.hunks.map((hunk) => {
    const left = hunk.oldStart - end;
    end = hunk.oldStart + hunk.oldLines;
    return hunkOf(hunk.lines, hunk.oldStart, hunk.newStart, left);
  });
}

/** A hunk from the lines of a unified diff. */
function hunkOf(written: string[], before: number, after: number, left: number): Hunk {
  const lines: Line[] = [];
  for (const line of written) {
    const text = line.slice(1);
    if (line.startsWith("-")) lines.push({ kind: "removed", text, before: before++ });
    else if (line.startsWith("+")) lines.push({ kind: "added", text, after: after++ });
    else if (line.startsWith(" ")) lines.push({ kind: "same", text, before: before++, after: after++ });
    else lines[lines.length - 1]!.text += " (no newline at the end)"; // "\ No newline at end of file" is about the line above it.
  }
  return { lines, left };
}
