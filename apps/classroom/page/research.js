/** For researchers: thresholds, profiles, labels, exports and replay. Students have pseudonyms here. */
import { TRIGGERS } from "./actions.js";
import { address, get, mayAct, post } from "./api.js";
import { curve } from "./charts.js";
import { h, toast } from "./dom.js";
import { replayPanel } from "./replay.js";
import { dayAndTime, howLong, now } from "./times.js";

const SPANS = { "Last hour": 3600, "Last 3 hours": 3 * 3600, "Last 24 hours": 86400, "Last 7 days": 7 * 86400 };
const EXPORTS = { "progsnap2.zip": "ProgSnap2", "events.csv": "Events (CSV)", "runs.csv": "Runs with scores and states (CSV)", "alerts.csv": "Alerts with notes (CSV)" };

export function open(main, { refresh }) {
  const choice = h("select.select", { "aria-label": "Period" }, Object.keys(SPANS).map((name) => h("option", {}, name)));
  const said = h("span.soft");
  const place = { triggers: h("ul.switches"), sliders: h("div.stack"), profiles: h("div"), precision: h("div"), exports: h("div.row.pad"), replay: h("div") };
  main.append(
    h("div.head", {}, h("div", {}, h("h1", {}, "Research"), h("p", {}, "How well the triggers work, from the log. No student is named here."))),
    h("div.filters", {}, h("label.row", {}, "Period", choice), said),
    h("div.columns.even", {},
      panel("How often would a trigger have fired?", place.sliders),
      h("div.stack", {}, panel("Triggers", place.triggers), panel("Were the alerts right?", place.precision), panel("Export", place.exports))),
    panel("Comparison of the profiles", place.profiles),
    panel("Replay", place.replay));
  let about = null;
  let off = null;
  let span = null;
  let stopReplay = null;

  function look() {
    const until = Math.ceil(now() / 30) * 30; // Rounded, so that the server can cache the answer.
    span = { since: until - SPANS[choice.value], until };
    said.textContent = `${dayAndTime(span.since)} to ${dayAndTime(span.until)}`;
    exports();
    load(place.sliders, "/sweep", span, (told) => sliders(told, span, about));
    load(place.precision, "/precision", span, precision);
    const compare = h("button.button", { type: "button" }, "Run the comparison");
    compare.onclick = () => load(place.profiles, "/profiles", span, profiles);
    place.profiles.replaceChildren(h("div.pad.row", {}, compare, h("span.soft", {}, "The backtest reads the period three times, which takes a while for a day of a large class. ",
      about.glass_box ? h("a", { href: "/monitors?monitor=classroom-glass" }, "The glass box monitor is running too") : null)));
    stopReplay?.();
    const [made, stop] = replayPanel(span);
    stopReplay = stop;
    place.replay.replaceChildren(made);
  }

  function exports() {
    place.exports.replaceChildren(...Object.entries(EXPORTS).map(([name, text]) => h("a.button", { href: address(`/export/${name}`, span), download: `classroom-${name}` }, text)),
      h("p.soft", {}, about?.lasting_key === false ? "Pseudonyms change when the server restarts. Set CLASSROOM_KEY to keep them." : "Pseudonyms stay the same from one export to the next."));
  }

  function switches() {
    place.triggers.replaceChildren(...about.triggers.map((trigger) => {
      const box = h("input", { type: "checkbox", role: "switch", checked: !off.includes(trigger.name), disabled: !mayAct() });
      box.onchange = async () => {
        try {
          await post(`/triggers/${trigger.name}`, { on: box.checked });
          toast(box.checked ? `${trigger.name} is enabled` : `${trigger.name} is disabled. Its open alerts are resolved.`);
          await refresh();
        } catch (error) {
          box.checked = !box.checked;
          toast(error.message, { bad: true });
        }
      };
      return h("li", {}, h("label.row", {}, box, h("b", {}, trigger.name), h("span.soft", {}, trigger.says)));
    }));
  }

  choice.onchange = look;
  get("/about").then((told) => {
    about = told;
    look();
    if (off) switches();
  }, (error) => toast(error.message, { bad: true }));
  return {
    update(board) {
      if (JSON.stringify(off) === JSON.stringify(board.off)) return;
      off = board.off;
      if (about) switches();
    },
    close() { stopReplay?.(); },
  };
}

const panel = (title, ...content) => h("section.panel.gap", {}, h("header", {}, h("h2", {}, title)), ...content);

