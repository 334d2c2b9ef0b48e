/** The server's stream of changes: each message says what changed, and only those queries are refetched. */
import type { QueryClient } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";
import { apiUrl } from "../api/client";

type ChangeMessage = { queues?: string[]; runs?: number[]; kinds?: string[]; all_runs?: boolean };
type LiveState = "connecting" | "live" | "reconnecting";

/** Queries to refetch for a kind of change; the default is the kind itself and the overview. */
const QUERIES: Record<string, string[]> = {
  limits: ["queues", "overview"],
  streams: ["streams"],
  dead: ["dead", "streams"],
  monitors: ["monitors", "entities"],
  alerts: ["alerts", "monitors"],
  pipelines: ["pipelines", "overview"],
};

const BATCH_MS = 700;
const RECONNECT_MS = 2000;
const LONGEST_REFRESH_MS = 10_000;

let state: LiveState = "connecting";
const listeners = new Set<() => void>();

function setState(next: LiveState): void {
  if (next === state) return;
  state = next;
  for (const listener of [...listeners]) listener();
}

/** Whether the stream is connected. */
export function useLive(): LiveState {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => state,
  );
}

/** Follow the stream; returns a function that stops it. */
export function followChanges(client: QueryClient): () => void {
  let source: EventSource | undefined;
  let reconnect: number | undefined;
  let batch: number | undefined;
  let stopped = false;
  let missed = false;
  const stale = new Set<string>();

  // One refresh at a time: one that began while queries are under way would cancel them, and slow ones would never end.
  const refresh = async () => {
    const names = new Set(stale);
    stale.clear();
    const done = client.invalidateQueries({ predicate: ({ queryKey: [kind, id] }) => names.has(String(kind)) || names.has(`${kind} ${id}`) });
    await Promise.race([done, new Promise((resolve) => window.setTimeout(resolve, LONGEST_REFRESH_MS))]);
    batch = undefined;
    if (stale.size > 0 && !stopped) schedule();
  };

  const schedule = () => {
    batch ??= window.setTimeout(() => void refresh(), BATCH_MS);
  };

  const handle = (message: ChangeMessage) => {
    if (message.queues?.length) for (const name of ["queues", "jobs", "job", "batches", "overview", "runjobs", "pipelines"]) stale.add(name);
    for (const run of message.runs ?? []) for (const name of ["run", "ticks", "tree", "runjobs"]) stale.add(`${name} ${run}`);
    if (message.runs?.length || message.all_runs) for (const name of ["runs", "overview", "inputs"]) stale.add(name);
    if (message.all_runs) for (const name of ["run", "ticks", "tree", "runjobs"]) stale.add(name);
    for (const kind of message.kinds ?? []) for (const name of QUERIES[kind] ?? [kind, "overview"]) stale.add(name);
    if (stale.size > 0) schedule();
  };

  const refetchAll = () => void client.invalidateQueries();

  const open = () => {
    if (stopped) return;
    source = new EventSource(apiUrl("/changes"));
    source.onopen = () => {
      setState("live");
      if (missed) refetchAll();
      missed = false;
    };
    source.addEventListener("hello", refetchAll); // Data that was read before the stream began may be out of date.
    source.addEventListener("change", (event) => handle(JSON.parse((event as MessageEvent<string>).data) as ChangeMessage));
    source.addEventListener("reset", refetchAll);
    source.onerror = () => {
      if (state === "live") setState("reconnecting");
      missed = true;
      if (source?.readyState !== EventSource.CLOSED) return; // The browser reconnects.
      source.close();
      reconnect = window.setTimeout(open, RECONNECT_MS);
    };
  };

  const onVisible = () => {
    if (document.visibilityState === "visible" && state !== "live") refetchAll();
  };

  open();
  document.addEventListener("visibilitychange", onVisible);
  return () => {
    stopped = true;
    source?.close();
    window.clearTimeout(reconnect);
    window.clearTimeout(batch);
    document.removeEventListener("visibilitychange", onVisible);
    setState("connecting");
  };
}
