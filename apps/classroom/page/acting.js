/** What a teacher does: go to somebody, be done with them, say a word about an alert. */
import { mayAct, myName, post } from "./api.js";
import { ask, h, toast } from "./dom.js";
import { named } from "./naming.js";
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

/** "I'm going", or who is. */
export function goingButtons(student, claim, refresh) {
  if (claim) {
    const mine = claim.who === myName();
    const said = h("span.going", {}, mine ? "You are going" : `${claim.who} is going`, since(claim.at, { before: " · for " }));
    if (!mayAct()) return [said];
    const text = mine ? "Not going" : "They are not";
    const back = h("button.button.quiet", { type: "button", "data-act": "back", "aria-label": `${text}: ${student}` }, text);
    back.onclick = () => doing(back, async () => { await post("/give-back", { student }); await refresh(); });
    return [said, back];
  }
  if (!mayAct()) return [];
  const go = h("button.button.main.go", { type: "button", "data-act": "go", "aria-label": `I’m going to ${student}` }, "I’m going");
  go.onclick = async () => {
    if (await named()) await doing(go, () => goTo([student], refresh));
  };
  return [go];
}

/** Go to several students at once. */
export function goToAllButton(students, refresh) {
  const go = h("button.button", { type: "button", "data-act": "all" }, "I’m going to them");
  go.onclick = async () => {
    if (await named()) await doing(go, () => goTo(students, refresh));
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

/** "Done": the alerts are seen, with a note if there is something to say. */
export function doneButton(student, alerts, refresh, { label = "Done" } = {}) {
  if (!mayAct()) return null;
  const done = h("button.button", { type: "button", "data-act": "done", "aria-label": `${label}: ${student}` }, label);
  done.onclick = async () => {
    const note = h("textarea.field", { name: "note", rows: 3, maxlength: 4000 });
    const said = await ask(`Done with ${student}?`, [
      h("label", {}, "What was it? (if you like)", note),
      rightOrWrong(),
      h("p.soft", {}, "If nothing changes, the alert comes back after ten minutes."),
    ], { action: "Done", read: (form) => ({ note: form.elements.note.value, right: form.elements.right.value }) });
    if (!said) return;
    await doing(done, async () => {
      const note = [said.note.trim(), said.right].filter(Boolean).join(" ");
      await post("/ack", { ids: alerts, note: note || null });
      await post("/give-back", { student });
      await refresh();
    }, `${student} is looked after`);
  };
  return done;
}

function rightOrWrong(chosen = "") {
  const choice = (value, text) => h("label.choice", {}, h("input", { type: "radio", name: "right", value, checked: value === chosen }), text);
  return h("fieldset.choices", {}, h("legend", {}, "Was the alert right?"), choice("#right", "yes"), choice("#wrong", "no"), choice("", "cannot say"));
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
    const said = await ask(`A note on the alert of ${alert.student}`, [h("label", {}, "Note", text), rightOrWrong(chosen)], {
      action: "Keep", read: (form) => [form.elements.note.value.trim(), form.elements.right.value].filter(Boolean).join(" ") });
    if (said === null) return;
    await doing(button, async () => { await post(`/alerts/${alert.id}/note`, { note: said }); await refresh(); }, "The note is kept");
  };
  return button;
}

/** A student is in the room, or is not. */
export function presenceButton(student, present, refresh) {
  if (!mayAct()) return null;
  const button = h("button.button", { type: "button", "data-act": "presence" }, present ? "Not here today" : "Is here");
  button.onclick = () => doing(button, async () => { await post("/presence", { student, present: !present }); await refresh(); });
  return button;
}

/** How an alert stands, in a few words. */
export function standing(alert) {
  if (alert.kind !== "momentary" && alert.resolved_at) return `over after ${howLong(alert.resolved_at - alert.started_at)}`;
  if (alert.acked_at) return `seen by ${alert.acked_by ?? "somebody"} ${howLong(now() - alert.acked_at)} ago`;
  return "";
}
