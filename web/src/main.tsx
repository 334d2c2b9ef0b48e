/** The console begins here: who is asking, then the log-in or the screens, and the stream of changes. */
import { QueryClient, QueryClientProvider, useQuery } from "@tanstack/react-query";
import { StrictMode, useEffect } from "react";
import { createRoot } from "react-dom/client";
import { get, onUnauthorized, Problem, setCsrf } from "./api";
import { follow } from "./live";
import { Toasts } from "./parts/toasts";
import { Loading, Trouble } from "./parts/ui";
import { LogIn } from "./screens/login";
import { SessionContext } from "./session";
import { Shell } from "./shell";
import "./style/index.css";
import type { Session } from "./types";

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 1000,
      refetchOnWindowFocus: true,
      // A server that restarts is asked again until it answers; what it refuses is not.
      retry: (failed, error) => error instanceof Problem && (error.status === 0 || error.status >= 502) && failed < 20,
      retryDelay: (failed) => Math.min(4000, 400 * 2 ** failed),
    },
  },
});

onUnauthorized(() => void client.invalidateQueries({ queryKey: ["session"] }));

function Console() {
  const session = useQuery({
    queryKey: ["session"],
    queryFn: async () => {
      const found = await get<Session>("/session");
      setCsrf(found.csrf);
      return found;
    },
    staleTime: 60_000,
    retry: true,
  });
  const known = session.data?.authenticated ?? false;
  useEffect(() => (known ? follow(client) : undefined), [known]);
  if (session.data) {
    return (
      <SessionContext value={session.data}>
        {known ? <Shell /> : <LogIn />}
        <Toasts />
      </SessionContext>
    );
  }
  return <main>{session.failureReason ? <Trouble error={session.failureReason} /> : <Loading />}</main>;
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
