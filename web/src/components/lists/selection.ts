import { useEffect, useState } from "react";

/** The selected rows. */
export function useSelection(ids: number[]) {
  const [selected, setSelected] = useState<ReadonlySet<number>>(new Set());
  const shown = ids.filter((id) => selected.has(id));
  return {
    ids: shown,
    has: (id: number) => selected.has(id),
    toggle: (id: number) => {
      const next = new Set(selected);
      if (!next.delete(id)) next.add(id);
      setSelected(next);
    },
    all: shown.length === ids.length && ids.length > 0,
    toggleAll: () => setSelected(shown.length === ids.length ? new Set() : new Set(ids)),
    clear: () => setSelected(new Set()),
  };
}

/** Keys for rows: j and k move, Enter opens, x selects. Returns the row that has the focus. */
export function useRowKeys(ids: number[], open: (id: number) => void, toggle: (id: number) => void): number | null {
  const [at, setAt] = useState<number | null>(null);
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.metaKey || event.ctrlKey || event.altKey) return;
      if ((event.target as HTMLElement).closest("input:not([type=checkbox]), textarea, select, dialog, button, a")) return;
      const place = at === null ? -1 : ids.indexOf(at);
      if (event.key === "j") setAt(ids[Math.min(ids.length - 1, place + 1)] ?? null);
      else if (event.key === "k") setAt(ids[Math.max(0, place - 1)] ?? null);
      else if (event.key === "x" && at !== null) toggle(at);
      else if (event.key === "Enter" && at !== null) open(at);
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, [at, ids, open, toggle]);
  useEffect(() => {
    if (at !== null) document.querySelector(`[data-row="${at}"]`)?.scrollIntoView({ block: "nearest" });
  }, [at]);
  return at;
}
