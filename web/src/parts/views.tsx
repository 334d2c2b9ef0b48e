/** Filters that are worth keeping, by name, in this browser. */
import { useState } from "react";
import { go, Link, useLocation } from "../router";
import { Button } from "./ui";

interface View {
  name: string;
  query: string;
}

const key = (screen: string) => `tidemill.views${screen}`;

function kept(screen: string): View[] {
  try {
    const found: unknown = JSON.parse(window.localStorage.getItem(key(screen)) ?? "[]");
    return Array.isArray(found) ? (found as View[]) : [];
  } catch {
    return [];
  }
}

/** The views of a screen, and a way to keep the present filters as one. */
export function Views({ screen }: { screen: string }) {
  const { query } = useLocation();
  const [views, setViews] = useState(() => kept(screen));
  const [naming, setNaming] = useState(false);
  const now = query.toString();
  const keep = (next: View[]) => {
    window.localStorage.setItem(key(screen), JSON.stringify(next));
    setViews(next);
  };
  const known = views.find((view) => view.query === now);
  return (
    <span className="row">
      {views.map((view) => (
        <Link key={view.name} className="chip-link" to={`${screen}?${view.query}`} aria-current={view === known ? "true" : undefined}>
          {view.name}
        </Link>
      ))}
      {known && (
        <Button kind="quiet" onClick={() => { keep(views.filter((view) => view !== known)); go(screen); }}>
          forget “{known.name}”
        </Button>
      )}
      {now && !known && !naming && (
        <Button kind="quiet" onClick={() => setNaming(true)}>
          keep this view
        </Button>
      )}
      {naming && (
        <form
          className="row"
          onSubmit={(event) => {
            event.preventDefault();
            const name = String(new FormData(event.currentTarget).get("name") ?? "").trim();
            if (name) keep([...views.filter((view) => view.name !== name), { name, query: now }]);
            setNaming(false);
          }}
        >
          <input className="field" name="name" aria-label="Name of the view" placeholder="Name of the view" autoFocus onBlur={() => setNaming(false)} />
        </form>
      )}
    </span>
  );
}
