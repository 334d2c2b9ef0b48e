/** The screens: their addresses, their places in the navigation, and what is shown there. */
import { type ComponentType, lazy } from "react";
import { fresh } from "./parts/fresh";
import { Home } from "./screens/home";
import { Jobs } from "./screens/jobs";
import { Runs } from "./screens/runs";

const lazily = <K extends string>(load: () => Promise<Record<K, ComponentType<{ id: string }>>>, name: K) =>
  lazy(async () => ({ default: (await fresh(load))[name] }));

export interface Place {
  path: string;
  label: string;
  icon: string;
  group: "Now" | "Work" | "Events" | "Machines" | "House";
  /** A second key after `g` that goes there. */
  key: string;
  screen: ComponentType<{ id: string }>;
  /** What is shown under `path/ID`. */
  one?: ComponentType<{ id: string }>;
}

export const PLACES: Place[] = [
  { path: "/", label: "Home", icon: "home", group: "Now", key: "h", screen: Home },
  { path: "/inputs", label: "Inputs", icon: "inputs", group: "Now", key: "i", screen: lazily(() => import("./screens/inputs"), "Inputs") },
  { path: "/runs", label: "Runs", icon: "runs", group: "Work", key: "r", screen: Runs, one: lazily(() => import("./screens/run"), "RunPage") },
  { path: "/jobs", label: "Jobs", icon: "jobs", group: "Work", key: "j", screen: Jobs, one: lazily(() => import("./screens/job"), "JobPage") },
  { path: "/queues", label: "Queues", icon: "queues", group: "Work", key: "q", screen: lazily(() => import("./screens/queues"), "Queues") },
  { path: "/states", label: "States", icon: "states", group: "Work", key: "p", screen: lazily(() => import("./screens/states"), "States"), one: lazily(() => import("./screens/states"), "PipelinePage") },
  { path: "/editor", label: "Editor", icon: "editor", group: "Work", key: "e", screen: lazily(() => import("./screens/editor"), "Editor"), one: lazily(() => import("./screens/editor"), "EditorPage") },
  { path: "/schedules", label: "Schedules", icon: "schedules", group: "Work", key: "c", screen: lazily(() => import("./screens/schedules"), "Schedules") },
  { path: "/streams", label: "Streams", icon: "streams", group: "Events", key: "s", screen: lazily(() => import("./screens/streams"), "Streams") },
  { path: "/monitors", label: "Monitors", icon: "monitors", group: "Events", key: "m", screen: lazily(() => import("./screens/monitors"), "Monitors") },
  { path: "/workers", label: "Workers and hosts", icon: "workers", group: "Machines", key: "w", screen: lazily(() => import("./screens/workers"), "Workers"), one: lazily(() => import("./screens/host"), "HostPage") },
  { path: "/audit", label: "Audit", icon: "audit", group: "House", key: "a", screen: lazily(() => import("./screens/audit"), "Audit") },
  { path: "/settings", label: "Settings", icon: "settings", group: "House", key: "t", screen: lazily(() => import("./screens/settings"), "Settings") },
];

/** The place of an address, and the id of the one thing that it shows. */
export function placeOf(path: string): { place: Place; id: string } | null {
  const [, head = "", ...rest] = path.split("/");
  const place = PLACES.find((each) => each.path === `/${head}`);
  if (!place) return null;
  const id = rest.join("/");
  return !id || place.one ? { place, id: decodeURIComponent(id) } : null;
}
