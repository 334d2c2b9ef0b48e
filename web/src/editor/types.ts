/** What the API tells of workflow files. */
import type { Schema } from "../parts/schemaform";

export type Form = "graph" | "stages" | "dag";
export type Step = string | number;

export interface FieldSchema extends Schema {
  /** Which names to suggest. */
  suggest?: "tasks" | "queues" | "transforms" | "files";
  deprecated?: boolean;
  /** Shown only when it is asked for, or is there. */
  rare?: boolean;
}

export interface DataSchema {
  properties: Record<string, FieldSchema>;
  required?: string[];
  additionalProperties?: boolean;
  allOf?: { anyOf: { required: string[] }[] }[];
}

export interface Kind {
  form: Form;
  type: string;
  group: string;
  about: string;
  schema: DataSchema;
  modes: string[];
  is_start: boolean;
  exits: string[];
  mark: string | null;
}

export interface Kinds {
  kinds: Kind[];
  files: Record<Form, DataSchema>;
  transforms: string[];
  tasks: string[];
  queues: string[];
}

export interface Trouble {
  message: string;
  severity: "error" | "warning";
  place: Step[];
  where: string;
  node: number | null;
  line: number | null;
}

export interface Checked {
  form: Form | null;
  mode: string | null;
  name: string | null;
  nodes: number;
  problems: Trouble[];
}

export interface Listed {
  path: string;
  size: number;
  changed_at: string;
  form: Form | null;
  mode: string | null;
  name: string | null;
  nodes: number;
  errors: number;
  trouble: string | null;
}

export interface Files {
  folder: string | null;
  items: Listed[];
}

export interface WorkFile {
  path: string;
  text: string;
  version: string;
  checked: Checked;
}

export interface TriedField {
  name: string;
  value?: unknown;
  waits?: string;
  wrong?: string;
}

export interface TriedNode {
  id: string;
  name: string;
  type: string;
  fields: TriedField[];
  items: number;
  is_run: boolean;
  output: unknown;
  note: string;
}

export interface TriedStage {
  stage: string;
  node: string;
  entity: string | null;
  verdict: "build" | "wait" | "fresh" | "unknown" | "none";
  why: string;
  inputs: { name: string; pattern: string; paths: string[]; missing: string[] }[];
  output: string | null;
  nodes: TriedNode[];
  content: string | null;
}

export interface Planned {
  node: string;
  kind: string;
  level: number;
  after: string[];
  fields: TriedField[];
  note: string;
  skipped: boolean | null;
}

export interface Tried {
  form: Form;
  mode: string | null;
  entity: string | null;
  entities: string[];
  looked: boolean;
  stages: TriedStage[];
  nodes: TriedNode[];
  plan: Planned[];
  notes: string[];
}

/** A value at a place of the file: set, or taken away if it is undefined. A place after the last of a list adds to it. */
export interface Change {
  path: Step[];
  value: unknown;
}

/** The order in which the entries of a list are to stand. */
export interface Reorder {
  path: Step[];
  order: number[];
}

export type Edit = Change | Reorder;
