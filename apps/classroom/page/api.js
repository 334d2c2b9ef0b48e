/** Requests to the server. */
const BASE = "/pages/classroom/api";
const NAME = "classroom.who";

let session = null;

/** The session; read once. */
export async function whoAmI() {
  if (session === null) session = await read(await fetch("/api/v1/session"));
  return session;
}

/** Whether this browser may change anything. */
export function mayAct() {
  return session !== null && !session.read_only && ["operator", "editor", "admin"].includes(session.role);
}

/** The user's name; empty until it is set. */
export function myName() {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

export function setMyName(name) {
  try {
    localStorage.setItem(NAME, name);
  } catch {
    // Without storage the name is asked for again.
  }
}

/** A URL of the page's API. */
export function address(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null));
  return `${BASE}${path}${query.size ? `?${query}` : ""}`;
}

export async function get(path, parameters) {
  return read(await fetch(address(path, parameters)));
}

export async function post(path, body) {
  const { csrf } = await whoAmI();
  const headers = { "content-type": "application/json", ...(csrf ? { "x-csrf-token": csrf } : {}) };
  return read(await fetch(address(path), { method: "POST", headers, body: JSON.stringify({ ...body, who: myName() }) }));
}

async function read(answer) {
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told;
  const error = new Error(told.detail ?? `the server returned status ${answer.status}`);
  error.status = answer.status;
  throw error;
}
