/** Paths of workflow files: their URLs, and which names are allowed. */

const escaped = (path: string) => path.split("/").map(encodeURIComponent).join("/");

/** The API path of a file. */
export const fileUrl = (path: string) => `/workflow-files/${escaped(path)}`;

/** The URL of a file's editor page. */
export const editorUrl = (path: string) => `/editor/${escaped(path)}`;

/** A typed name without surrounding spaces and leading slashes. */
export const cleanName = (name: string) => name.trim().replace(/^\/+/, "");

/** Why a name is not allowed; null if it is. */
export function nameProblem(path: string, taken: string[]): string | null {
  if (taken.includes(path)) return "A file with this name already exists.";
  return /(^|\/)\./.test(path) ? "A name must not start with a dot." : null;
}
