/** The page of the blog: states by day on one side, the site on the other. A day that is chosen shows its post. */

const PIPELINES = ["auto-blog", "daily-podcast"];
const SAFETY_POLL = 15000;
const TONES = { fresh: "ok", building: "run", stale: "wait", failed: "bad", needs_attention: "attention", blocked: "off", paused: "wait", needs_approval: "wait", orphan: "off" };
const FRONT = "index.html";

const at = (id) => document.getElementById(id);
let shown = location.hash.slice(1) || FRONT;
let written = "";

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

async function read(address, kind) {
  const response = await fetch(address, { headers: { accept: kind === "json" ? "application/json" : "text/plain" } });
  if (response.status === 401) throw new Error("This server needs a login: open the console.");
  if (response.ok) return kind === "json" ? response.json() : response.text();
  const told = await response.json();
  throw Object.assign(new Error(told.detail), { missing: response.status === 404 });
}

// -- the states -------------------------------------------------------------------------------------

async function showStates() {
  const address = (name) => `/api/v1/pipelines/${name}/grid?by=date&limit=100`;
  const grids = await Promise.all(PIPELINES.map((name) => read(address(name), "json")));
  const days = [...new Set(grids.flatMap((grid) => grid.items.map((row) => row.entity)))].sort().reverse();
  at("total").textContent = `${days.length} days`;
  const heads = grids.flatMap((grid) => grid.stages.map((stage) => make("th", { scope: "col" }, stage)));
  const rows = days.map((day) => {
    const cells = grids.flatMap((grid, index) => {
      const found = grid.items.find((row) => row.entity === day);
      return grid.stages.map((stage, column) => stateCell(PIPELINES[index], stage, day, found?.cells[column] ?? null));
    });
    const open = make("button", { type: "button" }, day);
    open.addEventListener("click", () => show(`posts/${day}.html`));
    return make("tr", { "aria-current": String(shown === `posts/${day}.html`) }, make("th", { scope: "row" }, open), ...cells);
  });
  at("states").replaceChildren(make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "day"), ...heads)), make("tbody", {}, ...rows));
}

function stateCell(pipeline, stage, day, state) {
  if (state === null) return make("td", { class: "faint" }, "–");
  const query = new URLSearchParams({ stage, entity: day });
  return make("td", { class: TONES[state] ?? "off" }, make("a", { href: `/pipelines/${pipeline}?${query}`, "aria-label": `${stage} of ${day}: ${state}` }, state.replaceAll("_", " ")));
}

// -- the site ---------------------------------------------------------------------------------------

async function showSite() {
  at("where").textContent = shown === FRONT ? "Site" : shown;
  let text;
  try {
    text = await read(`api/site/${shown}`, "text");
  } catch (error) {
    if (!error.missing) throw error;
    written = "";
    at("site").replaceChildren(make("p", { class: "soft" }, error.message));
    return;
  }
  if (text === written) return;
  written = text;
  // Without the style of the site, which the policy of this page does not allow; neither does it allow any script.
  const content = /<main>([\s\S]*)<\/main>/.exec(text)?.[1] ?? "";
  const found = new DOMParser().parseFromString(content, "text/html").body;
  for (const each of found.querySelectorAll("audio")) each.remove();
  for (const each of found.querySelectorAll("img")) each.src = `api/site/${each.getAttribute("src").replace(/^(\.\.\/)+/, "")}`;
  at("site").replaceChildren(...found.childNodes);
}

function show(path) {
  shown = path;
  history.replaceState(null, "", path === FRONT ? location.pathname : `#${path}`);
  void look();
}

at("front").addEventListener("click", () => show(FRONT));
at("site").addEventListener("click", (event) => {
  const link = event.target.closest("a")?.getAttribute("href") ?? "";
  const found = /^(?:\.\.\/)?(index\.html|posts\/[^/]+\.html)$/.exec(link) ?? (/^[^/:]+\.html$/.test(link) ? [link, `posts/${link}`] : null);
  if (!found) return;
  event.preventDefault();
  show(found[1]);
  at("site").focus();
});

// -- changes ----------------------------------------------------------------------------------------

async function look() {
  const trouble = at("trouble");
  try {
    await Promise.all([showStates(), showSite()]);
    trouble.hidden = true;
  } catch (error) {
    trouble.hidden = false;
    trouble.textContent = error instanceof TypeError ? "The server does not answer. This page reconnects automatically." : error.message;
  }
}

new EventSource("/api/v1/changes?topic=pipelines").addEventListener("change", () => void look());
setInterval(look, SAFETY_POLL);
void look();
