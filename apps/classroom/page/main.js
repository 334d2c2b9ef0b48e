/** The page: its router, and the data that all views share. */
import { address, get, mayAct, whoAmI } from "./api.js";
import { h, toast } from "./dom.js";
import { showName } from "./user_name.js";
import { setClock } from "./times.js";
import * as visitsView from "./visits.js";
import * as classView from "./class.js";
import * as alertsView from "./alerts.js";
import * as studentView from "./student.js";
import * as researchView from "./research.js";

const VIEWS = { now: visitsView, class: classView, alerts: alertsView, student: studentView, research: researchView };
const RETRY_MS = 10_000;
const main = document.getElementById("main");

let board = null;
let shown = null;
let asking = false;
let wanted = false;

/** The view of the URL: #/student/s001 is the student s001. */
function currentView() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const known = name === "" ? "now" : name;
  return VIEWS[known] ? { name: known, detail: decodeURIComponent(rest.join("/")) } : { name: "now", detail: "" };
}

function show() {
  const { name, detail } = currentView();
  for (const link of document.querySelectorAll("[data-place]")) {
    if (link.dataset.place === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const key = `${name}/${detail}`;
  if (shown?.key !== key) {
    shown?.close?.();
    main.replaceChildren();
    shown = { key, ...VIEWS[name].open(main, { detail, refresh }) };
    document.title = `${main.querySelector("h1")?.textContent ?? "Classroom"} · Classroom`;
    scrollTo(0, 0);
  }
  if (board) shown.update?.(board);
}

/** Read the board, one request at a time; requests meanwhile are merged into the next one. */
async function refresh() {
  wanted = true;
  if (asking) return;
  asking = true;
  try {
    while (wanted) {
      wanted = false;
      board = await get("/board");
      setClock(board.now);
      show();
    }
  } catch (error) {
    if (error.status === 401) logIn();
    else if (error.status) toast(error.message, { bad: true });
  } finally {
    asking = false;
  }
}

function logIn() {
  main.replaceChildren(h("div.empty", {}, h("b", {}, "Please log in"),
    h("div", {}, "This server needs a token. ", h("a", { href: "/" }, "Log in on the console"), " and return to this page.")));
}

function showStatus(tone, text) {
  const live = document.getElementById("live");
  live.className = `live ${tone}`;
  live.lastElementChild.textContent = text;
}

function follow() {
  const source = new EventSource(address("/live"));
  source.onopen = () => showStatus("ok", "live");
  source.addEventListener("news", refresh);
  source.onerror = () => {
    showStatus("wait", "reconnecting");
    if (source.readyState === EventSource.CLOSED) setTimeout(refused, RETRY_MS);
  };
}

/** The server has too many open streams: poll until it accepts one more. */
function refused() {
  refresh();
  follow();
}

try {
  const session = await whoAmI();
  showName();
  addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); });
  if (session.authenticated) {
    document.body.classList.toggle("may-act", mayAct());
    await refresh();
    follow();
  } else {
    logIn();
  }
} catch (error) {
  main.replaceChildren(h("p.trouble", { role: "alert" }, `The server does not answer: ${error.message}`));
  setTimeout(() => location.reload(), 5000);
}
