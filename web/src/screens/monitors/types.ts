/** Monitors and alerts as the API returns them. */
import type { Schemas } from "../../api/types";

export type Monitor = Schemas["MonitorLine"];
export type Alert = Schemas["Alert"];
export type Entity = Schemas["EntityLine"];
export type Silence = Schemas["SilenceLine"];
export type BacktestResult = Schemas["Backtested"];

export const monitorApi = (monitor: string) => `/monitors/${encodeURIComponent(monitor)}`;
