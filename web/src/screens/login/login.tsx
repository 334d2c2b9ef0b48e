import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { postQuery } from "../../api/client";
import { Button } from "../../components/button";
import { ErrorMessage } from "../../components/feedback";
import "./login.css";

export function Login({ linkError }: { linkError: unknown }) {
  const client = useQueryClient();
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>(linkError);
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
        <p className="soft">
          Log in with a token. On the server's machine, <code>tidemill token create NAME --scope operate</code> creates one, and{" "}
          <code>tidemill token link</code> prints a link that logs one browser in.
        </p>
        <label className="stack">
          <span className="hidden">Token</span>
          <input className="field" type="password" autoComplete="current-password" placeholder="tm_…" value={token} onChange={(event) => setToken(event.target.value)} autoFocus required />
        </label>
        {error !== null && <ErrorMessage error={error} />}
        <Button kind="main" type="submit" busy={busy}>
          Log in
        </Button>
      </form>
    </main>
  );
}
