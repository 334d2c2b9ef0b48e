/** Every state that the API reports, with its tone, its meaning and a sign: the only place where states are named. */

/** A tone is a colour with a meaning; the classes of the same name are in public/theme.css. */
export type Tone = "ok" | "run" | "wait" | "bad" | "attention" | "off";

interface StateStyle {
  tone: Tone;
  /** What the state means, shown on hover. */
  about?: string;
  /** Shown in the grid of pipeline states, so that colour is not the only difference. */
  sign?: string;
}

const THROTTLED = "throttled";
export const NO_WORKER = "no_worker";
export const NEEDS_ATTENTION = "needs_attention";

export const JOB_STATES = ["ready", THROTTLED, NO_WORKER, "running", "succeeded", "failed", "cancelled", "expired"];
export const WAITING_JOB_STATES = ["ready", THROTTLED, NO_WORKER];
export const LIVE_JOB_STATES = [...WAITING_JOB_STATES, "running"];

export const RUN_STATES = ["running", NEEDS_ATTENTION, "succeeded", "failed", "timed_out", "cancelled", "expired"];
export const LIVE_RUN_STATES = ["running", NEEDS_ATTENTION];
export const FAILED_RUN_STATES = ["failed", "timed_out", NEEDS_ATTENTION];

/** States of a pipeline's outputs, in the order of the legend. */
export const PIPELINE_STATES = ["fresh", "building", "stale", "failed", NEEDS_ATTENTION, "blocked", "paused", "needs_approval", "orphan"];
export const FAILED_PIPELINE_STATES = ["failed", NEEDS_ATTENTION];

const STATES: Record<string, StateStyle> = {
  // Jobs, runs and steps.
  ready: { tone: "wait", about: "waiting for a free worker" },
  [THROTTLED]: { tone: "wait", about: "waiting for a rate or concurrency limit" },
  [NO_WORKER]: { tone: "bad", about: "no running worker knows this task" },
  pending: { tone: "off", about: "not started yet" },
  queued: { tone: "wait", about: "its job is waiting for a worker" },
  waiting: { tone: "wait" },
  waiting_for_input: { tone: "wait", about: "a person has to answer" },
  received: { tone: "run" },
  running: { tone: "run" },
  succeeded: { tone: "ok" },
  failed: { tone: "bad", sign: "!" },
  timed_out: { tone: "bad" },
  cancelled: { tone: "off" },
  skipped: { tone: "off" },
  expired: { tone: "off", about: "not started before its deadline" },
  [NEEDS_ATTENTION]: { tone: "attention", sign: "A", about: "stopped: a person has to look at it and retry" },
  blocked: { tone: "off", sign: "·", about: "an input is missing, or a dependency did not succeed" },
  // Outputs of pipelines.
  fresh: { tone: "ok", sign: "", about: "up to date" },
  building: { tone: "run", sign: "…", about: "being built now" },
  stale: { tone: "wait", sign: "~", about: "missing or out of date: built next" },
  needs_approval: { tone: "wait", sign: "?", about: "the rebuild is so large that a person has to approve it" },
  orphan: { tone: "off", sign: "×", about: "its inputs no longer exist" },
  absent: { tone: "off", sign: "∅", about: "not made: its page says why" },
  source: { tone: "off", about: "files that no stage makes" },
  // Workers, queues, schedules, sources, streams and monitors.
  alive: { tone: "ok" },
  active: { tone: "ok" },
  enabled: { tone: "ok" },
  healthy: { tone: "ok" },
  working: { tone: "run" },
  paused: { tone: "wait", sign: "=", about: "paused by a person" },
  partly_paused: { tone: "wait", about: "some of its queues are paused" },
  drained: { tone: "wait", about: "finished its jobs and takes no more" },
  stopping: { tone: "wait" },
  disabled: { tone: "wait" },
  draining: { tone: "wait", about: "finishes running work and takes no more" },
  silent: { tone: "bad", about: "its heartbeat is missing" },
  lost: { tone: "bad", about: "its lease expired; its jobs went to other workers" },
  ended: { tone: "off" },
  stopped: { tone: "off" },
  not_running: { tone: "bad", about: "no process runs it" },
  not_started: { tone: "wait", about: "it has not completed a tick yet" },
  unhealthy: { tone: "bad", about: "its source or its ticks keep failing" },
  // Messages of streams.
  in_flight: { tone: "run", about: "an engine runs it" },
  retrying: { tone: "wait", about: "an attempt failed; the next one is due later" },
  done: { tone: "ok" },
  dead: { tone: "bad", about: "given up; it can be replayed" },
  unknown: { tone: "off", about: "nothing is stored of it, and no dispatcher has it" },
  // Alerts and tokens.
  open: { tone: "bad" },
  fired: { tone: "wait", about: "it happened once, and is not acknowledged" },
  history: { tone: "off", about: "from before the entity was followed: nothing to acknowledge" },
  quiet: { tone: "ok", about: "no alert of it is open" },
  acknowledged: { tone: "wait" },
  resolved: { tone: "ok" },
  valid: { tone: "ok" },
  revoked: { tone: "off" },
};

/** The tone of a state. */
export const toneOf = (state: string): Tone => STATES[state]?.tone ?? "off";

/** A state as people read it: the API's value with spaces. */
export const labelOf = (state: string): string => state.replaceAll("_", " ");

export const aboutOf = (state: string): string | undefined => STATES[state]?.about;

export const signOf = (state: string): string => STATES[state]?.sign ?? "";

const MODES: Record<string, string> = { run: "running", pause: "paused", drain: "draining", stop: "stopped" };

/** What an operator has set for a place, `vm/mail=pause`, as the command line says it: `vm/mail paused`. */
export function controlText(control: string): string {
  const [place, mode = ""] = control.split(/=(?=[a-z]+$)/);
  return `${place} ${MODES[mode] ?? mode}`;
}
