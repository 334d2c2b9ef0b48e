/** The class: a card for each student. */
import { goingButtons, stateTag } from "./actions.js";
import { sparkline } from "./charts.js";
import { h, keyed } from "./dom.js";
import { since } from "./times.js";

const EPISODES = { code: "changing the program", run: "running", pause: "looking at the result", reset: "opened a project", inactive: "inactive" };
const FILTERS = {
  all: ["All", () => true],
  stuck: ["Stuck", (card) => card.state === "stuck"],
  explorer: ["Exploring", (card) => card.state === "explorer"],
  iterator: ["Iterating", (card) => card.state === "iterator"],
  away: ["Absent", (card) => !card.present],
};

export function open(main, { refresh }) {
  let chosen = "all";
  let board = null;
  const chips = h("div.chips", { role: "group", "aria-label": "Filter" }, Object.entries(FILTERS).map(([name, [text]]) => {
    const chip = h("button.chip", { type: "button", "aria-pressed": name === chosen, "data-name": name }, text);
    chip.onclick = () => {
      chosen = name;
      for (const each of chips.children) each.setAttribute("aria-pressed", String(each === chip));
      draw();
    };
    return chip;
  }));
  const find = h("input.field", { type: "search", placeholder: "Find a student", "aria-label": "Find a student" });
  find.oninput = () => draw();
  const grid = h("ul.pupils");
  const none = h("div.empty", { hidden: true }, h("b", {}, "No students"), h("div", {}, "No student matches these filters."));
  main.append(h("div.head", {}, h("div", {}, h("h1", {}, "Class"), h("p", {}, "How each student is working now. Bars show how much the program changed from run to run."))),
    h("div.filters", {}, chips, find), grid, none);

  function draw() {
    if (!board) return;
    for (const chip of chips.children) {
      const [text, fits] = FILTERS[chip.dataset.name];
      chip.textContent = `${text} ${board.cards.filter(fits).length}`;
    }
    const cards = board.cards.filter((card) => FILTERS[chosen][1](card) && card.student.toLowerCase().includes(find.value.trim().toLowerCase()));
    keyed(grid, cards, (card) => card.student, (card) => cardItem(card, refresh));
    none.hidden = cards.length > 0;
  }

  return { update(next) { board = next; draw(); } };
}

function cardItem(card, refresh) {
  const episode = EPISODES[card.episode];
  return h(`li.pupil.panel${card.present ? "" : ".away"}`, {},
    h("header", {}, h("h2", {}, h("a", { href: `#/student/${encodeURIComponent(card.student)}` }, card.student)), card.present ? stateTag(card.state) : h("span.tag.off", {}, "absent")),
    sparkline(card.sparkline),
    h("dl.small-facts", {},
      h("dt", {}, "Now"), h("dd", {}, episode && card.episode_since ? [episode, " ", since(card.episode_since, { before: "· " })] : "nothing yet"),
      card.stuck_since ? [h("dt", {}, "Stuck"), h("dd.bad-text", {}, since(card.stuck_since, { before: "for " }), card.focus ? ` on “${card.focus}”` : "")] : null,
      h("dt", {}, "Runs"), h("dd", {}, `${card.runs}${card.zero_runs > 1 ? `, the last ${card.zero_runs} without a change` : ""}`),
      h("dt", {}, "Last event"), h("dd", {}, card.last_seen ? since(card.last_seen, { after: " ago" }) : "never")),
    card.problem ? h("p.trouble", {}, card.problem) : null,
    card.claim ? h("div.acts", {}, ...goingButtons(card.student, card.claim, refresh)) : null);
}
