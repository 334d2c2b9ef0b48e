/** What was not saved is kept in this browser until it is, or until somebody throws it away. */

interface Draft {
  /** The version that it was begun from; null for a new file. */
  version: string | null;
  base: string | null;
  text: string;
}

const key = (path: string) => `tidemill.draft.${path}`;

export function keptDraft(path: string): Draft | null {
  try {
    const found = JSON.parse(window.localStorage.getItem(key(path)) ?? "null") as Draft | null;
    return found && typeof found.text === "string" ? found : null;
  } catch {
    return null;
  }
}

/** The files that have something unsaved in this browser. */
export function drafted(): string[] {
  const head = key("");
  return Object.keys(window.localStorage).flatMap((name) => (name.startsWith(head) ? [name.slice(head.length)] : []));
}

export function keepDraft(path: string, draft: Draft | null): void {
  try {
    if (draft) window.localStorage.setItem(key(path), JSON.stringify(draft));
    else window.localStorage.removeItem(key(path));
  } catch {
    // The browser has no room left: then it is only on the page.
  }
}

const places = (path: string) => `tidemill.places.${path}`;

type Points = Record<string, { x: number; y: number }>;

/** Where boxes were put in files that do not say so themselves. */
export function keptPlaces(path: string): Points {
  try {
    return (JSON.parse(window.localStorage.getItem(places(path)) ?? "{}") ?? {}) as Points;
  } catch {
    return {};
  }
}

export function keepPlaces(path: string, points: Points): void {
  try {
    if (Object.keys(points).length) window.localStorage.setItem(places(path), JSON.stringify(points));
    else window.localStorage.removeItem(places(path));
  } catch {
    // As above.
  }
}

/** What is kept of a file goes with it to its new name. */
export function move(from: string, to: string): void {
  keepDraft(to, keptDraft(from));
  keepPlaces(to, keptPlaces(from));
  forget(from);
}

/** Nothing of a file is kept any more. */
export function forget(path: string): void {
  keepDraft(path, null);
  keepPlaces(path, {});
}
