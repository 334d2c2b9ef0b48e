/** Actions of a teacher: visit a student, finish the visit, write a note on an alert. */
import { mayAct, myName, post } from "./api.js";
import { ask, h, toast } from "./dom.js";
import { ensureName } from "./user_name.js";
import { howLong, now, since } from "./times.js";

export const TRIGGERS = {
  "wheel-spin": { name: "stuck", tone: "bad" },
  inactive: { name: "quiet", tone: "wait" },
  "big-rewrite": { name: "big rewrite", tone: "attention" },
};
export const STATES = {
  iterator: { name: "iterating", tone: "ok" },
  explorer: { name: "exploring", tone: "run" },
  stuck: { name: "stuck", tone: "bad" },
};

export const triggerTag = (trigger) => {
  const { name, tone } = TRIGGERS[trigger] ?? { name: trigger, tone: "off" };
  return h(`span.tag.${tone}`, {}, name);
};
export const stateTag = (state) => {
  const { name, tone } = STATES[state] ?? { name: "no runs yet", tone: "off" };
  return h(`span.tag.${tone}`, {}, name);
};
export const studentLink = (student) => h("a", { href: `#/student/${encodeURIComponent(student)}` }, student);

async function doing(button, work, done) {
  button.disabled = true;
  try {
    await work();
    if (done) toast(done);
  } catch (error) {
    toast(error.message, { bad: true });
  } finally {
    button.disabled = false;
  }
}

/** The button "I'm going", or who is going. */
export function goingButtons(student, claim, refresh) {
  if (claim) {
    const mine = claim.who === myName();
    const said = h("span.going", {}, mine ? "You are going" : `${claim.who} is going`, since(claim.at, { before: " · for " }));
    if (!mayAct()) return [said];
    const text = mine ? "Cancel visit" : "Cancel their visit";
    const back = h("button.button.quiet", { type: "button", "data-act": "back", "aria-label": `${text}: ${student}` }, text);
    back.onclick = () => doing(back, async () => { await post("/give-back", { student }); await refresh(); });
    return [said, back];
  }
  if (!mayAct()) return [];
  const go = h("button.button.main.go", { type: "button", "data-act": "go", "aria-label": `I’m going to ${student}` }, "I’m going");
  go.onclick = async () => {
    if (await ensureName()) await doing(go, () => goTo([student], refresh));
  };
  return [go];
}

/** Claim several students at once. */
export function goToAllButton(students, refresh) {
  const go = h("button.button", { type: "button", "data-act": "all" }, "I’m going to all of them");
  go.onclick = async () => {
    if (await ensureName()) await doing(go, () => goTo(students, refresh));
  };
  return mayAct() ? go : null;
}

async function goTo(students, refresh) {
  try {
    for (const student of students) await post("/claim", { student });
  } finally {
    await refresh();
  }
}

/** "Done" acknowledges the alerts, with an optional note. */
export function doneButton(student, alerts, refresh, { label = "Done" } = {}) {
  if (!mayAct()) return null;
  const done = h("button.button", { type: "button", "data-act": "done", "aria-label": `${label}: ${student}` }, label);
  done.onclick = async () => {
    const note = h("textarea.field", { name: "note", rows: 3, maxlength: 4000 });
    const said = await ask(`Done with ${student}?`, [
      h("label", {}, "What was the problem? (optional)", note),
      rightOrWrong(),
      h("p.soft", {}, "If nothing changes, the alert opens again after ten minutes."),
    ], { action: "Done", read: (form) => ({ note: form.elements.note.value, right: form.elements.right.value }) });
    if (!said) return;
    await doing(done, async () => {
      const note = [said.note.trim(), said.right].filter(Boolean).join(" ");
      await post("/ack", { ids: alerts, note: note || null });
      await post("/give-back", { student });
      await refresh();
    }, `Finished the visit to ${student}`);
  };
  return done;
}

function rightOrWrong(chosen = "") {
  const choice = (value, text) => h("label.choice", {}, h("input", { type: "radio", name: "right", value, checked: value === chosen }), text);
  return h("fieldset.choices", {}, h("legend", {}, "Was the alert right?"), choice("#right", "yes"), choice("#wrong", "no"), choice("", "not sure"));
}

/** Write a note on an alert. */
export function noteButton(alert, refresh) {
  if (!mayAct()) return null;
  const plain = (alert.note ?? "").replace(/\s*#(right|wrong)\b/gi, "").trim();
  const chosen = /#(right|wrong)\b/i.exec(alert.note ?? "")?.[0].toLowerCase() ?? "";
  const label = alert.note ? "Change note" : "Note";
  const button = h("button.button.quiet", { type: "button", "data-act": "note", "aria-label": `${label} on alert ${alert.id}` }, label);
  button.onclick = async () => {
    const text = h("textarea.field", { name: "note", rows: 3, maxlength: 4000 }, plain);
    const said = await ask(`Note on the alert of ${alert.student}`, [h("label", {}, "Note", text), rightOrWrong(chosen)], {
      action: "Save", read: (form) => [form.elements.note.value.trim(), form.elements.right.value].filter(Boolean).join(" ") });
    if (said === null) return;
    await doing(button, async () => { await post(`/alerts/${alert.id}/note`, { note: said }); await refresh(); }, "Note saved");
  };
  return button;
}

/** Marks a student as present or absent. */
export function presenceButton(student, present, refresh) {
  if (!mayAct()) return null;
  const button = h("button.button", { type: "button", "data-act": "presence" }, present ? "Mark as absent today" : "Mark as present");
  button.onclick = () => doing(button, async () => { await post("/presence", { student, present: !present }); await refresh(); });
  return button;
}

/** The state of an alert, as short text. */
export function alertState(alert) {
  if (alert.kind !== "momentary" && alert.resolved_at) return `resolved after ${howLong(alert.resolved_at - alert.started_at)}`;
  if (alert.acked_at) return `acknowledged${alert.acked_by ? ` by ${alert.acked_by}` : ""} ${howLong(now() - alert.acked_at)} ago`;
  return "";
}
