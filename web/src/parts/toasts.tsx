/** Short messages in the corner: what was done, or why it was not. */
import { useSyncExternalStore } from "react";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

let toasts: Toast[] = [];
let last = 0;
const listeners = new Set<() => void>();

function change(next: Toast[]): void {
  toasts = next;
  for (const listener of [...listeners]) listener();
}

/** Say something in the corner for a few seconds. */
export function say(text: string, { bad = false } = {}): void {
  const id = ++last;
  change([...toasts.slice(-3), { id, text, bad }]);
  window.setTimeout(() => change(toasts.filter((toast) => toast.id !== id)), bad ? 9000 : 5000);
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => toasts,
  );
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map((toast) => (
        <button type="button" key={toast.id} className={toast.bad ? "toast bad" : "toast"} onClick={() => change(toasts.filter((each) => each.id !== toast.id))}>
          {toast.text}
        </button>
      ))}
    </div>
  );
}
