/** The current session: who is logged in, and which scope they have. */
import { createContext, useContext } from "react";
import type { Session } from "../api/types";

const LOGGED_OUT: Session = {
  authenticated: false, login_required: true, read_only: true, application: null, version: null, name: null, scope: null, csrf: null,
};

export const SessionContext = createContext<Session>(LOGGED_OUT);

export const useSession = (): Session => useContext(SessionContext);

/** Whether actions of a scope are offered; the server checks the scope again. */
export function useMay(scope: "operate" | "admin"): boolean {
  const session = useSession();
  const order = ["read", "operate", "admin"];
  return !session.read_only && order.indexOf(session.scope ?? "") >= order.indexOf(scope);
}
