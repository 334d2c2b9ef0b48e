/** Long lists: pages by cursor, rows by keyboard, and actions on what is chosen or on everything that matches. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { get, post, type Query } from "../api";
import type { Page, Preview } from "../types";
import { useAction } from "./acting";
import { Button, count, Dialog, Loading, Trouble } from "./ui";

/** A list in pages, the newest first. */
export function usePages<T>(name: string, path: string, query: Query) {
  const found = useInfiniteQuery({
    queryKey: [name, query],
    queryFn: ({ pageParam }) => get<Page<T>>(path, { ...query, cursor: pageParam }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: (before) => before,
  });
  return { ...found, rows: found.data?.pages.flatMap((page) => page.items) ?? [] };
}

export function MoreRows({ pages }: { pages: { hasNextPage: boolean; isFetchingNextPage: boolean; fetchNextPage: () => unknown } }) {
  if (!pages.hasNextPage) return null;
  return (
    <div className="more">
      <Button busy={pages.isFetchingNextPage} onClick={() => void pages.fetchNextPage()}>
        Show more
      </Button>
    </div>
  );
}

/** Which rows are chosen. */
export function useChosen(ids: number[]) {
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const shown = ids.filter((id) => chosen.has(id));
  return {
    ids: shown,
    has: (id: number) => chosen.has(id),
    toggle: (id: number) => {
      const next = new Set(chosen);
      if (!next.delete(id)) next.add(id);
      setChosen(next);
    },
    all: shown.length === ids.length && ids.length > 0,
    toggleAll: () => setChosen(shown.length === ids.length ? new Set() : new Set(ids)),
    clear: () => setChosen(new Set()),
  };
}

/** Keys for rows: j and k move, Enter opens, x chooses. Returns the row that has the focus. */
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

interface BulkProps<R> {
  /** What is done: `cancel`. */
  verb: string;
  /** What it is done to: `jobs`. */
  what: string;
  path: string;
  filter: Record<string, unknown>;
  filtered: string;
  told: (result: R) => string;
  danger?: boolean;
  note?: ReactNode;
  onClose: () => void;
}

/** An action on everything that matches: first how many that is, then the deed on exactly those. */
export function BulkDialog<R>({ verb, what, path, filter, filtered, told, danger = false, note, onClose }: BulkProps<R>) {
  const [preview, setPreview] = useState<Preview | null>(null);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    post<Preview>(`${path}/preview`, filter).then(setPreview, setError);
  }, [path, filter]);
  const doing = useAction<void, R>({
    act: () => post<R>(path, { filter: { ...filter, up_to: preview?.up_to } }),
    told,
    then: onClose,
  });
  const title = `${verb[0]?.toUpperCase()}${verb.slice(1)} everything that matches`;
  return (
    <Dialog title={title} onClose={onClose}>
      {error !== null && <Trouble error={error} />}
      {preview === null && error === null && <Loading lines={2} />}
      {preview && (
        <>
          <p>
            <b>
              {count(preview.count)}
              {preview.more ? " or more" : ""} {what}
            </b>{" "}
            match {filtered}. {preview.count > 0 && "What comes after this moment is left alone."}
          </p>
          {preview.sample.length > 0 && <p className="faint">Among them: {preview.sample.slice(0, 8).join(", ")}{preview.count > 8 ? " …" : ""}</p>}
          {note}
          <footer>
            <Button onClick={onClose}>Leave them</Button>
            <Button kind={danger ? "danger" : "main"} disabled={preview.count === 0} busy={doing.isPending} onClick={() => doing.mutate()}>
              {verb[0]?.toUpperCase()}
              {verb.slice(1)} {count(preview.count)} {what}
            </Button>
          </footer>
        </>
      )}
    </Dialog>
  );
}

/** A filter in words. */
export function inWords(filter: Record<string, unknown>): string {
  const parts = Object.entries(filter).flatMap(([name, value]) => {
    if (value === undefined || value === null || value === "" || (Array.isArray(value) && value.length === 0)) return [];
    return [`${name} ${Array.isArray(value) ? value.join(" or ") : String(value)}`];
  });
  return parts.length ? parts.join(", ") : "(there is no filter: that is all of them)";
}
