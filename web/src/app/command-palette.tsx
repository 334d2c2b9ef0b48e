/** Search over everything: screens, jobs and runs by id, key or tag, and other objects by name. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import { get } from "../api/client";
import type { Hit, List } from "../api/types";
import { State } from "../components/state";
import { go } from "./router";
import { SCREENS } from "./screens";

interface Choice {
  kind: string;
  name: string;
  state?: string | null;
  why?: string;
  to: string;
}

const URLS: Record<string, (id: string) => string> = {
  job: (id) => `/jobs/${id}`,
  run: (id) => `/runs/${id}`,
  queue: (id) => `/queues/${encodeURIComponent(id)}`,
  task: (id) => `/tasks/${encodeURIComponent(id)}`,
  flow: (id) => `/runs?workflow=${encodeURIComponent(id)}`,
  dag: (id) => `/runs?workflow=${encodeURIComponent(id)}`,
  schedule: (id) => `/schedules?name=${encodeURIComponent(id)}`,
  host: (id) => `/workers/${encodeURIComponent(id)}`,
  stream: () => "/streams",
  pipeline: (id) => `/pipelines/${encodeURIComponent(id)}`,
  monitor: (id) => `/monitors?monitor=${encodeURIComponent(id)}`,
};

function choices(words: string, hits: Hit[]): Choice[] {
  const text = words.trim().toLowerCase();
  const screens = SCREENS.filter((entry) => entry.label.toLowerCase().includes(text)).map((entry) => ({ kind: "screen", name: entry.label, why: `g ${entry.key}`, to: entry.path }));
  if (!text) return screens;
  const found = hits.map((hit) => ({
    kind: hit.kind,
    name: hit.kind === "job" || hit.kind === "run" ? `${hit.kind === "run" ? "r" : ""}${hit.id} ${hit.name}` : hit.name,
    state: hit.state,
    why: hit.why,
    to: (URLS[hit.kind] ?? (() => "/"))(hit.id),
  }));
  const begins = (choice: Choice) => Number(choice.name.toLowerCase().startsWith(text));
  return [...found, ...screens].sort((a, b) => begins(b) - begins(a));
}

export function CommandPalette({ onClose }: { onClose: () => void }) {
  const ref = useRef<HTMLDialogElement>(null);
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  useEffect(() => {
    if (!ref.current?.open) ref.current?.showModal();
  }, []);
  const found = useQuery({
    queryKey: ["search", words.trim()],
    queryFn: () => get<List<Hit>>("/search", { q: words.trim() }),
    enabled: words.trim() !== "",
    placeholderData: keepPreviousData,
    staleTime: 2000,
  });
  const shown = choices(words, words.trim() ? (found.data?.items ?? []) : []);
  const take = (choice: Choice | undefined) => {
    if (!choice) return;
    ref.current?.close();
    go(choice.to);
  };
  const press = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step) {
      event.preventDefault();
      setAt((at + step + shown.length) % Math.max(1, shown.length));
    } else if (event.key === "Enter") {
      event.preventDefault();
      take(shown[at]);
    }
  };
  return (
    <dialog ref={ref} className="dialog palette" aria-label="Search" onClose={onClose} onClick={(event) => event.target === ref.current && ref.current?.close()}>
      <input
        autoFocus
        role="combobox"
        aria-expanded="true"
        aria-controls="found"
        aria-activedescendant={shown[at] ? `found-${at}` : undefined}
        aria-label="Search for an id, a name, a key or a tag"
        placeholder="Id (12, r12), name, key or tag"
        value={words}
        onChange={(event) => {
          setWords(event.target.value);
          setAt(0);
        }}
        onKeyDown={press}
      />
      <ul id="found" role="listbox" aria-label="Results">
        {shown.map((choice, index) => (
          <li key={choice.to + choice.kind} id={`found-${index}`} role="option" aria-selected={index === at} onMouseMove={() => setAt(index)} onClick={() => take(choice)}>
            <span className="kind">{choice.kind}</span>
            <span>{choice.name}</span>
            {choice.state && <State state={choice.state} />}
            <small>{choice.why}</small>
          </li>
        ))}
        {found.error && (
          <li className="empty">The search failed: {found.error.message}</li>
        )}
        {words.trim() !== "" && !found.error && shown.length === 0 && !found.isFetching && (
          <li className="empty">
            No results for <b>{words.trim()}</b>. Try an id, or the first characters of a key.
          </li>
        )}
      </ul>
      <footer>
        <span>
          <kbd>↑</kbd> <kbd>↓</kbd> select
        </span>
        <span>
          <kbd>↵</kbd> open
        </span>
        <span>
          <kbd>g</kbd> and a letter open a screen
        </span>
      </footer>
    </dialog>
  );
}
