/** Times as text, by the server's clock. */
let ahead = 0;

/** Set the clock to the server's time. */
export function setClock(now) {
  ahead = now - Date.now() / 1000;
}

export const now = () => Date.now() / 1000 + ahead;

/** A duration as short text. */
export function howLong(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** The time of day. */
export function clock(at, { seconds = false } = {}) {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(seconds ? { second: "2-digit" } : {}) });
}

/** The day and the time. */
export function dayAndTime(at) {
  return new Date(at * 1000).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
}

/** An element with the time since a moment, updated every second. */
export function since(at, { before = "", after = "" } = {}) {
  const made = document.createElement("time");
  made.dateTime = new Date(at * 1000).toISOString();
  made.dataset.since = String(at);
  made.dataset.before = before;
  made.dataset.after = after;
  update(made);
  return made;
}

function update(element) {
  const text = element.dataset.before + howLong(now() - Number(element.dataset.since)) + element.dataset.after;
  if (element.textContent !== text) element.textContent = text;
}

setInterval(() => {
  for (const element of document.querySelectorAll("time[data-since]")) update(element);
}, 1000);
