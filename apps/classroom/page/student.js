/** One student: current state, and the history run by run with programs and their changes. */
import { doneButton, goingButtons, presenceButton, stateTag } from "./actions.js";
import { alertItem } from "./alerts.js";
import { get } from "./api.js";
import { episodeStrip, runChart } from "./charts.js";
import { h, toast } from "./dom.js";
import { clock, howLong, now, since } from "./times.js";

const SIGNS = { "+": "added", "-": "removed", "~": "changed" };
const CONTEXT = 2;
const SPANS = { "3 hours": 3 * 3600, "24 hours": 86400, "7 days": 7 * 86400 };

export function open(main, { detail: student, refresh }) {
  const head = h("div.head", {}, h("div", {}, h("p", {}, h("a", { href: "#/class" }, "← Class")), h("h1", {}, student)));
  const body = h("div.stack");
  const span = h("select.select", { "aria-label": "Period" }, Object.keys(SPANS).map((name) => h("option", { value: SPANS[name] }, `Last ${name}`)));
  span.onchange = () => {
    opened = null;
    load();
  };
  main.append(head, h("div.filters", {}, span), body);
  let seen = "";
  let opened = null;
  let closed = false;

  async function load() {
    try {
      const history = await get("/student", { name: student, since: Math.round(now() - Number(span.value)) });
      if (!closed) draw(history);
    } catch (error) {
      body.replaceChildren(h("p.trouble", { role: "alert" }, error.message));
    }
  }

  async function again() {
    await refresh();
    await load();
  }

  function draw(history) {
    const kept = [...body.querySelectorAll("details[data-run]")].filter((each) => each.open).map((each) => each.dataset.run);
    opened = opened === null ? history.runs.slice(-1).map((run) => run.id) : kept;
    const open = history.alerts.filter((alert) => !alert.acked_at && !alert.resolved_at).map((alert) => alert.id);
    const actions = h("div.actions", {}, ...goingButtons(student, history.claim, again), open.length ? doneButton(student, open, again) : null, presenceButton(student, history.present, again));
    head.querySelector(".actions")?.remove();
    head.append(actions);
    const begin = history.runs[0]?.at ?? history.since;
    body.replaceChildren(
      h("section.panel", { "aria-label": "Now" },
        h("dl.facts", {},
          h("dt", {}, "State"), h("dd", {}, stateTag(history.state), history.stuck_since ? h("span", {}, since(history.stuck_since, { before: " for " })) : ""),
          h("dt", {}, "Tried"), h("dd", {}, history.tried),
          h("dt", {}, "Runs"), h("dd", {}, `${history.runs_ever} in total, ${history.runs.length + history.left_out} in the last ${howLong(history.until - history.since)}`)),
        history.runs.length ? h("div.pad.stack", {}, runChart(history.runs, 0.5), episodeStrip(history.episodes.filter((each) => each.end >= begin), begin, history.until)) : null),
      h("div.columns", {},
        h("section.panel", { "aria-labelledby": "runs-title" },
          h("header", {}, h("h2", { id: "runs-title" }, "Runs, newest first"), history.left_out ? h("span.faint", {}, `${history.left_out} earlier runs not shown`) : null),
          history.runs.length ? h("div.runs", {}, [...history.runs].reverse().map((run, index) => runItem(run, history.runs.length - index, opened.includes(run.id)))) : h("div.empty", {}, h("div", {}, "No runs in this period."))),
        h("div.stack", {},
          h("section.panel", { "aria-labelledby": "alerts-title" }, h("header", {}, h("h2", { id: "alerts-title" }, "Alerts")),
            history.alerts.length ? h("ul.feed", {}, history.alerts.map((alert) => alertItem(alert, again))) : h("div.empty", {}, h("div", {}, "No alerts in this period."))),
          promptPanel(history.prompt))));
  }

  load();
  return {
    update(board) {
      const card = board.cards.find((each) => each.student === student);
      const mark = JSON.stringify([card?.runs, card?.claim, card?.present, card?.state, board.feed.filter((alert) => alert.student === student)]);
      if (seen && seen !== mark) load();
      seen = mark;
    },
    close() { closed = true; },
  };
}

function runItem(run, number, isOpen) {
  const share = run.change === null ? "first run" : run.change === 0 ? "no change" : `${Math.round(run.change * 100)} % changed`;
  return h("details.run-told", { "data-run": run.id, open: isOpen },
    h("summary", {}, h("span.at", {}, clock(run.at, { seconds: true })), h("b", {}, share), run.state ? stateTag(run.state) : null,
      run.glass === "stuck" && run.state !== "stuck" ? h("span.tag.wait", { title: "The glass box: five runs in a row without a change" }, "glass box: stuck") : null,
      h("span.faint.grow", {}, h("span.wide-only", {}, run.bucket ?? "")), h("span.faint", {}, `run ${number}`)),
    run.unreadable ? h("p.pad.soft", {}, "This program cannot be read.") : h("div.pad", {}, programText(run)));
}

function programText(run) {
  const lines = run.diff.length ? folded(run.diff) : run.program.map(([depth, text, runs]) => ({ sign: runs ? " " : "o", depth, text }));
  if (!lines.length) return h("p.soft", {}, "The program is empty.");
  return h("ol.program", { "aria-label": run.diff.length ? "What changed" : "Program" }, lines.map(lineItem));
}

function lineItem(line) {
  if (line.left) return h("li.left", {}, `${line.left} unchanged lines`);
  const kind = { "+": "came", "-": "went", "~": "set" }[line.sign];
  const made = h(`li${kind ? `.${kind}` : ""}`, {},
    h("span.sign", { "aria-hidden": "true" }, line.sign === "o" ? "" : line.sign), SIGNS[line.sign] ? h("span.hidden", {}, `${SIGNS[line.sign]}: `) : null,
    h("code", {}, line.was ? [h("del", {}, line.was), " → ", h("ins", {}, line.text)] : line.text));
  made.style.setProperty("--depth", line.depth);
  return made;
}

/** Collapse long parts without a change. */
export function folded(lines) {
  const near = lines.map((_, index) => lines.slice(Math.max(0, index - CONTEXT), index + CONTEXT + 1).some((line) => line.sign !== " "));
  const told = [];
  for (const [index, line] of lines.entries()) {
    if (near[index]) told.push(line);
    else if (told.at(-1)?.left) told.at(-1).left += 1;
    else told.push({ left: 1 });
  }
  return lines.every((line) => line.sign === " ") ? lines : told;
}

function promptPanel(prompt) {
  const copy = h("button.button.small", { type: "button" }, "Copy");
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(prompt);
      toast("Copied");
    } catch {
      toast("This browser does not allow copying. Select the text instead.", { bad: true });
    }
  };
  return h("section.panel", { "aria-labelledby": "prompt-title" }, h("header", {}, h("h2", { id: "prompt-title" }, "Program as a prompt for a language model"), copy),
    h("div.pad", {}, h("pre.trace", { tabindex: 0 }, prompt)));
}
