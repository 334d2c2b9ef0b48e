/** HTTP requests to the API: JSON in, JSON out; errors carry the server's explanation. */

/** An error response of the API. */
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
let handleUnauthorized: () => void = () => {};

/** Set the CSRF token of the session; every change must carry it. */
export function setCsrf(token: string | null): void {
  csrf = token;
}

/** Set what happens when the session is no longer valid. */
export function onUnauthorized(action: () => void): void {
  handleUnauthorized = action;
}

export type Query = Record<string, string | number | boolean | null | undefined | readonly string[]>;

/** A URL of the API with a query; empty values are left out. */
export function apiUrl(path: string, query: Query = {}): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    if (Array.isArray(value)) for (const each of value) params.append(name, String(each));
    else params.set(name, String(value));
  }
  const text = params.toString();
  return ROOT + path + (text ? `?${text}` : "");
}

async function send<T>(method: string, url: string, body?: unknown, extra: Record<string, string> = {}, isIdempotent = false): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json", ...extra };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") {
    if (csrf) headers["X-CSRF-Token"] = csrf;
    if (method === "POST" && !isIdempotent) headers["Idempotency-Key"] = crypto.randomUUID?.() ?? String(Math.random()).slice(2);
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
    throw new Problem(0, "The server does not answer. It may be restarting; this page reconnects automatically.");
  }
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  let data: unknown;
  try {
    data = text ? JSON.parse(text) : undefined;
  } catch {
    throw new Problem(response.status, `The server returned status ${response.status} with a body that is not JSON. A proxy in front of it may have answered.`);
  }
  if (!response.ok) {
    const problem = (data ?? {}) as { detail?: string; errors?: { field: string; message: string }[] };
    if (response.status === 401 && !url.endsWith("/session")) handleUnauthorized();
    throw new Problem(response.status, problem.detail ?? `The server returned status ${response.status} without a reason.`, problem.errors ?? []);
  }
  return data as T;
}

export const get = <T>(path: string, query?: Query) => send<T>("GET", apiUrl(path, query));
export const post = <T>(path: string, body: unknown = {}, headers: Record<string, string> = {}) => send<T>("POST", apiUrl(path), body, headers);
export const put = <T>(path: string, body: unknown = {}, headers: Record<string, string> = {}) => send<T>("PUT", apiUrl(path), body, headers);
/** A POST that changes nothing (or needs no idempotency key). */
export const postQuery = <T>(path: string, body: unknown) => send<T>("POST", apiUrl(path), body, {}, true);
export const remove = <T>(path: string, headers: Record<string, string> = {}) => send<T>("DELETE", apiUrl(path), undefined, headers);
