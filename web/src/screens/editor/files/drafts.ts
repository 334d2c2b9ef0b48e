/** Unsaved texts and box positions, stored in this browser until they are saved or discarded. */

interface Draft {
  /** The version that was edited; null for a new file. */
  version: string | null;
  base: string | null;
  text: string;
}

const key = (path: string) => `tidemill.draft.${path}`;

export function readDraft(path: string): Draft | null {
  try {
    const found = JSON.parse(window.localStorage.getItem(key(path)) ?? "null") as Draft | null;
    return found && typeof found.text === "string" ? found : null;
  } catch {
    return null;
  }
}

/** Paths of the files with unsaved changes in this browser. */
export function listDrafts(): string[] {
  const head = key("");
  return Object.keys(window.localStorage).flatMap((name) => (name.startsWith(head) ? [name.slice(head.length)] : []));
}

export function saveDraft(path: string, draft: Draft | null): void {
  try {
    if (draft) window.localStorage.setItem(key(path), JSON.stringify(draft));
    else window.localStorage.removeItem(key(path));
  } catch {
    // The storage is full: the draft lives only on this page.
  }
}

const positionsKey = (path: string) => `tidemill.positions.${path}`;

type Points = Record<string, { x: number; y: number }>;

/** Positions of boxes, for formats that do not store them. */
export function readPositions(path: string): Points {
  try {
    return (JSON.parse(window.localStorage.getItem(positionsKey(path)) ?? "{}") ?? {}) as Points;
  } catch {
    return {};
  }
}

export function savePositions(path: string, points: Points): void {
  try {
    if (Object.keys(points).length) window.localStorage.setItem(positionsKey(path), JSON.stringify(points));
    else window.localStorage.removeItem(positionsKey(path));
  } catch {
    // The storage is full.
  }
}

/** Move the stored data of a file to its new name. */
export function moveDraft(from: string, to: string): void {
  saveDraft(to, readDraft(from));
  savePositions(to, readPositions(from));
  deleteDraft(from);
}

/** Delete the stored data of a file. */
export function deleteDraft(path: string): void {
  saveDraft(path, null);
  savePositions(path, {});
}
