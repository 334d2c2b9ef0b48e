/** Named filters of a list, stored in this browser. */
import { useState } from "react";
import { go, Link, useLocation } from "../../app/router";
import { Button } from "../button";

interface SavedFilter {
  name: string;
  query: string;
}

const key = (screen: string) => `tidemill.filters${screen}`;

function readSaved(screen: string): SavedFilter[] {
  try {
    const found: unknown = JSON.parse(window.localStorage.getItem(key(screen)) ?? "[]");
    return Array.isArray(found) ? (found as SavedFilter[]) : [];
  } catch {
    return [];
  }
}

/** The saved filters of a screen, and a form that saves the current one. */
export function SavedFilters({ screen }: { screen: string }) {
  const { query } = useLocation();
  const [filters, setFilters] = useState(() => readSaved(screen));
  const [naming, setNaming] = useState(false);
  const now = query.toString();
  const store = (next: SavedFilter[]) => {
    window.localStorage.setItem(key(screen), JSON.stringify(next));
    setFilters(next);
  };
  const known = filters.find((filter) => filter.query === now);
  return (
    <span className="row">
      {filters.map((filter) => (
        <Link key={filter.name} className="chip-link" to={`${screen}?${filter.query}`} aria-current={filter === known ? "true" : undefined}>
          {filter.name}
        </Link>
      ))}
      {known && (
        <Button kind="quiet" onClick={() => { store(filters.filter((filter) => filter !== known)); go(screen); }}>
          Delete filter “{known.name}”
        </Button>
      )}
      {now && !known && !naming && (
        <Button kind="quiet" onClick={() => setNaming(true)}>
          Save this filter
        </Button>
      )}
      {naming && (
        <form
          className="row"
          onSubmit={(event) => {
            event.preventDefault();
            const name = String(new FormData(event.currentTarget).get("name") ?? "").trim();
            if (name) store([...filters.filter((filter) => filter.name !== name), { name, query: now }]);
            setNaming(false);
          }}
        >
          <input className="field" name="name" aria-label="Name of the filter" placeholder="Name of the filter" autoFocus onBlur={() => setNaming(false)} />
        </form>
      )}
    </span>
  );
}
