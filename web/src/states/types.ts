/** Pipelines and their states, as the server tells them; and what each standing looks like. */

export interface Approval {
  states: number;
  above: number;
  reason: string;
  because: string;
}

export interface Stage {
  name: string;
  inputs: string[];
  output: string;
  variables: string[];
  takes: string[];
  queue: string | null;
  on_orphan: string;
  approve_above: number | null;
  paused_by: string | null;
  approval: Approval | null;
  counts: Record<string, number>;
  bytes: number;
  code: string;
}

export interface Pipeline {
  name: string;
  place: string;
  kept: boolean;
  paused_by: string | null;
  stages: Stage[];
  counts: Record<string, number>;
  bytes: number;
  problems: string[];
  looked_at: string | null;
  took: number;
}

export interface Grid {
  by: string;
  groups: { by: string; stages: string[]; entities: number }[];
  stages: string[];
  items: { entity: string; cells: (string | null)[] }[];
  total: number;
  before: number;
  next: string | null;
  looked_at: string;
}

export interface StateRef {
  stage: string;
  entity: string;
  standing: string | null;
}

export interface Build {
  at: string;
  outcome: string;
  took: number | null;
  size: number | null;
  code: string;
  content: string;
  built_by: string | null;
  reason: string | null;
  log: string | null;
}

export interface Story extends Omit<StateRef, "standing"> {
  standing: string;
  pipeline: string;
  variables: Record<string, string>;
  reason: string | null;
  why: string[];
  outputs: { path: string; size: number | null }[];
  inputs: { path: string; size: number | null; content: string | null; changed: boolean; made_by: StateRef | null }[];
  taken_by: StateRef[];
  takers: number;
  code: { built: string | null; now: string; parts: Record<string, string>; changed: string[] };
  size: number | null;
  version: number;
  built_at: string | null;
  took: number | null;
  built_by: string | null;
  failure: { attempts: number; error: string; log: string; first_at: string; failed_at: string; retry_at: string | null } | null;
  job: { id: number | null; state: string; queue: string | null; started_at: string | null } | null;
  builds: Build[];
  looked_at: string;
}

export interface Content {
  path: string;
  size: number;
  kind: "text" | "picture" | "bytes";
  media_type: string;
  text: string | null;
  data: string | null;
  truncated: boolean;
}

export interface Backfill {
  id: number;
  stage: string;
  first: string | null;
  last: string | null;
  downstream: boolean;
  by: string;
  started_at: string;
  stopped_at: string | null;
  stopped_by: string | null;
  total: number;
  left: number;
  failed: number;
}

export interface Effect {
  count: number;
  stages: Record<string, number>;
  sample: string[];
  approvals: Record<string, number>;
}

/** What a standing means, its tone, and the sign that says it without colour. */
export const STANDINGS: Record<string, { label: string; tone: string; sign: string; about: string }> = {
  fresh: { label: "fresh", tone: "ok", sign: "", about: "as it should be" },
  building: { label: "building", tone: "run", sign: "…", about: "being built now" },
  stale: { label: "stale", tone: "wait", sign: "~", about: "missing or out of date: it is built next" },
  failed: { label: "failed", tone: "bad", sign: "!", about: "its build failed; it is tried again later" },
  parked: { label: "parked", tone: "park", sign: "P", about: "failed too often: somebody must retry it" },
  blocked: { label: "blocked", tone: "off", sign: "·", about: "waits for an input that is not there yet" },
  paused: { label: "paused", tone: "off", sign: "=", about: "somebody has paused it" },
  needs_approval: { label: "needs approval", tone: "wait", sign: "?", about: "so many would be built again that somebody must agree" },
  orphan: { label: "orphan", tone: "off", sign: "×", about: "its inputs are gone" },
};

export const toneOfStanding = (standing: string | null): string => (standing === null ? "" : (STANDINGS[standing]?.tone ?? "off"));

/** The address of a pipeline, or of one of its states. */
export function placeOfState(pipeline: string, state?: { stage: string; entity: string }): string {
  const path = `/states/${encodeURIComponent(pipeline)}`;
  return state ? `${path}?${new URLSearchParams({ s: state.stage, e: state.entity })}` : path;
}

/** The part of the API that a pipeline has. */
export const apiOf = (pipeline: string): string => `/pipelines/${encodeURIComponent(pipeline)}`;
