/** Creates elements, and updates lists in place. */

/** h("li.visit", { title: "…", onclick: f }, "text", child): an element with attributes, listeners and children. */
export function h(what, attributes = {}, ...children) {
  const [name, ...classes] = what.split(".");
  return fill(document.createElement(name || "div"), classes, attributes, children);
}

/** The same for SVG elements. */
export function svg(what, attributes = {}, ...children) {
  const [name, ...classes] = what.split(".");
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), classes, attributes, children);
}

function fill(element, classes, attributes, children) {
  if (classes.length) element.classList.add(...classes);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-")) element.setAttribute(name, String(value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Show one element for each item; unchanged elements stay, so that focus and open parts are kept. */
export function keyed(container, items, keyOf, make) {
  const before = new Map([...container.children].map((child) => [child.dataset.key, child]));
  const focused = document.activeElement?.closest?.("[data-act]");
  const held = focused && container.contains(focused) ? [focused.closest("[data-key]")?.dataset.key, focused.dataset.act] : null;
  let last = null;
  for (const item of items) {
    const key = String(keyOf(item));
    const signature = JSON.stringify(item);
    let element = before.get(key);
    before.delete(key);
    if (!element || element.signature !== signature) {
      const made = make(item);
      made.dataset.key = key;
      made.signature = signature;
      element?.replaceWith(made);
      element = made;
    }
    const place = last ? last.nextSibling : container.firstChild;
    if (element !== place) container.insertBefore(element, place);
    last = element;
  }
  for (const gone of before.values()) gone.remove();
  if (held && document.activeElement === document.body) {
    const again = [...container.children].find((child) => child.dataset.key === held[0]);
    again?.querySelector(`[data-act="${held[1]}"]`)?.focus();
  }
}

/** A short message; an error is announced by screen readers at once. */
export function toast(text, { bad = false } = {}) {
  const made = h(`p.toast${bad ? ".bad" : ".ok"}`, bad ? { role: "alert" } : {}, text);
  document.getElementById("toasts").append(made);
  setTimeout(() => made.remove(), bad ? 9000 : 4500);
}

/** Open a dialog with fields; resolves to the result of `read`, or null if it is cancelled. */
export function ask(title, fields, { action = "OK", read }) {
  return new Promise((resolve) => {
    const form = h("form.ask", { method: "dialog" },
      h("h2", { id: "ask-title" }, title),
      ...fields,
      h("div.actions", {},
        h("button.button.main", { value: "yes" }, action),
        h("button.button", { value: "", type: "submit", formnovalidate: true }, "Cancel")));
    const dialog = h("dialog", { "aria-labelledby": "ask-title" }, form);
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? read(form) : null);
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
    form.querySelector("input, textarea")?.focus();
  });
}
