/** Workflow files as the API returns them. */
import type { Schemas } from "../../api/types";
import type { Schema } from "../../components/forms/schema-form";

export type Form = "graph" | "stages" | "dag";
export type Step = string | number;

export interface FieldSchema extends Schema {
  /** The list of suggested names. */
  suggest?: "tasks" | "queues" | "transforms" | "files" | "credentials";
  deprecated?: boolean;
  properties?: Record<string, FieldSchema>;
  items?: FieldSchema;
  additionalProperties?: FieldSchema | boolean;
  /** Hidden in a section unless it has a value. */
  rare?: boolean;
}

export interface DataSchema {
  properties: Record<string, FieldSchema>;
  required?: string[];
  additionalProperties?: boolean;
  allOf?: { anyOf: { required: string[] }[] }[];
}

export interface Kind extends Omit<Schemas["WorkflowKind"], "form" | "schema"> {
  form: Form;
  schema: DataSchema;
}

export interface Kinds extends Omit<Schemas["WorkflowKinds"], "kinds" | "files"> {
  kinds: Kind[];
  files: Record<Form, DataSchema>;
  /** Names of credentials, which `credentialName` suggests. */
  credentials: string[];
}

export type FileProblem = Schemas["TextProblem"];
export type Checked = Schemas["Checked"];
export type Files = Schemas["WorkflowFileList"];
export type WorkFile = Schemas["WorkflowFile"];
export type DryRunField = Pick<Schemas["Field"], "name"> & Partial<Schemas["Field"]>;
export type DryRunNode = Schemas["DryRunNode"];
export type DryRunStage = Schemas["StageRun"];
export type Planned = Schemas["Planned"];
export type WorkflowDryRun = Schemas["WorkflowDryRun"];

/** Set the value at a path; undefined removes it, and an index after the last entry appends. */
interface Change {
  path: Step[];
  value: unknown;
}

/** Reorder the entries of a list. */
interface Reorder {
  path: Step[];
  order: number[];
}

export type Edit = Change | Reorder;
