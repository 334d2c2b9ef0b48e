/** Objects of the API, as its OpenAPI document describes them. */
export type Json = unknown;

export interface Session {
  authenticated: boolean;
  login_required: boolean;
  read_only: boolean;
  application: string | null;
  version: string | null;
  name: string | null;
  scope: "read" | "operate" | "admin" | null;
  csrf: string | null;
}

/** A page of the application. */
export interface ApplicationPage {
  name: string;
  title: string;
  address: string;
}

export interface Page<T> {
  items: T[];
  next: string | null;
}

export interface List<T> {
  items: T[];
}

export interface JobLine {
  id: number;
  state: string;
  queue: string;
  task: string;
  priority: number;
  attempt: number;
  failures: number;
  losses: number;
  created_at: string;
  due_at: string;
  started_at: string | null;
  finished_at: string | null;
  progress: number | null;
  note: string | null;
  tags: string[] | null;
  run_id: number | null;
}

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

export interface Job extends JobLine {
  deadline: string | null;
  args: Json;
  unique_key: string | null;
  concurrency_key: string | null;
  max_concurrency: number | null;
  work: number | null;
  options: Record<string, Json> | null;
  origin: Record<string, Json> | null;
  errors: Attempt[] | null;
  worker_id: number | null;
  worker_host: string | null;
  worker_pid: number | null;
  result: Json;
  cancel_reason: string | null;
  why: string[];
}

export interface Preview {
  count: number;
  more: boolean;
  sample: number[];
  up_to: number | null;
}

export interface Done {
  count: number;
  done: number;
  asked: number;
  unchanged: number;
  ids: number[];
}

export interface RunLine {
  id: number;
  workflow: string;
  shape: "flow" | "dag";
  state: string;
  key: string | null;
  ticks: number;
  owned: boolean;
  awake: boolean;
  note: string | null;
  created_at: string;
  ended_at: string | null;
  forked_from: number | null;
  parent: number | null;
  asks: number;
}

export interface Run extends Omit<RunLine, "owned" | "awake" | "asks"> {
  version: string;
  input: Json;
  result: Json;
  error: Json;
  origin: Record<string, Json> | null;
  owner_host: string | null;
  owner_pid: number | null;
  why: string[];
}

export interface Tick {
  seq: number;
  kind: string;
  at: string | null;
  data: Record<string, Json>;
}

export interface Ticks {
  items: Tick[];
  total: number;
}

export interface NodeJob {
  id: number;
  state: string;
  queue: string;
  attempt: number;
  progress: number | null;
  note: string | null;
}

export interface TreeNode {
  node: string;
  state: string;
  done: number | null;
  total: number | null;
  began: string | null;
  ended: string | null;
  note: string;
  why: string;
  carried: boolean;
  jobs: NodeJob[];
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

export interface Tree {
  run_id: number;
  state: string;
  definition: Definition;
  nodes: TreeNode[];
  why: string[];
  tick: number | null;
}

export interface StateAt {
  run_id: number;
  tick: number;
  total: number;
  state: Record<string, Json>;
}

export interface Declared {
  name: string;
  shape: "flow" | "dag";
  definition: Definition | null;
  graph: FlowGraph | null;
}

/** The declared graph of a flow: steps and the events between them. */
export interface FlowGraph {
  nodes: { name: string; label: string; kind: string }[];
  edges: [string, string][];
}

export interface Input {
  run_id: number;
  workflow: string;
  shape: "flow" | "dag";
  node: string;
  prompt: string;
  schema: Json;
  asked_at: string;
  due_at: string | null;
}

export interface Queue {
  name: string;
  waiting: number;
  scheduled: number;
  throttled: number;
  no_worker: number;
  running: number;
  oldest: number | null;
  workers: number;
  rate: number | null;
  burst: number | null;
  limited_by: string | null;
  control: string[];
  half_within: number | null;
  most_within: number | null;
}

export interface Schedule {
  name: string;
  task: string;
  queue: string;
  when: string;
  catchup: string;
  jitter: number;
  paused: boolean;
  next_fire: string;
  then: string[];
  last_fire: string | null;
  last_job_id: number | null;
  fired: number;
  missed: number;
  missed_at: string | null;
}

export interface Worker {
  id: number;
  host: string;
  pid: number;
  queues: string[];
  max_concurrency: number;
  models: string[] | null;
  status: string;
  running: number;
  started_at: string;
  seen_at: string;
  lease_until: string;
  flagged_at: string | null;
  ended_at: string | null;
  end_reason: string | null;
  tasks: number;
  control: string[];
}

export interface Gpu {
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

export interface Host {
  name: string;
  at: string;
  age: number;
  sample: HostSample;
}

/** The failed states of a pipeline, with the newest failure. */
export interface FailedStates {
  pipeline: string;
  states: number;
  needs_attention: number;
  stage: string;
  entity: string;
  note: string;
  failed_at: string;
}

export interface Overview {
  at: string;
  counts: {
    jobs_waiting: number;
    jobs_scheduled: number;
    jobs_throttled: number;
    jobs_no_worker: number;
    jobs_running: number;
    oldest_waiting: number | null;
    runs_live: number;
    runs_needing_attention: number;
    inputs_open: number;
    workers_alive: number;
    workers_silent: number;
    schedules: number;
    schedules_paused: number;
  };
  done: { queue: string; task: string; outcome: string; total: number }[];
  failed_jobs: JobLine[];
  failed_runs: RunLine[];
  failed_states: FailedStates[];
}

export interface AuditEntry {
  id: number;
  at: string;
  who: string;
  action: string;
  target: string;
  before: Json;
  after: Json;
}

export interface Token {
  id: number;
  name: string;
  scope: "read" | "operate" | "admin";
  hint: string;
  created_at: string;
  created_by: string;
  expires_at: string | null;
  used_at: string | null;
  revoked_at: string | null;
  revoked_by: string | null;
}

export interface Hit {
  kind: string;
  id: string;
  name: string;
  state: string | null;
  why: string;
}
