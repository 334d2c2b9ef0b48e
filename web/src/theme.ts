/** Dark or light: as chosen here, else as the system has it. */
import { useSyncExternalStore } from "react";

export type Theme = "dark" | "light";
export type Choice = Theme | "system";

const KEY = "tidemill.theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

export function choice(): Choice {
  const kept = window.localStorage.getItem(KEY);
  return kept === "dark" || kept === "light" ? kept : "system";
}

function apply(): void {
  const chosen = choice();
  document.documentElement.dataset.theme = chosen === "system" ? (system.matches ? "dark" : "light") : chosen;
  for (const listener of [...listeners]) listener();
}

system.addEventListener("change", apply);
window.addEventListener("storage", apply);

/** Choose a theme, here and for the next visits. */
export function choose(next: Choice): void {
  if (next === "system") window.localStorage.removeItem(KEY);
  else window.localStorage.setItem(KEY, next);
  apply();
}

/** The theme that is shown. */
export function useTheme(): Theme {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => (document.documentElement.dataset.theme === "dark" ? "dark" : "light"),
  );
}
