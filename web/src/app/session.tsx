/** The current session: who is logged in, and which role they have. */
import { createContext, useContext } from "react";
import type { Session } from "../api/types";

const LOGGED_OUT: Session = {
  authenticated: false, login_required: true, read_only: true, application: null, version: null, name: null, role: null, csrf: null, only: null, oidc: null, applications: [],
};

export const SessionContext = createContext<Session>(LOGGED_OUT);

export const useSession = (): Session => useContext(SessionContext);

const ROLES = ["viewer", "operator", "editor", "admin"] as const;

/** Whether actions that need a role are offered; the server checks the role again. */
export function useMay(role: (typeof ROLES)[number]): boolean {
  const session = useSession();
  return !session.read_only && ROLES.findIndex((each) => each === session.role) >= ROLES.indexOf(role);
}
