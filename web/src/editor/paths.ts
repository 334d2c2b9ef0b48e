/** Names of workflow files: where each is, and what none may be called. */

const escaped = (path: string) => path.split("/").map(encodeURIComponent).join("/");

/** Where the server has a file. */
export const fileUrl = (path: string) => `/workflow-files/${escaped(path)}`;

/** Where a file is edited. */
export const pageOf = (path: string) => `/editor/${escaped(path)}`;

/** A name as it was typed, without what nobody means. */
export const cleaned = (name: string) => name.trim().replace(/^\/+/, "");

/** Why no file can be called so; null if one can. */
export function wrongName(path: string, taken: string[]): string | null {
  if (taken.includes(path)) return "There is a file of this name already.";
  return /(^|\/)\./.test(path) ? "A name does not begin with a dot." : null;
}
