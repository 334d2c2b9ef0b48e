/** Where we are is the address: path and query. Links keep the page, and filters live in the query. */
import { type AnchorHTMLAttributes, type MouseEvent, useCallback, useMemo, useSyncExternalStore } from "react";

const listeners = new Set<() => void>();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  window.addEventListener("popstate", listener);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("popstate", listener);
  };
}

const here = () => window.location.pathname + window.location.search;

/** Go to an address of this console. */
export function go(to: string, { replace = false } = {}): void {
  if (to === here()) return;
  window.history[replace ? "replaceState" : "pushState"](null, "", to);
  for (const listener of [...listeners]) listener();
  if (!replace) window.scrollTo(0, 0);
}

/** The path and the query of the address. */
export function useLocation(): { path: string; query: URLSearchParams } {
  const at = useSyncExternalStore(subscribe, here);
  return useMemo(() => {
    const [path = "/", query = ""] = at.split("?");
    return { path, query: new URLSearchParams(query) };
  }, [at]);
}

/** The query, and a way to change some of it; an empty value takes a filter away. */
export function useFilters(): [URLSearchParams, (changes: Record<string, string | string[] | null>) => void] {
  const { path, query } = useLocation();
  const change = useCallback(
    (changes: Record<string, string | string[] | null>) => {
      const next = new URLSearchParams(window.location.search);
      for (const [name, value] of Object.entries(changes)) {
        next.delete(name);
        for (const each of Array.isArray(value) ? value : value ? [value] : []) next.append(name, each);
      }
      const text = next.toString();
      go(text ? `${path}?${text}` : path, { replace: true });
    },
    [path],
  );
  return [query, change];
}

type LinkProps = AnchorHTMLAttributes<HTMLAnchorElement> & { to: string };

/** A link within the console. */
export function Link({ to, onClick, ...rest }: LinkProps) {
  const follow = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  };
  return <a href={to} onClick={follow} {...rest} />;
}
