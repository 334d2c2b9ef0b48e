/** A small router: the URL's path selects the screen, its query holds the filters. */
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

const currentUrl = () => window.location.pathname + window.location.search;

/** Open a URL of this console without reloading the page. */
export function go(to: string, { replace = false } = {}): void {
  if (to === currentUrl()) return;
  window.history[replace ? "replaceState" : "pushState"](null, "", to);
  for (const listener of [...listeners]) listener();
  if (!replace) window.scrollTo(0, 0);
}

/** The path and the query of the current URL. */
export function useLocation(): { path: string; query: URLSearchParams } {
  const at = useSyncExternalStore(subscribe, currentUrl);
  return useMemo(() => {
    const [path = "/", query = ""] = at.split("?");
    return { path, query: new URLSearchParams(query) };
  }, [at]);
}

/** The query and a function that changes it; an empty value removes a filter. */
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

/** A link to a screen of this console. */
export function Link({ to, onClick, ...rest }: LinkProps) {
  const follow = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(to);
  };
  return <a href={to} onClick={follow} {...rest} />;
}
