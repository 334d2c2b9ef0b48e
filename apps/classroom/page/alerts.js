/** Current or all alerts, with acknowledgement and notes. */
import { TRIGGERS, doneButton, noteButton, alertState, studentLink, triggerTag } from "./actions.js";
import { get } from "./api.js";
import { h, keyed, toast } from "./dom.js";
import { dayAndTime, since } from "./times.js";

/** One alert in a list. */
export function alertItem(alert, refresh) {
  const isOpen = !alert.acked_at && (alert.kind === "momentary" || !alert.resolved_at);
  const told = alertState(alert);
  return h(`li.alert${isOpen ? ".open" : ""}`, {},
    h("div.row", {}, triggerTag(alert.trigger), h("b", {}, studentLink(alert.student)),
      h("span.faint", { title: dayAndTime(alert.started_at) }, since(alert.started_at, { after: " ago" })), h("span.grow"),
      isOpen ? doneButton(alert.student, [alert.id], refresh, { label: "Acknowledge" }) : null, noteButton(alert, refresh)),
    told ? h("p.soft", {}, told) : null,
    alert.note ? h("p.note", {}, alert.note) : null);
}

export function open(main, { refresh }) {
  let all = false;
  let trigger = null;
  let board = null;
  let earlier = [];
  const list = h("ul.feed");
  const none = h("div.empty", { hidden: true }, h("b", {}, "No alerts"), h("div", {}, "No alert matches these filters."));
  const chip = (text, isOn, choose) => {
    const made = h("button.chip", { type: "button", "aria-pressed": isOn() }, text);
    made.onclick = async () => { choose(); await load(); };
    made.isOn = isOn;
    return made;
  };
  const chips = [
    chip("Current", () => !all, () => { all = false; }),
    chip("All", () => all, () => { all = true; }),
    ...Object.entries(TRIGGERS).map(([name, { name: text }]) => chip(text, () => trigger === name, () => { trigger = trigger === name ? null : name; })),
  ];
  main.append(h("div.head", {}, h("div", {}, h("h1", {}, "Alerts"), h("p", {}, "An acknowledged alert opens again after ten minutes if nothing has changed. Notes with yes or no show how good the alerts are."))),
    h("div.filters", {}, h("div.chips", { role: "group", "aria-label": "Filter" }, chips)),
    h("section.panel", { "aria-label": "Alerts" }, list, none));

  async function load() {
    for (const each of chips) each.setAttribute("aria-pressed", String(each.isOn()));
    try {
      if (all) earlier = (await get("/alerts", { trigger, limit: 300 })).items;
    } catch (error) {
      toast(error.message, { bad: true });
    }
    draw();
  }

  async function again() {
    await refresh();
    await load();
  }

  function draw() {
    if (!board) return;
    const shown = (all ? earlier : board.feed).filter((alert) => !trigger || alert.trigger === trigger);
    keyed(list, shown, (alert) => alert.id, (alert) => alertItem(alert, again));
    none.hidden = shown.length > 0;
  }

  return { update(next) { board = next; draw(); } };
}
