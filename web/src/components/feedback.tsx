/** What a screen shows instead of data: an empty state, an error, or that it is loading. */
import type { ReactNode } from "react";
import { Problem } from "../api/client";
import { Button } from "./button";
import { PageHeader } from "./layout";

/** An empty list: what that means, and what to do next. */
export function Empty({ title, children, good = false }: { title: string; children?: ReactNode; good?: boolean }) {
  return (
    <div className={`empty ${good ? "good" : ""}`}>
      <svg viewBox="0 0 48 20" aria-hidden="true">
        <path d="M2 8c4-5 8-5 11 0s7 5 11 0 8-5 11 0 8 5 11 0M2 15c4-5 8-5 11 0s7 5 11 0 8-5 11 0 8 5 11 0" />
      </svg>
      <b>{title}</b>
      {children !== undefined && <div>{children}</div>}
    </div>
  );
}

/** An error with the server's explanation. */
export function ErrorMessage({ error, retry }: { error: unknown; retry?: () => void }) {
  const problem = error instanceof Problem ? error : null;
  return (
    <div className="trouble" role="alert">
      <b>{problem?.status === 404 ? "Not found" : problem?.status === 403 ? "Not allowed" : "Request failed"}</b>
      <span>{error instanceof Error ? error.message : String(error)}</span>
      {problem?.fields.map((each) => (
        <span key={each.field + each.message}>
          <code>{each.field}</code> {each.message}
        </span>
      ))}
      {retry && (
        <Button kind="quiet" onClick={retry}>
          Try again
        </Button>
      )}
    </div>
  );
}

/** A placeholder while data is loading. */
export function Loading({ lines = 4 }: { lines?: number }) {
  return (
    <div className="loading" role="status" aria-label="Loading">
      <span>Loading …</span>
      {Array.from({ length: lines }, (_, index) => (
        <i key={index} />
      ))}
    </div>
  );
}

interface LoadedQuery {
  error: unknown;
  isPending: boolean;
  failureReason: unknown;
  refetch: () => unknown;
}

/** Says that a query is loading or failed; shows nothing once it has data. */
export function LoadStatus({ query, lines }: { query: LoadedQuery; lines?: number }) {
  if (query.error) return <ErrorMessage error={query.error} retry={() => void query.refetch()} />;
  if (!query.isPending) return null;
  // A query is retried while the server restarts: show the reason at once, not after the last attempt.
  return query.failureReason ? <ErrorMessage error={query.failureReason} /> : <Loading lines={lines} />;
}

/** The page of one object while it is loading, or if that failed. */
export function PageStatus({ title, query, lines }: { title: string; query: LoadedQuery; lines?: number }) {
  return (
    <>
      <PageHeader title={title} />
      <LoadStatus query={query} lines={lines} />
    </>
  );
}
