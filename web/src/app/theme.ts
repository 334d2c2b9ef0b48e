/** The dark or light theme: the user's choice, or else the system's setting. */
import { useSyncExternalStore } from "react";

export type Theme = "dark" | "light";
export type ThemeChoice = Theme | "system";

const KEY = "tidemill.theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

export function themeChoice(): ThemeChoice {
  const stored = window.localStorage.getItem(KEY);
  return stored === "dark" || stored === "light" ? stored : "system";
}

function apply(): void {
  const chosen = themeChoice();
  document.documentElement.dataset.theme = chosen === "system" ? (system.matches ? "dark" : "light") : chosen;
  for (const listener of [...listeners]) listener();
}

system.addEventListener("change", apply);
window.addEventListener("storage", apply);

/** Store the choice in this browser and apply it. */
export function chooseTheme(next: ThemeChoice): void {
  if (next === "system") window.localStorage.removeItem(KEY);
  else window.localStorage.setItem(KEY, next);
  apply();
}

/** The active theme. */
export function useTheme(): Theme {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => (document.documentElement.dataset.theme === "dark" ? "dark" : "light"),
  );
}
