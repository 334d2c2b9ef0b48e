/** Who looks at the console, and what they may do. */
import { createContext, useContext } from "react";
import type { Session } from "./types";

const STRANGER: Session = {
  authenticated: false, login_required: true, read_only: true, application: null, version: null, name: null, scope: null, csrf: null,
};

export const SessionContext = createContext<Session>(STRANGER);

export const useSession = (): Session => useContext(SessionContext);

/** Whether actions are shown at all: the server checks again. */
export function useMay(scope: "operate" | "admin"): boolean {
  const session = useSession();
  const order = ["read", "operate", "admin"];
  return !session.read_only && order.indexOf(session.scope ?? "") >= order.indexOf(scope);
}
