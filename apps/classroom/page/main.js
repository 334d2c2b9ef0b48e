/** The page: its router, and the data that all views share. */
import { address, get, mayAct, whoAmI } from "./api.js";
import { h, toast } from "./dom.js";
import { showName } from "./naming.js";
import { setClock } from "./times.js";
import * as nowPlace from "./now.js";
import * as classPlace from "./class.js";
import * as alertsPlace from "./alerts.js";
import * as studentPlace from "./student.js";
import * as researchPlace from "./research.js";

const PLACES = { now: nowPlace, class: classPlace, alerts: alertsPlace, student: studentPlace, research: researchPlace };
const AGAIN_MS = 10_000;
const main = document.getElementById("main");

let board = null;
let shown = null;
let asking = false;
let wanted = false;

/** The view of the URL: #/student/s001 is the student s001. */
function place() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const known = name === "" ? "now" : name;
  return PLACES[known] ? { name: known, detail: decodeURIComponent(rest.join("/")) } : { name: "now", detail: "" };
}

function show() {
  const { name, detail } = place();
  for (const link of document.querySelectorAll("[data-place]")) {
    if (link.dataset.place === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const key = `${name}/${detail}`;
  if (shown?.key !== key) {
    shown?.close?.();
    main.replaceChildren();
    shown = { key, ...PLACES[name].open(main, { detail, refresh }) };
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

function tell(tone, text) {
  const live = document.getElementById("live");
  live.className = `live ${tone}`;
  live.lastElementChild.textContent = text;
}

function follow() {
  const source = new EventSource(address("/live"));
  source.onopen = () => tell("ok", "live");
  source.addEventListener("news", refresh);
  source.onerror = () => {
    tell("wait", "reconnecting");
    if (source.readyState === EventSource.CLOSED) setTimeout(refused, AGAIN_MS);
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
