/** Asking the server: JSON in, JSON out, and problems as errors that people can read. */

/** What the server says when it does not do what was asked. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly detail: string,
    readonly fields: { field: string; message: string }[] = [],
  ) {
    super(detail);
    this.name = "Problem";
  }
}

const ROOT = "/api/v1";
let csrf: string | null = null;
let onStranger: () => void = () => {};

/** What every change must carry, as the session tells it. */
export function setCsrf(token: string | null): void {
  csrf = token;
}

/** What to do when the server no longer knows us. */
export function onUnauthorized(action: () => void): void {
  onStranger = action;
}

export type Query = Record<string, string | number | boolean | null | undefined | readonly string[]>;

/** An address with a query; what is empty is left out. */
export function address(path: string, query: Query = {}): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    if (Array.isArray(value)) for (const each of value) params.append(name, String(each));
    else params.set(name, String(value));
  }
  const text = params.toString();
  return ROOT + path + (text ? `?${text}` : "");
}

async function ask<T>(method: string, url: string, body?: unknown, more: Record<string, string> = {}, once = true): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json", ...more };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") {
    if (csrf) headers["X-CSRF-Token"] = csrf;
    if (method === "POST" && once) headers["Idempotency-Key"] = crypto.randomUUID?.() ?? String(Math.random()).slice(2);
  }
  let response: Response;
  try {
    response = await fetch(url, {
      method,
      headers,
      credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Problem(0, "The server does not answer. It may be restarting: this page goes on by itself when it is back.");
  }
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  let data: unknown;
  try {
    data = text ? JSON.parse(text) : undefined;
  } catch {
    throw new Problem(response.status, `The server's answer (${response.status}) is not JSON.`);
  }
  if (!response.ok) {
    const told = (data ?? {}) as { detail?: string; errors?: { field: string; message: string }[] };
    if (response.status === 401 && !url.endsWith("/session")) onStranger();
    throw new Problem(response.status, told.detail ?? `The server refused (${response.status}).`, told.errors ?? []);
  }
  return data as T;
}

export const get = <T>(path: string, query?: Query) => ask<T>("GET", address(path, query));
export const post = <T>(path: string, body: unknown = {}, headers: Record<string, string> = {}) => ask<T>("POST", address(path), body, headers);
export const put = <T>(path: string, body: unknown = {}, headers: Record<string, string> = {}) => ask<T>("PUT", address(path), body, headers);
/** A question with a body: nothing changes, so nobody has to remember that it was asked. */
export const look = <T>(path: string, body: unknown) => ask<T>("POST", address(path), body, {}, false);
export const remove = <T>(path: string, headers: Record<string, string> = {}) => ask<T>("DELETE", address(path), undefined, headers);
