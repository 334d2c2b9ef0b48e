/** The screens of the console: path, place in the navigation, shortcut and component. */
import { type ComponentType, lazy } from "react";
import { Home } from "../screens/home/home";
import { Jobs } from "../screens/jobs/jobs";
import { Runs } from "../screens/runs/runs";
import { importOrReload } from "./lazy-import";

const lazily = <K extends string>(load: () => Promise<Record<K, ComponentType<{ id: string }>>>, name: K) =>
  lazy(async () => ({ default: (await importOrReload(load))[name] }));

interface ScreenEntry {
  path: string;
  label: string;
  icon: string;
  group: "Now" | "Work" | "Events" | "Machines" | "Admin";
  /** The key after `g` that opens the screen. */
  key: string;
  screen: ComponentType<{ id: string }>;
  /** The screen of `path/ID`. */
  detail?: ComponentType<{ id: string }>;
}

export const SCREENS: ScreenEntry[] = [
  { path: "/", label: "Home", icon: "home", group: "Now", key: "h", screen: Home },
  { path: "/input", label: "Human input", icon: "input", group: "Now", key: "i", screen: lazily(() => import("../screens/human-input/human-input"), "HumanInput") },
  { path: "/runs", label: "Runs", icon: "runs", group: "Work", key: "r", screen: Runs, detail: lazily(() => import("../screens/runs/run-page"), "RunPage") },
  { path: "/jobs", label: "Jobs", icon: "jobs", group: "Work", key: "j", screen: Jobs, detail: lazily(() => import("../screens/jobs/job-page"), "JobPage") },
  { path: "/batches", label: "Batches", icon: "batches", group: "Work", key: "b", screen: lazily(() => import("../screens/batches/batches"), "Batches"), detail: lazily(() => import("../screens/batches/batch-page"), "BatchPage") },
  { path: "/queues", label: "Queues", icon: "queues", group: "Work", key: "q", screen: lazily(() => import("../screens/queues/queues"), "Queues"), detail: lazily(() => import("../screens/queues/queue-page"), "QueuePage") },
  { path: "/tasks", label: "Tasks", icon: "tasks", group: "Work", key: "k", screen: lazily(() => import("../screens/tasks/tasks"), "Tasks"), detail: lazily(() => import("../screens/tasks/task-page"), "TaskPage") },
  { path: "/pipelines", label: "Pipelines", icon: "pipelines", group: "Work", key: "p", screen: lazily(() => import("../screens/pipelines/pipelines"), "Pipelines"), detail: lazily(() => import("../screens/pipelines/pipeline-page"), "PipelinePage") },
  { path: "/editor", label: "Editor", icon: "editor", group: "Work", key: "e", screen: lazily(() => import("../screens/editor/editor"), "Editor"), detail: lazily(() => import("../screens/editor/editor"), "EditorPage") },
  { path: "/schedules", label: "Schedules", icon: "schedules", group: "Work", key: "c", screen: lazily(() => import("../screens/schedules/schedules"), "Schedules") },
  { path: "/streams", label: "Streams", icon: "streams", group: "Events", key: "s", screen: lazily(() => import("../screens/streams/streams"), "Streams"), detail: lazily(() => import("../screens/streams/message-page"), "MessagePage") },
  { path: "/monitors", label: "Monitors", icon: "monitors", group: "Events", key: "m", screen: lazily(() => import("../screens/monitors/monitors"), "Monitors") },
  { path: "/workers", label: "Workers and hosts", icon: "workers", group: "Machines", key: "w", screen: lazily(() => import("../screens/workers/workers"), "Workers"), detail: lazily(() => import("../screens/workers/detail"), "HostOrWorker") },
  { path: "/audit", label: "Audit log", icon: "audit", group: "Admin", key: "a", screen: lazily(() => import("../screens/audit/audit"), "Audit") },
  { path: "/accounts", label: "Accounts", icon: "accounts", group: "Admin", key: "u", screen: lazily(() => import("../screens/accounts/accounts"), "Accounts") },
  { path: "/settings", label: "Settings", icon: "settings", group: "Admin", key: "t", screen: lazily(() => import("../screens/settings/settings"), "Settings") },
];

/** The screen of a path, and the id of the object that it shows. */
export function findScreen(path: string): { entry: ScreenEntry; id: string } | null {
  const [, head = "", ...rest] = path.split("/");
  const entry = SCREENS.find((each) => each.path === `/${head}`);
  if (!entry) return null;
  const id = rest.join("/");
  return !id || entry.detail ? { entry, id: decodeURIComponent(id) } : null;
}
