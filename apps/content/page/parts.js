/** Creates elements and small charts: a line of the last minute, the bars of a vector. */

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings become text, never HTML. */
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function draw(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** A line over the last minute. */
export function line(values, kind = "") {
  const most = Math.max(1, ...values);
  const points = values.map((value, at) => `${((at * 100) / (values.length - 1)).toFixed(2)} ${(23 - (value / most) * 21).toFixed(2)}`);
  const path = `M${points.join("L")}`;
  const box = { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true", ...(kind ? { class: kind } : {}) };
  return draw("svg", box, draw("path", { class: "area", d: `${path}L100 24L0 24Z` }), draw("path", { d: path }));
}

/** A vector as bars above and below the middle. */
export function stripes(values) {
  const wide = 100 / values.length;
  const bars = values.map((value, at) => {
    const high = Math.max(0.4, Math.abs(value) * 7);
    return draw("rect", { class: value < 0 ? "down" : "up", x: at * wide, width: wide * 0.8, y: value < 0 ? 7 : 7 - high, height: high });
  });
  return draw("svg", { class: "stripes", viewBox: "0 0 100 14", preserveAspectRatio: "none", "aria-hidden": "true" }, ...bars);
}

/** A share as a bar. */
export function meter(share, tone) {
  const fill = make("i");
  fill.style.width = `${Math.round(Math.min(1, Math.max(0, share)) * 100)}%`;
  return make("span", { class: `meter ${tone}`, "aria-hidden": "true" }, fill);
}

export const count = (number) => number.toLocaleString("en");
export const rate = (number) => (number >= 10 ? count(Math.round(number)) : number.toFixed(1).replace(/\.0$/, ""));
export function took(seconds) {
  if (seconds === null) return "–";
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  const thousandths = seconds * 1000;
  return `${thousandths >= 10 ? Math.round(thousandths) : thousandths >= 0.1 ? thousandths.toFixed(1) : "< 0.1"} ms`;
}

/** Replace the children; existing elements are updated in place, so that focus and hover stay. */
export function show(place, children) {
  children.forEach((child, at) => {
    const there = place.childNodes[at];
    if (there === undefined) place.append(child);
    else become(there, child);
  });
  while (place.childNodes.length > children.length) place.lastChild.remove();
}

function become(there, wanted) {
  if (there.nodeName !== wanted.nodeName) {
    there.replaceWith(wanted);
  } else if (wanted.nodeType === Node.TEXT_NODE) {
    if (there.data !== wanted.data) there.data = wanted.data;
  } else {
    for (const { name, value } of [...wanted.attributes]) {
      if (name !== "style" && there.getAttribute(name) !== value) there.setAttribute(name, value);
    }
    for (const { name } of [...there.attributes]) if (!wanted.hasAttribute(name)) there.removeAttribute(name);
    if (wanted.style?.width) there.style.width = wanted.style.width;
    show(there, [...wanted.childNodes]);
  }
}
