/** Pipelines and their states, as the API returns them. */

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

export interface StateDetails extends Omit<StateRef, "standing"> {
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

/** The URL of a pipeline's screen, with a state selected if one is given. */
export function pipelineUrl(pipeline: string, state?: { stage: string; entity: string }): string {
  const path = `/pipelines/${encodeURIComponent(pipeline)}`;
  return state ? `${path}?${new URLSearchParams({ stage: state.stage, entity: state.entity })}` : path;
}

/** The API path of a pipeline. */
export const pipelineApi = (pipeline: string): string => `/pipelines/${encodeURIComponent(pipeline)}`;

/** How often lists are refetched when no change message arrives. */
export const REFRESH_MS = 15_000;
