/** The entry point: reads the session, then shows the login or the screens and follows the stream of changes. */
import "./app/styles.css"; // First, because the styles of screens override it.
import { QueryClient, QueryClientProvider, useQuery } from "@tanstack/react-query";
import { StrictMode, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { get, onUnauthorized, postQuery, Problem, setCsrf } from "./api/client";
import type { Session } from "./api/types";
import { followChanges } from "./app/live-changes";
import { SessionContext } from "./app/session";
import { Shell } from "./app/shell";
import { ErrorMessage, Loading } from "./components/feedback";
import { Toasts } from "./components/toasts";
import { Login } from "./screens/login/login";

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 1000,
      refetchOnWindowFocus: true,
      // Retry while the server restarts; do not retry what it refuses.
      retry: (failed, error) => error instanceof Problem && (error.status === 0 || error.status >= 502) && failed < 20,
      retryDelay: (failed) => Math.min(4000, 400 * 2 ** failed),
    },
  },
});

onUnauthorized(() => void client.invalidateQueries({ queryKey: ["session"] }));

/** The token of a log-in link (`/#token=…`), which leaves the address and the history at once. */
function takeLinkToken(): string | null {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) history.replaceState(null, "", location.pathname + location.search);
  return token;
}

function Console() {
  const [linkError, setLinkError] = useState<unknown>(null);
  const session = useQuery({
    queryKey: ["session"],
    queryFn: async () => {
      const token = takeLinkToken();
      if (token) await postQuery("/session", { token }).catch(setLinkError);
      const found = await get<Session>("/session");
      setCsrf(found.csrf ?? null);
      return found;
    },
    staleTime: 60_000,
    retry: true,
  });
  const known = session.data?.authenticated ?? false;
  useEffect(() => {
    const next = new URLSearchParams(location.search).get("next");
    if (known && next?.startsWith("/pages/")) location.replace(next); // An application's page sent its visitor here to log in.
  }, [known]);
  useEffect(() => (known ? followChanges(client) : undefined), [known]);
  if (session.data) {
    return (
      <SessionContext value={session.data}>
        {known ? <Shell /> : <Login linkError={linkError} />}
        <Toasts />
      </SessionContext>
    );
  }
  return <main>{session.failureReason ? <ErrorMessage error={session.failureReason} /> : <Loading />}</main>;
}

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <Console />
      </QueryClientProvider>
    </StrictMode>,
  );
}
