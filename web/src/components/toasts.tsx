/** Short messages in the corner: the result of an action, or why it failed. */
import { useSyncExternalStore } from "react";

interface Toast {
  id: number;
  text: string;
  isError: boolean;
}

let toasts: Toast[] = [];
let lastId = 0;
const listeners = new Set<() => void>();

function setToasts(next: Toast[]): void {
  toasts = next;
  for (const listener of [...listeners]) listener();
}

/** Show a message for a few seconds. */
export function showToast(text: string, { isError = false } = {}): void {
  const id = ++lastId;
  setToasts([...toasts.slice(-3), { id, text, isError }]);
  window.setTimeout(() => setToasts(toasts.filter((toast) => toast.id !== id)), isError ? 9000 : 5000);
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
        <button type="button" key={toast.id} className={toast.isError ? "toast bad" : "toast"} onClick={() => setToasts(toasts.filter((each) => each.id !== toast.id))}>
          {toast.text}
        </button>
      ))}
    </div>
  );
}
