/** The live stream of changes: what has changed is asked for again, and nothing else. */
import type { QueryClient } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";
import { address } from "./api";

type News = { queues?: string[]; runs?: number[]; kinds?: string[]; all_runs?: boolean };
export type LiveState = "connecting" | "live" | "away";

/** What to ask for again when a list has changed, where that is not the list itself and the overview. */
const SHOWN: Record<string, string[]> = {
  limits: ["queues", "overview"],
  streams: ["streams"],
  dead: ["dead", "streams"],
  monitors: ["monitors", "entities"],
  alerts: ["alerts", "monitors"],
  pipelines: ["pipelines", "overview"],
};

const GATHER_MS = 700;
const AGAIN_MS = 2000;

let state: LiveState = "connecting";
const listeners = new Set<() => void>();

function say(next: LiveState): void {
  if (next === state) return;
  state = next;
  for (const listener of [...listeners]) listener();
}

/** Whether changes arrive. */
export function useLive(): LiveState {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => state,
  );
}

/** Follow the changes until told to stop. */
export function follow(client: QueryClient): () => void {
  let source: EventSource | undefined;
  let again: number | undefined;
  let gathering: number | undefined;
  let stopped = false;
  let missed = false;
  const stale = new Set<string>();

  const refresh = () => {
    gathering = undefined;
    const names = new Set(stale);
    stale.clear();
    void client.invalidateQueries({ predicate: ({ queryKey: [kind, id] }) => names.has(String(kind)) || names.has(`${kind} ${id}`) });
  };

  const hear = (news: News) => {
    if (news.queues?.length) for (const name of ["queues", "jobs", "job", "overview", "runjobs", "pipelines"]) stale.add(name);
    for (const run of news.runs ?? []) for (const name of ["run", "ticks", "tree", "runjobs"]) stale.add(`${name} ${run}`);
    if (news.runs?.length || news.all_runs) for (const name of ["runs", "overview", "inputs"]) stale.add(name);
    if (news.all_runs) for (const name of ["run", "ticks", "tree", "runjobs"]) stale.add(name);
    for (const kind of news.kinds ?? []) for (const name of SHOWN[kind] ?? [kind, "overview"]) stale.add(name);
    if (stale.size > 0) gathering ??= window.setTimeout(refresh, GATHER_MS);
  };

  const everything = () => void client.invalidateQueries();

  const open = () => {
    if (stopped) return;
    source = new EventSource(address("/changes"));
    source.onopen = () => {
      say("live");
      if (missed) everything();
      missed = false;
    };
    source.addEventListener("hello", everything); // From here on it is told: what was asked for before may be older.
    source.addEventListener("change", (event) => hear(JSON.parse((event as MessageEvent<string>).data) as News));
    source.addEventListener("reset", everything);
    source.onerror = () => {
      if (state === "live") say("away");
      missed = true;
      if (source?.readyState !== EventSource.CLOSED) return; // The browser tries again by itself.
      source.close();
      again = window.setTimeout(open, AGAIN_MS);
    };
  };

  const shown = () => {
    if (document.visibilityState === "visible" && state !== "live") everything();
  };

  open();
  document.addEventListener("visibilitychange", shown);
  return () => {
    stopped = true;
    source?.close();
    window.clearTimeout(again);
    window.clearTimeout(gathering);
    document.removeEventListener("visibilitychange", shown);
    say("connecting");
  };
}
