/** The frame around every screen: navigation, search, connection status and theme switch. */
import { useQuery } from "@tanstack/react-query";
import { Component, type ReactNode, Suspense, useEffect, useState } from "react";
import { get, remove } from "../api/client";
import type { ApplicationPage, Overview } from "../api/types";
import { Button } from "../components/button";
import { Empty, ErrorMessage, Loading } from "../components/feedback";
import { PageHeader } from "../components/layout";
import { CommandPalette } from "./command-palette";
import { Icon } from "./icons";
import { useLive } from "./live-changes";
import { go, Link, useLocation } from "./router";
import { findScreen, SCREENS } from "./screens";
import { useSession } from "./session";
import { chooseTheme, useTheme } from "./theme";

const LIVE_STATUS = {
  live: { tone: "ok", text: "live" },
  connecting: { tone: "wait", text: "connecting" },
  reconnecting: { tone: "bad", text: "reconnecting" },
} as const;

export function Shell() {
  const { path } = useLocation();
  const [menu, setMenu] = useState(false);
  const [searching, setSearching] = useState(false);
  useShortcuts(() => setSearching(true));
  useEffect(() => setMenu(false), [path]);
  return (
    <div className="shell">
      <a className="skip" href="#screen">
        Skip to content
      </a>
      <Side open={menu} />
      <button type="button" className={menu ? "veil open" : "veil"} aria-label="Close the menu" onClick={() => setMenu(false)} />
      <div className="grow">
        <Bar onMenu={() => setMenu(!menu)} onSearch={() => setSearching(true)} />
        <main id="screen" tabIndex={-1}>
          <ErrorBoundary key={path}>
            <Suspense fallback={<Loading lines={6} />}>
              <Screen path={path} />
            </Suspense>
          </ErrorBoundary>
        </main>
      </div>
      {searching && <CommandPalette onClose={() => setSearching(false)} />}
    </div>
  );
}

function Screen({ path }: { path: string }) {
  const found = findScreen(path);
  const label = found ? (found.id ? `${found.id} · ${found.entry.label}` : found.entry.label) : "Not found";
  useEffect(() => {
    document.title = `${label} · Tidemill`;
  }, [label]);
  if (!found) {
    return (
      <>
        <PageHeader title="Not found" />
        <Empty title="This page does not exist">
          <Link to="/">Go home</Link>, or search with <kbd>Ctrl K</kbd>.
        </Empty>
      </>
    );
  }
  const Component = (found.id && found.entry.detail) || found.entry.screen;
  return <Component key={found.id} id={found.id} />;
}

function Side({ open }: { open: boolean }) {
  const { path } = useLocation();
  const session = useSession();
  const applications = session.applications ?? [];
  const overview = useQuery({ queryKey: ["overview"], queryFn: () => get<Overview>("/overview"), refetchInterval: 5000 });
  const pages = useQuery({ queryKey: ["pages"], queryFn: () => get<ApplicationPage[]>("/pages"), staleTime: 60_000 });
  const openInputs = overview.data?.counts.inputs_open ?? 0;
  const groups = [...new Set(SCREENS.map((entry) => entry.group))];
  return (
    <nav className={open ? "side open" : "side"} aria-label="Main">
      <Link to="/" className="brand">
        <img src="/mill.svg" alt="" />
        <span>
          Tidemill
          {applications.length < 2 && <small>{session.application}</small>}
        </span>
      </Link>
      {applications.length > 1 && (
        <select aria-label="Application" value={session.application ?? ""} onChange={(event) => chooseApplication(event.target.value)}>
          {applications.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      )}
      {groups.map((group) => (
        <div key={group}>
          {group !== "Now" && <h2>{group}</h2>}
          {SCREENS.filter((entry) => entry.group === group).map((entry) => (
            <Link key={entry.path} to={entry.path} className="nav" title={entry.label} aria-current={findScreen(path)?.entry === entry ? "page" : undefined}>
              <Icon name={entry.icon} />
              <span>{entry.label}</span>
              {entry.path === "/input" && openInputs > 0 && <b aria-label={`${openInputs} open`}>{openInputs}</b>}
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
          {session.name} · {session.role}
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

/** Show another application of this server: its cookie names the one that requests are for. */
function chooseApplication(name: string) {
  document.cookie = `tidemill-application=${encodeURIComponent(name)}; path=/; SameSite=Strict`;
  window.location.assign("/");
}

function Bar({ onMenu, onSearch }: { onMenu: () => void; onSearch: () => void }) {
  const theme = useTheme();
  const live = LIVE_STATUS[useLive()];
  const mac = navigator.platform.startsWith("Mac");
  return (
    <div className="bar">
      <button type="button" className="icon-button menu" aria-label="Menu" onClick={onMenu}>
        <Icon name="menu" />
      </button>
      <button type="button" className="find" onClick={onSearch}>
        <span>Search</span>
        <kbd>{mac ? "⌘ K" : "Ctrl K"}</kbd>
      </button>
      <span className="grow" />
      <span className={`live ${live.tone}`} role="status" title="Connection to the server: live updates">
        <i aria-hidden="true" />
        <span>{live.text}</span>
      </span>
      <button
        type="button"
        className="icon-button"
        aria-label={theme === "dark" ? "Switch to the light theme" : "Switch to the dark theme"}
        onClick={() => chooseTheme(theme === "dark" ? "light" : "dark")}
      >
        <Icon name={theme === "dark" ? "sun" : "moon"} />
      </button>
    </div>
  );
}

/** Shortcuts: Ctrl-K and / search, `g` and a letter open a screen. */
function useShortcuts(search: () => void): void {
  useEffect(() => {
    let leader = 0;
    const press = (event: KeyboardEvent) => {
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        search();
        return;
      }
      const target = event.target as HTMLElement;
      if (event.metaKey || event.ctrlKey || event.altKey || target.closest("input, textarea, select, dialog, [contenteditable]")) return;
      if (event.key === "/") {
        event.preventDefault();
        search();
      } else if (event.key === "g") leader = event.timeStamp;
      else if (event.timeStamp - leader < 1200) {
        leader = 0;
        const entry = SCREENS.find((each) => each.key === event.key);
        if (entry) go(entry.path);
      }
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, [search]);
}

/** Keeps the navigation usable when a screen fails to render. */
class ErrorBoundary extends Component<{ children: ReactNode }, { error: unknown }> {
  state = { error: null as unknown };

  static getDerivedStateFromError(error: unknown) {
    return { error };
  }

  render() {
    if (this.state.error === null) return this.props.children;
    return <ErrorMessage error={this.state.error} retry={() => this.setState({ error: null })} />;
  }
}
