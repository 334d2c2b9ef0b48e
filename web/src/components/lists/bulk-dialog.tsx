import { type ReactNode, useEffect, useState } from "react";
import { post } from "../../api/client";
import type { Preview } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Button } from "../button";
import { Dialog } from "../dialog";
import { ErrorMessage, Loading } from "../feedback";
import { count } from "../format";
import { labelOf } from "../states";

interface BulkProps<R> {
  /** Such as `cancel`. */
  verb: string;
  /** Such as `jobs`. */
  what: string;
  path: string;
  filter: Record<string, unknown>;
  filtered: string;
  message: (result: R) => string;
  danger?: boolean;
  note?: ReactNode;
  /** Whether the operation takes the conditions themselves, not a `filter`. */
  flat?: boolean;
  onClose: () => void;
}

/** A bulk action: shows how many objects match, then acts on exactly those. */
export function BulkDialog<R>({ verb, what, path, filter, filtered, message, danger = false, note, flat = false, onClose }: BulkProps<R>) {
  const [preview, setPreview] = useState<Preview | null>(null);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    post<Preview>(`${path}/preview`, filter).then(setPreview, setError);
  }, [path, filter]);
  const action = useAction<void, R>({
    request: () => {
      const selected = { ...filter, up_to: preview?.up_to };
      return post<R>(path, flat ? selected : { filter: selected });
    },
    message,
    onSuccess: onClose,
  });
  const title = `${verb[0]?.toUpperCase()}${verb.slice(1)} all matching ${what}`;
  return (
    <Dialog title={title} onClose={onClose}>
      {error !== null && <ErrorMessage error={error} />}
      {preview === null && error === null && <Loading lines={2} />}
      {preview && (
        <>
          <p>
            <b>
              {count(preview.count)}
              {preview.more ? " or more" : ""} {what}
            </b>{" "}
            match {filtered}. {preview.count > 0 && `${what[0]?.toUpperCase()}${what.slice(1)} created from now on are not included.`}
          </p>
          {preview.sample.length > 0 && <p className="faint">Examples: {preview.sample.slice(0, 8).join(", ")}{preview.count > 8 ? " …" : ""}</p>}
          {note}
          <footer>
            <Button onClick={onClose}>Close</Button>
            <Button kind={danger ? "danger" : "main"} disabled={preview.count === 0} busy={action.isPending} onClick={() => action.mutate()}>
              {verb[0]?.toUpperCase()}
              {verb.slice(1)} {count(preview.count)} {what}
            </Button>
          </footer>
        </>
      )}
    </Dialog>
  );
}

/** A filter as text. */
export function describeFilter(filter: Record<string, unknown>): string {
  const parts = Object.entries(filter).flatMap(([name, value]) => {
    if (value === undefined || value === null || value === "" || (Array.isArray(value) && value.length === 0)) return [];
    return [`${name} ${Array.isArray(value) ? value.map(labelOf).join(" or ") : String(value)}`];
  });
  return parts.length ? parts.join(", ") : "(no filter is set, so all of them)";
}
