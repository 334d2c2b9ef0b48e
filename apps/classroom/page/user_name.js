/** The name of the user of this browser. */
import { myName, setMyName } from "./api.js";
import { ask, h } from "./dom.js";

/** Show the name, with a button that changes it. */
export function showName() {
  const button = document.getElementById("whoami");
  button.textContent = myName() || "Set your name";
  button.onclick = () => askName();
}

/** Ask for the user's name, which others see. */
export async function askName() {
  const input = h("input.field", { name: "who", required: true, maxlength: 80, autocomplete: "name", value: myName() });
  const said = await ask("Your name", [h("label", {}, "Name, visible to all users of this page", input)], {
    action: "Save", read: (form) => form.elements.who.value.trim() });
  if (said) {
    setMyName(said);
    showName();
  }
  return said;
}

/** Ask for the name if it is missing. */
export async function ensureName() {
  return Boolean(myName() || await askName());
}
