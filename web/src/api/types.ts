/** Objects of the API by name: their types are generated from its OpenAPI document (`schema.d.ts`, by `make lint`). */
import type { components } from "./schema";

export type Schemas = components["schemas"];
export type Json = unknown;

export interface Page<T> {
  items: T[];
  next: string | null;
}

export interface List<T> {
  items: T[];
}

export type Session = Schemas["Session"];
/** A page of the application. */
export type ApplicationPage = Schemas["PageLine"];
export type JobLine = Schemas["JobLine"];
export type Job = Schemas["Job"];
export type Preview = Schemas["Preview"];
export type Done = Schemas["JobsReached"];
export type RunLine = Schemas["RunLine"];
export type Run = Schemas["Run"];
export type FlowVersion = Schemas["FlowVersion"];
export type RunsMigrated = Schemas["RunsMigrated"];
export type TreeNode = Schemas["NodeView"];
/** The declared graph of a flow: steps and the events between them. */
export type FlowGraph = Schemas["FlowGraph"];
export type Input = Schemas["OpenInput"];
export type Queue = Schemas["QueueLine"];
export type Batch = Schemas["BatchLine"];
export type BatchDetails = Schemas["BatchDetails"];
export type Schedule = Schemas["ScheduleLine"];
export type ScheduleExplained = Schemas["ScheduleExplained"];
export type Startable = Schemas["Startable"];
export type Worker = Schemas["WorkerLine"];
/** The failed states of a pipeline, with the newest failure. */
export type FailedStates = Schemas["FailedStates"];
export type Overview = Schemas["Overview"];
export type AuditEntry = Schemas["AuditEntry"];
export type DataForgotten = Schemas["DataForgotten"];
export type Token = Schemas["Token"];
export type BrowserSession = Schemas["BrowserSession"];
export type Hit = Schemas["Hit"];

// -- what the document leaves open: values that are JSON to the API ---------------------------------

export interface Attempt {
  attempt?: number;
  at?: number | string;
  kind?: string;
  type?: string;
  message?: string;
  error?: string;
  traceback?: string;
  [more: string]: Json;
}

export interface Tick extends Omit<Schemas["Tick"], "data"> {
  data: Record<string, Json>;
}

export interface Ticks extends Omit<Schemas["Journal"], "items"> {
  items: Tick[];
}

export interface StateAt extends Omit<Schemas["StateAt"], "state"> {
  state: Record<string, Json>;
}

export interface DeclaredNode {
  kind: "task" | "input" | "dag";
  name: string;
  task?: string;
  queue?: string;
  deps?: string[];
  args?: Json;
  map?: Json;
  skip_if?: Json;
  prompt?: string;
  about?: string;
  dag?: Definition;
}

export interface Definition {
  name: string;
  nodes: DeclaredNode[];
  about?: string;
}

export interface Tree extends Omit<Schemas["DagTree"], "definition"> {
  definition: Definition;
}

export interface Declared extends Omit<Schemas["DeclaredWorkflow"], "definition"> {
  definition: Definition | null;
}

interface Gpu {
  index?: number;
  name?: string;
  busy?: number | null;
  memory?: number | null;
  memory_total?: number | null;
}

export interface HostSample {
  cores: number;
  cpu: number;
  load: number;
  memory: number;
  memory_total: number;
  disk: number;
  disk_total: number;
  ours: { cpu: number; memory: number };
  gpus?: Gpu[];
}

export interface Host extends Omit<Schemas["Host"], "sample"> {
  sample: HostSample;
}
