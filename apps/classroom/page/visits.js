/** The ranked list of students to visit, groups with the same problem, and current alerts. */
import { doneButton, goToAllButton, goingButtons, studentLink, triggerTag } from "./actions.js";
import { alertItem } from "./alerts.js";
import { h, keyed } from "./dom.js";
import { since } from "./times.js";

const FIRST = 30;

export function open(main, { refresh }) {
  let board = null;
  let all = false;
  const more = h("button.button", { type: "button", hidden: true });
  more.onclick = () => {
    all = true;
    draw();
  };
  const count = h("p", { role: "status" });
  const trouble = h("div");
  const groups = h("ul.groups");
  const list = h("ol.visits", { "aria-label": "Students to visit" });
  const nothing = h("div.empty.good", { hidden: true }, h("b", {}, "No student needs help now"), h("div", {}, "Students who need help appear here automatically."));
  const feed = h("ul.feed");
  const quiet = h("div.empty", { hidden: true }, h("div", {}, "No current alerts."));
  main.append(
    h("div.head", {}, h("div", {}, h("h1", {}, "Students to visit"), count)),
    trouble,
    h("div.columns", {},
      h("div.stack", {}, groups, list, more, nothing),
      h("section.panel", { "aria-labelledby": "feed-title" }, h("header", {}, h("h2", { id: "feed-title" }, "Alerts"), h("a", { href: "#/alerts" }, "All alerts")), feed, quiet)));

  function draw() {
    trouble.replaceChildren(...troubles(board));
    count.textContent = counted(board);
    nothing.hidden = board.visits.length > 0;
    const waiting = new Set(board.visits.filter((visit) => !visit.claim).map((visit) => visit.student));
    const shared = board.groups.map((group) => ({ ...group, waiting: group.students.filter((student) => waiting.has(student)) }));
    keyed(groups, shared.filter((group) => group.waiting.length > 1), (group) => group.block, (group) => groupItem(group, refresh));
    const visits = board.visits.map((visit, index) => ({ ...visit, place: index + 1, rank: undefined }));
    const shown = visits.filter((visit, index) => all || index < FIRST || visit.claim);
    keyed(list, shown, (visit) => visit.student, (visit) => visitItem(visit, refresh));
    more.hidden = shown.length === visits.length;
    more.textContent = `Show ${visits.length - shown.length} more`;
    keyed(feed, board.feed.slice(0, 40), (alert) => alert.id, (alert) => alertItem(alert, refresh));
    quiet.hidden = board.feed.length > 0;
  }

  return {
    update(next) {
      board = next;
      draw();
    },
  };
}

function counted({ visits, cards }) {
  const going = visits.filter((visit) => visit.claim).length;
  const need = visits.length === 1 ? "1 student needs help" : `${visits.length} students need help`;
  return `${need}${going ? `, ${going} of them ${going === 1 ? "is" : "are"} being visited` : ""}. ${cards.length} are monitored.`;
}

function troubles(board) {
  const told = [];
  if (board.health === "UNHEALTHY") told.push(`The log does not answer, so this page may be out of date: ${board.error ?? "no reason given"}`);
  if (board.health === "not started") told.push("The monitor is not running. Start it with `tidemill up apps/classroom/app.py`.");
  if (board.paused) told.push("The monitor is paused, so this page is out of date.");
  if (board.off.length) told.push(`Disabled triggers: ${board.off.join(", ")}.`);
  return told.map((text) => h("p.trouble", { role: "alert" }, text));
}

function groupItem(group, refresh) {
  return h("li.group.panel", {}, h("span.mark", { "aria-hidden": "true" }, "◫"), h("p.grow", {}, group.text), goToAllButton(group.waiting, refresh));
}

function visitItem(visit, refresh) {
  return h(`li.visit.panel${visit.claim ? ".claimed" : ""}`, {},
    h("span.place", { "aria-hidden": "true" }, visit.place),
    h("div.what", {},
      h("h2", {}, studentLink(visit.student), " ", triggerTag(visit.trigger), " ", h("span.lasts", {}, since(visit.since, { before: "for " }))),
      h("p.why-line", {}, visit.why),
      h("p.soft", {}, visit.tried),
      visit.mates.length ? h("p.soft", {}, "On the same block: ", ...between(visit.mates.slice(0, 6).map(studentLink)), visit.mates.length > 6 ? ` and ${visit.mates.length - 6} more` : "") : null),
    h("div.acts", {}, ...goingButtons(visit.student, visit.claim, refresh), doneButton(visit.student, visit.alerts, refresh)));
}

const between = (parts) => parts.flatMap((part, index) => (index ? [", ", part] : [part]));
