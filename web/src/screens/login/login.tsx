import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { postQuery, Problem } from "../../api/client";
import { useSession } from "../../app/session";
import { Button } from "../../components/button";
import { ErrorMessage } from "../../components/feedback";
import "./login.css";

/** Why a log-in at the identity provider failed, by the code that the server puts into the address. */
const REASONS: Record<string, string> = {
  denied: "The identity provider refused the log-in. Try again, or ask its administrator.",
  expired: "The log-in took too long, or was begun in another browser. Try again.",
  no_role: "You are known to the identity provider, but your account has no role in this application. Ask an admin to give you one.",
  failed: "The log-in could not be verified. The server's log says why; tell an admin.",
};

function reasonInAddress(): Problem | null {
  const code = new URLSearchParams(location.search).get("login");
  return code && REASONS[code] ? new Problem(401, REASONS[code]) : null;
}

export function Login({ linkError }: { linkError: unknown }) {
  const client = useQueryClient();
  const session = useSession();
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>(linkError ?? reasonInAddress());
  const [busy, setBusy] = useState(false);
  const enter = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await postQuery("/session", { token: token.trim() });
      await client.invalidateQueries();
    } catch (refused) {
      setError(refused);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main className="login">
      <form onSubmit={(event) => void enter(event)}>
        <img src="/mill.svg" alt="" />
        <h1>Tidemill</h1>
        {session.oidc && (
          <a className="button main" href={`/login/oidc?next=${encodeURIComponent(nextPage())}`}>
            Log in with {session.oidc}
          </a>
        )}
        <p className="soft">
          {session.oidc ? "Or log in" : "Log in"} with a token. On the server's machine, <code>tidemill token create NAME --role operator</code> creates one, and <code>tidemill token link</code> prints a
          link that logs one browser in.
        </p>
        <label className="stack">
          <span className="hidden">Token</span>
          <input className="field" type="password" autoComplete="current-password" placeholder="tm_…" value={token} onChange={(event) => setToken(event.target.value)} autoFocus={!session.oidc} required />
        </label>
        {error !== null && <ErrorMessage error={error} />}
        <Button kind={session.oidc ? undefined : "main"} type="submit" busy={busy}>
          Log in
        </Button>
      </form>
    </main>
  );
}

/** Where to go after the log-in: an application's page that sent its visitor here, or the screen of this address. */
function nextPage(): string {
  const query = new URLSearchParams(location.search);
  const next = query.get("next");
  if (next) return `/?next=${encodeURIComponent(next)}`;
  query.delete("login");
  const rest = query.toString();
  return location.pathname + (rest ? `?${rest}` : "");
}
