/** The frame around every screen: navigation, search, whether changes arrive, the theme. */
import { useQuery } from "@tanstack/react-query";
import { Component, type ReactNode, Suspense, useEffect, useState } from "react";
import { get, remove } from "./api";
import { useLive } from "./live";
import { Icon } from "./parts/icons";
import { Palette } from "./parts/palette";
import { Button, Empty, Head, Loading, Trouble } from "./parts/ui";
import { PLACES, placeOf } from "./places";
import { go, Link, useLocation } from "./router";
import { useSession } from "./session";
import { choose, useTheme } from "./theme";
import type { ApplicationPage, Overview } from "./types";

const LIVE = {
  live: { tone: "ok", text: "live" },
  connecting: { tone: "wait", text: "connecting" },
  away: { tone: "bad", text: "reconnecting" },
} as const;

export function Shell() {
  const { path } = useLocation();
  const [menu, setMenu] = useState(false);
  const [finding, setFinding] = useState(false);
  useKeys(() => setFinding(true));
  useEffect(() => setMenu(false), [path]);
  return (
    <div className="shell">
      <a className="skip" href="#screen">
        Skip to the screen
      </a>
      <Side open={menu} />
      <button type="button" className={menu ? "veil open" : "veil"} aria-label="Close the menu" onClick={() => setMenu(false)} />
      <div className="grow">
        <Bar onMenu={() => setMenu(!menu)} onFind={() => setFinding(true)} />
        <main id="screen" tabIndex={-1}>
          <Fence key={path}>
            <Suspense fallback={<Loading lines={6} />}>
              <Screen path={path} />
            </Suspense>
          </Fence>
        </main>
      </div>
      {finding && <Palette onClose={() => setFinding(false)} />}
    </div>
  );
}

function Screen({ path }: { path: string }) {
  const found = placeOf(path);
  const label = found ? (found.id ? `${found.id} · ${found.place.label}` : found.place.label) : "Not found";
  useEffect(() => {
    document.title = `${label} · Tidemill`;
  }, [label]);
  if (!found) {
    return (
      <>
        <Head title="Not found" />
        <Empty title="There is no such page">
          <Link to="/">Go home</Link>, or search with <kbd>Ctrl K</kbd>.
        </Empty>
      </>
    );
  }
  const Shown = (found.id && found.place.one) || found.place.screen;
  return <Shown key={found.id} id={found.id} />;
}

function Side({ open }: { open: boolean }) {
  const { path } = useLocation();
  const session = useSession();
  const overview = useQuery({ queryKey: ["overview"], queryFn: () => get<Overview>("/overview"), refetchInterval: 5000 });
  const pages = useQuery({ queryKey: ["pages"], queryFn: () => get<ApplicationPage[]>("/pages"), staleTime: 60_000 });
  const asks = overview.data?.counts.inputs_open ?? 0;
  const groups = [...new Set(PLACES.map((place) => place.group))];
  return (
    <nav className={open ? "side open" : "side"} aria-label="Main">
      <Link to="/" className="brand">
        <img src="/mill.svg" alt="" />
        <span>
          Tidemill
          <small>{session.application}</small>
        </span>
      </Link>
      {groups.map((group) => (
        <div key={group}>
          {group !== "Now" && <h2>{group}</h2>}
          {PLACES.filter((place) => place.group === group).map((place) => (
            <Link key={place.path} to={place.path} className="nav" title={place.label} aria-current={placeOf(path)?.place === place ? "page" : undefined}>
              <Icon name={place.icon} />
              <span>{place.label}</span>
              {place.path === "/inputs" && asks > 0 && <b aria-label={`${asks} open`}>{asks}</b>}
            </Link>
          ))}
        </div>
      ))}
      {pages.data && pages.data.length > 0 && (
        <div>
          <h2>Pages</h2>
          {pages.data.map((page) => (
            <a key={page.name} href={page.address} className="nav" title={page.title}>
              <Icon name="page" />
              <span>{page.title}</span>
            </a>
          ))}
        </div>
      )}
      <div className="foot">
        {session.read_only && <span>This server is read-only.</span>}
        <span>
          {session.name} · {session.scope}
        </span>
        {session.csrf && (
          <Button kind="quiet" onClick={() => void remove("/session").then(() => window.location.reload())}>
            Log out
          </Button>
        )}
      </div>
    </nav>
  );
}

function Bar({ onMenu, onFind }: { onMenu: () => void; onFind: () => void }) {
  const theme = useTheme();
  const live = LIVE[useLive()];
  const mac = navigator.platform.startsWith("Mac");
  return (
    <div className="bar">
      <button type="button" className="icon-button menu" aria-label="Menu" onClick={onMenu}>
        <Icon name="menu" />
      </button>
      <button type="button" className="find" onClick={onFind}>
        <span>Find anything</span>
        <kbd>{mac ? "⌘ K" : "Ctrl K"}</kbd>
      </button>
      <span className="grow" />
      <span className={`live ${live.tone}`} role="status" title="Whether changes arrive by themselves">
        <i aria-hidden="true" />
        <span>{live.text}</span>
      </span>
      <button
        type="button"
        className="icon-button"
        aria-label={theme === "dark" ? "Light theme" : "Dark theme"}
        onClick={() => choose(theme === "dark" ? "light" : "dark")}
      >
        <Icon name={theme === "dark" ? "sun" : "moon"} />
      </button>
    </div>
  );
}

/** Keys: Ctrl-K and / search, `g` and a letter go to a screen. */
function useKeys(find: () => void): void {
  useEffect(() => {
    let leader = 0;
    const press = (event: KeyboardEvent) => {
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        find();
        return;
      }
      const target = event.target as HTMLElement;
      if (event.metaKey || event.ctrlKey || event.altKey || target.closest("input, textarea, select, dialog, [contenteditable]")) return;
      if (event.key === "/") {
        event.preventDefault();
        find();
      } else if (event.key === "g") leader = event.timeStamp;
      else if (event.timeStamp - leader < 1200) {
        leader = 0;
        const place = PLACES.find((each) => each.key === event.key);
        if (place) go(place.path);
      }
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, [find]);
}

/** An error in one screen leaves the rest alone. */
class Fence extends Component<{ children: ReactNode }, { error: unknown }> {
  state = { error: null as unknown };

  static getDerivedStateFromError(error: unknown) {
    return { error };
  }

  render() {
    if (this.state.error === null) return this.props.children;
    return <Trouble error={this.state.error} retry={() => this.setState({ error: null })} />;
  }
}
