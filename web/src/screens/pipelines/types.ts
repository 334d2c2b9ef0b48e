/** Pipelines and their states, as the API returns them. */
import type { Schemas } from "../../api/types";

export type Stage = Schemas["StageLine"];
export type Pipeline = Schemas["PipelineLine"];
export type Grid = Schemas["StateGrid"];
export type StateRef = Schemas["StateRef"];
export type Build = Schemas["Build"];
export type StateDetails = Schemas["StateDetails"];
export type Content = Schemas["Content"];
export type EarlierContent = Schemas["EarlierContent"];
export type Backfill = Schemas["Backfill"];
export type Effect = Schemas["Effect"];
export type LineageGraph = Schemas["Lineage"];
export type LineageNode = Schemas["LineageNode"];
export type ChangePreview = Schemas["ChangePreview"];

/** The URL of a pipeline's screen, with a state selected if one is given. */
export function pipelineUrl(pipeline: string, state?: { stage: string; entity: string }): string {
  const path = `/pipelines/${encodeURIComponent(pipeline)}`;
  return state ? `${path}?${new URLSearchParams({ stage: state.stage, entity: state.entity })}` : path;
}

/** The API path of a pipeline. */
export const pipelineApi = (pipeline: string): string => `/pipelines/${encodeURIComponent(pipeline)}`;

/** The grid of stages whose entities have no variables. */
export const NO_VARIABLES = "*";

/** How often lists are refetched when no change message arrives. */
export const REFRESH_MS = 15_000;
