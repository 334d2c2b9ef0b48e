/** Workflow files as the API returns them. */
import type { Schema } from "../../components/forms/schema-form";

export type Form = "graph" | "stages" | "dag";
export type Step = string | number;

export interface FieldSchema extends Schema {
  /** The list of suggested names. */
  suggest?: "tasks" | "queues" | "transforms" | "files";
  deprecated?: boolean;
  /** Hidden in a section unless it has a value. */
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

export interface FileProblem {
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
  problems: FileProblem[];
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

/** Set the value at a path; undefined removes it, and an index after the last entry appends. */
export interface Change {
  path: Step[];
  value: unknown;
}

/** Reorder the entries of a list. */
export interface Reorder {
  path: Step[];
  order: number[];
}

export type Edit = Change | Reorder;
