/** Small SVG charts. */
import { h, svg } from "./dom.js";

/** A bar for the change of each run; the label describes it for screen readers. */
export function sparkline(changes) {
  const width = 20;
  const told = changes.length ? `Change of the last ${changes.length} runs: ${changes.slice(-5).map((each) => `${Math.round(each * 100)} %`).join(", ")} at the end` : "No runs to compare yet";
  const bars = changes.slice(-width).map((change, index) =>
    svg(`rect.${tone(change)}`, { x: index * 5 + 0.5, width: 4, y: 27 - Math.max(1.5, change * 26), height: Math.max(1.5, change * 26), rx: 1 }));
  return svg("svg.changes", { viewBox: "0 0 100 28", preserveAspectRatio: "none", role: "img", "aria-label": told }, svg("line", { x1: 0, x2: 100, y1: 27.5, y2: 27.5 }), ...bars);
}

const tone = (change) => (change === 0 ? "same" : change < 0.221151 ? "step" : "rewrite");

/** The runs of a student: the change of each, coloured by state, with the threshold as a line. */
export function runChart(runs, threshold) {
  const told = runs.filter((run) => run.change !== null);
  const wide = Math.max(30, told.length);
  const bars = told.map((run, index) =>
    svg(`rect.${run.state ?? "none"}`, { x: index * 10 + 1, width: 8, y: 98 - Math.max(2, run.change * 96), height: Math.max(2, run.change * 96), rx: 2 },
      svg("title", {}, `${new Date(run.at * 1000).toLocaleTimeString()}: ${Math.round(run.change * 100)} % changed, ${run.state}`)));
  const y = 98 - threshold * 96;
  return h("figure.run-chart", {},
    svg("svg", { viewBox: `0 0 ${wide * 10} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `How much each of ${told.length} runs changed` },
      svg("line.bound", { x1: 0, x2: wide * 10, y1: y, y2: y }), ...bars),
    h("figcaption.legend", {}, key("iterator", "iterating"), key("explorer", "exploring"), key("stuck", "stuck"), h("span.faint", {}, `line: a big rewrite, ${Math.round(threshold * 100)} %`)));
}

const key = (state, text) => h("span", {}, h(`i.${state}`), text);

/** Episodes over time. */
export function episodeStrip(episodes, begin, end) {
  const span = Math.max(1, end - begin);
  const parts = episodes.map((each) =>
    svg(`rect.${each.kind}`, { x: ((each.start - begin) / span) * 1000, width: Math.max(1, ((each.end - each.start) / span) * 1000), y: 0, height: 16 },
      svg("title", {}, `${each.kind}, ${new Date(each.start * 1000).toLocaleTimeString()}`)));
  return h("figure.strip", {},
    svg("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img", "aria-label": `${episodes.length} episodes` }, ...parts),
    h("figcaption.legend", {}, key("code", "changing"), key("run", "running"), key("pause", "looking"), key("reset", "opening"), key("inactive", "quiet")));
}

/** The number of alerts for each threshold, with the chosen one marked. */
export function curve(points, chosen) {
  const most = Math.max(1, ...points.map(([, count]) => count));
  const step = 300 / points.length;
  const bars = points.map(([bound, count], index) =>
    svg(bound === chosen ? "rect.chosen" : "rect", { x: index * step + step * 0.1, width: step * 0.8, y: 60 - (count / most) * 58, height: (count / most) * 58 }));
  return svg("svg.curve", { viewBox: "0 0 300 60", preserveAspectRatio: "none", "aria-hidden": "true" }, ...bars);
}
