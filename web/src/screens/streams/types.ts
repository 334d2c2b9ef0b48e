/** Streams as the API returns them. */
import type { Schemas } from "../../api/types";

export interface Source {
  name: string;
  weight: number;
  max_qps: number | null;
  burst?: number | null;
  qps_part?: number | null;
  max_concurrency?: number | null;
  health?: "connecting" | "ok" | "failing";
  error?: string | null;
  enabled: boolean;
  rate: number;
  lag: number | null;
  waiting: number;
  in_flight: number;
  done: number;
  retried: number;
  dead: number;
  expired: number;
  duplicates: number;
  known_ids?: number | null;
  forgotten_ids?: number | null;
}

interface Sink {
  name: string;
  enabled: boolean;
  health: "connecting" | "ok" | "failing" | "standby";
  error: string | null;
  waiting: number;
  oldest: number | null;
  sent: number;
  retried: number;
  dead: number;
}

interface Dispatcher {
  host: string;
  pid: number;
  mode: string;
  in_flight: number;
  max_concurrency: number;
  engines: number;
  restarts: number;
  sources: Source[];
  live: { open: number; done: number; shed: number };
  sinks?: Sink[];
  plans: Record<string, { done: number; filtered: number; failed: number; p50: number | null; p99: number | null }>;
}

export interface Stream extends Omit<Schemas["StreamLine"], "dispatchers"> {
  dispatchers: Dispatcher[];
}

export type FailedAttempt = Schemas["FailedAttemptLine"];
export type Message = Schemas["MessageDetails"];
export type DeadLetter = Schemas["DeadLetterLine"];

export interface StreamControl {
  stream: string;
  source?: string;
  mode?: "run" | "drain";
  weight?: number;
  max_qps?: number;
  burst?: number;
  enabled?: boolean;
}