async function load(into, path, parameters, draw) {
  into.replaceChildren(h("div.loading", { role: "status", "aria-label": "Computing" }, h("i"), h("i")));
  try {
    into.replaceChildren(draw(await get(path, parameters)));
  } catch (error) {
    into.replaceChildren(h("p.trouble", { role: "alert" }, error.message));
  }
}

function sliders(told, span, about) {
  const hours = (span.until - span.since) / 3600;
  const words = (count) => `${count === 1 ? "once" : `${count} times`}, ${(count / hours).toFixed(1)} per hour`;
  const percent = (bound) => `${Math.round(bound * 100)} % of the program`;
  return h("div.pad.stack", {},
    h("p.soft", {}, `${told.students} students, ${told.runs.toLocaleString()} runs, ${told.events.toLocaleString()} events, by the ${about.profile} profile. The model reported a stuck student ${words(told.stuck)}.`),
    slider("Big rewrite from", told.big_rewrite, about.big_rewrite, percent, words),
    slider("Inactive after", told.inactive, 300, howLong, words),
    slider("Glass box: stuck after", told.zero_runs, 5, (bound) => `${bound} runs without a change`, words));
}

/** A slider for a threshold, with how often it would have fired. */
function slider(title, points, chosen, name, words) {
  const start = Math.max(0, points.findIndex(([bound]) => Math.abs(bound - chosen) < 1e-9));
  const input = h("input", { type: "range", min: 0, max: points.length - 1, value: start });
  const output = h("output");
  const drawing = h("div");
  const say = () => {
    const [bound, count] = points[Number(input.value)];
    output.textContent = `${name(bound)}: ${words(count)}`;
    input.setAttribute("aria-valuetext", output.textContent);
    drawing.replaceChildren(curve(points, bound));
  };
  input.oninput = say;
  say();
  return h("div.threshold", {}, h("label", {}, h("span.row", {}, h("b", {}, title), h("span.faint", {}, `current: ${name(chosen)}`)), drawing, input), output);
}

function profiles(told) {
  const triggers = [...new Set(told.versions.flatMap((version) => Object.keys(version.counts)))].sort();
  const head = h("tr", {}, h("th", {}, "Profile"), ...triggers.map((name) => h("th.num", {}, TRIGGERS[name]?.name ?? name)));
  const rows = told.versions.map((version) => h("tr", {}, h("td", {}, h("b", {}, version.name), " ", h("span.soft", {}, version.says)), ...triggers.map((name) => h("td.num", {}, version.counts[name] ?? 0))));
  return h("div", {},
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Alerts of each profile" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))),
    h("div.pad.stack", {}, told.compared.map(difference)));
}

function difference(pair) {
  const some = (examples) => h("ul", {}, examples.map((each) => h("li.soft", {}, `${TRIGGERS[each.trigger]?.name ?? each.trigger}: ${each.student}, ${dayAndTime(each.at)}`)));
  return h("div", {}, h("p", {}, `${pair.first} and ${pair.second}: ${pair.both} alerts are the same; ${pair.only_first} only in ${pair.first}, ${pair.only_second} only in ${pair.second}.`),
    pair.only_first + pair.only_second ? h("details", {}, h("summary", {}, "Examples of differences"), h("div.two", {}, h("div", {}, h("h3", {}, `Only ${pair.first}`), some(pair.examples_first)), h("div", {}, h("h3", {}, `Only ${pair.second}`), some(pair.examples_second)))) : null);
}

function precision(told) {
  const share = (value) => `${Math.round(value * 100)} %`;
  if (!told.length) return h("div.empty", {}, h("div", {}, "No alerts in this period."));
  const rows = told.map((each) => h("tr", {}, h("td", {}, TRIGGERS[each.trigger]?.name ?? each.trigger), h("td.num", {}, each.alerts), h("td.num", {}, each.right), h("td.num", {}, each.wrong),
    h("td", {}, each.share === null ? h("span.soft", {}, "no labels yet") : [h("b", {}, share(each.share)), h("span.soft", {}, ` (${share(each.low)} to ${share(each.high)})`)])));
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Precision of each trigger" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Trigger"), h("th.num", {}, "Alerts"), h("th.num", {}, "Right"), h("th.num", {}, "Wrong"), h("th", {}, "Precision (95 %)"))), h("tbody", {}, rows)));
}
