/** Replays a period: the state of each student and the open alerts, at a chosen speed. */
import { STATES, triggerTag } from "./actions.js";
import { get } from "./api.js";
import { h } from "./dom.js";
import { clock, dayAndTime, howLong } from "./times.js";

const SPEEDS = [1, 10, 60, 600];
const FRAME_MS = 100;

/** The state of each student and the open alerts at a moment. */
export function stateAt(day, at) {
  const states = day.students.map(() => null);
  let runs = 0;
  for (const [when, who, , state] of day.runs) {
    if (when > at) break;
    states[who] = day.states[state];
    runs += 1;
  }
  const open = day.alerts.filter(([opened, , , , resolved, acked]) => opened <= at && (resolved === null || resolved > at || at - opened < 60) && !(acked !== null && acked <= at));
  return { states, runs, open };
}

/** The panel, and a function that stops it. */
export function replayPanel(span) {
  let day = null;
  let at = 0;
  let timer = null;
  const time = h("output.clock", {}, "");
  const play = h("button.button.main", { type: "button" }, "Play");
  const speed = h("select.select", { "aria-label": "Speed" }, SPEEDS.map((each) => h("option", { value: each, selected: each === 10 }, `${each}×`)));
  const bar = h("input.grow", { type: "range", min: 0, max: 1000, value: 0, "aria-label": "Time of day", disabled: true });
  const tiles = h("ul.heads", { "aria-label": "Students, coloured by state" });
  const legend = h("p.legend", {}, ["iterator", "explorer", "stuck"].map((state) => h("span", {}, h(`i.${state}`), STATES[state].name)));
  const list = h("ul.feed");
  const said = h("p.soft", { role: "status" });
  const made = h("div.replay.stack.pad", {}, h("div.row", {}, play, speed, time, bar), said, h("div.columns", {}, h("div.stack", {}, tiles, legend), list));

  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };

  function draw() {
    const { states, runs, open } = stateAt(day, at);
    time.textContent = clock(at, { seconds: true });
    bar.value = String(Math.round(((at - day.since) / (day.until - day.since)) * 1000));
    bar.setAttribute("aria-valuetext", dayAndTime(at));
    said.textContent = `${runs} of ${day.runs.length} runs so far, ${states.filter((state) => state === "stuck").length} stuck, ${open.length} alerts open`;
    states.forEach((state, who) => { tiles.children[who].className = STATES[state]?.tone ?? "off"; });
    list.replaceChildren(...open.slice(-12).reverse().map(([opened, who, trigger, started]) =>
      h("li.alert", {}, h("div.row", {}, triggerTag(trigger), h("b", {}, day.students[who]), h("span.faint", {}, `${clock(opened)}, for ${howLong(at - started)}`)))));
  }

  async function load() {
    said.textContent = "Reading the log …";
    day = await get("/day", span);
    if (!day.runs.length) {
      said.textContent = "No runs in this period.";
      return false;
    }
    at = Math.max(day.since, day.runs[0][0] - 5);
    bar.disabled = false;
    tiles.replaceChildren(...day.students.map((name) => h("li.off", { title: name }, h("span.hidden", {}, name))));
    draw();
    return true;
  }

  play.onclick = async () => {
    if (timer) return stop();
    play.disabled = true;
    try {
      if (!day?.runs.length && !(await load())) return undefined;
    } catch (error) {
      said.textContent = error.message;
      return undefined;
    } finally {
      play.disabled = false;
    }
    play.textContent = "Pause";
    let before = performance.now();
    timer = setInterval(() => {
      const moment = performance.now();
      at = Math.min(day.until, at + ((moment - before) / 1000) * Number(speed.value));
      before = moment;
      draw();
      if (at >= day.until) stop();
    }, FRAME_MS);
    return undefined;
  };
  bar.oninput = () => {
    at = day.since + (Number(bar.value) / 1000) * (day.until - day.since);
    draw();
  };
  return [made, stop];
}
