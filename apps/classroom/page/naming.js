/** Who sits at this browser. */
import { myName, setMyName } from "./api.js";
import { ask, h } from "./dom.js";

/** Show the name, and let it be changed. */
export function showName() {
  const button = document.getElementById("whoami");
  button.textContent = myName() || "Who are you?";
  button.onclick = () => askName();
}

/** Ask who somebody is; others see the name. */
export async function askName() {
  const input = h("input.field", { name: "who", required: true, maxlength: 80, autocomplete: "name", value: myName() });
  const said = await ask("What may others call you?", [h("label", {}, "Your name, as everybody who looks sees it", input)], {
    action: "That is me", read: (form) => form.elements.who.value.trim() });
  if (said) {
    setMyName(said);
    showName();
  }
  return said;
}

/** Make sure that there is a name. */
export async function named() {
  return Boolean(myName() || await askName());
}
