/** Logging in with a token. */
import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { look } from "../api";
import { Button, Trouble } from "../parts/ui";

export function LogIn() {
  const client = useQueryClient();
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const enter = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await look("/session", { token: token.trim() });
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
          Log in with a token. <code>tidemill token create NAME --scope operate</code> makes one on the server's machine.
        </p>
        <label className="stack">
          <span className="hidden">Token</span>
          <input className="field" type="password" autoComplete="current-password" placeholder="tm_…" value={token} onChange={(event) => setToken(event.target.value)} autoFocus required />
        </label>
        {error !== null && <Trouble error={error} />}
        <Button kind="main" type="submit" busy={busy}>
          Log in
        </Button>
      </form>
    </main>
  );
}
