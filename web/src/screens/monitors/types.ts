/** Monitors and alerts as the API returns them. */
export interface Monitor {
  name: string;
  version: string;
  tick: number;
  tick_at: string | null;
  cursor_at: string | null;
  events: number;
  late: number;
  paused: boolean;
  off: string[] | null;
  status: Record<string, unknown> | null;
  seen_at: string | null;
  entities: number;
  filling: number;
  open: number;
  members: number;
  problems: Record<string, unknown>[];
  triggers: string[];
}

export interface Alert {
  id: number;
  monitor: string;
  trigger: string;
  entity: string;
  kind: string;
  severity: string;
  started_at: string | null;
  opened_at: string;
  resolved_at: string | null;
  resolution: string | null;
  acked_at: string | null;
  acked_by: string | null;
  owner: string | null;
  note: string | null;
  silence: number | null;
}

export interface Entity {
  entity: string;
  last_at: string | null;
  count: number;
  state: unknown;
  labels: unknown;
  spark: number[];
}

export interface Silence {
  id: number;
  monitor: string;
  matchers: Record<string, string>;
  starts_at: string;
  ends_at: string;
}

export interface BacktestResult {
  since: string;
  until: string;
  entities: number;
  events: number;
  counts: Record<string, number>;
  alerts: { entity: string; trigger: string; kind: string; severity: string; started_at: string; opened_at: string; resolved_at: string | null }[];
  problems: string[];
}

export const monitorApi = (monitor: string) => `/monitors/${encodeURIComponent(monitor)}`;
