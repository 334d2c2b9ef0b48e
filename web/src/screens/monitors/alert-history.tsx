/** The history of an alert: why it opened, what happened since, and a form for notes. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { Explanation } from "../../components/details/explanation";
import { JsonView } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { LoadStatus } from "../../components/feedback";
import { absolute, Ago, duration, millis } from "../../components/times";
import type { Alert } from "./types";

interface AlertDetails {
  alert: Alert;
  explain: OpenRecord | null;
  history: { at: string; action: string; who: string | null; detail: string | null }[];
}

/** What the server stores with an alert when it opens. */
interface OpenRecord {
  rule?: Record<string, unknown>;
  occurrence?: unknown;
  evidence?: unknown;
  features?: unknown;
  events?: { at: number }[];
}

const asText = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value));

/** Why an alert opened, as sentences: its rule, the values at that time, and when. */
function whyOpened(alert: Alert, record: OpenRecord): string[] {
  const rule = record.rule ?? {};
  const says = typeof rule.says === "string" && rule.says;
  const silence = alert.kind === "absent" && typeof rule.after === "number" && `no event for ${duration(rule.after)}`;
  const code = [rule.when, rule.of].find((each) => typeof each === "string") as string | undefined;
  const seen = record.evidence ?? record.features;
  const last = record.events?.at(-1);
  return [
    `${alert.trigger} of ${alert.entity} (${alert.severity}): ${says || silence || "its condition became true"}.`,
    code && `Condition: \`${code.replace(/^\w+=(lambda[^:]*:\s*)?/, "")}\`${typeof rule.hold === "number" && rule.hold > 0 ? `, true for ${duration(rule.hold)}` : ""}.`,
    seen !== undefined && seen !== null && `Values at that time: ${asText(seen)}.`,
    record.occurrence !== undefined && `Event: ${asText(record.occurrence)}.`,
    `Started at ${absolute(alert.started_at ?? alert.opened_at)}, opened ${duration((millis(alert.opened_at) - millis(alert.started_at ?? alert.opened_at)) / 1000)} later.`,
    last && `Last event before that: ${absolute(last.at)}.`,
  ].filter((line): line is string => Boolean(line));
}

export function AlertHistory({ id, may, onClose }: { id: number; may: boolean; onClose: () => void }) {
  const [text, setText] = useState("");
  const found = useQuery({ queryKey: ["alerts", "history", id], queryFn: () => get<AlertDetails>(`/alerts/${id}`) });
  const note = useAction({ request: () => post(`/alerts/${id}/note`, { note: text.trim() }), onSuccess: () => setText("") });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    note.mutate();
  };
  return (
    <Dialog title={found.data ? `${found.data.alert.trigger} of ${found.data.alert.entity}` : "Alert"} onClose={onClose} wide>
      <LoadStatus query={found} />
      {found.data && (
        <>
          <h3>Why it opened</h3>
          <Explanation lines={whyOpened(found.data.alert, found.data.explain ?? {})} />
          <details>
            <summary>Recorded data</summary>
            <JsonView value={found.data.explain} label="recorded data" />
          </details>
          <h3>History</h3>
          <ul className="why">
            {found.data.history.map((each, index) => (
              <li key={index}>
                <b>{each.action}</b> {each.who && `by ${each.who}`} <span className="faint"><Ago at={each.at} /></span> {each.detail && <span className="soft">{each.detail}</span>}
              </li>
            ))}
          </ul>
          {may && (
            <form className="row" onSubmit={submit}>
              <input className="field" value={text} onChange={(event) => setText(event.target.value)} aria-label="Note" placeholder="Note" maxLength={2000} />
              <Button type="submit" busy={note.isPending} disabled={text.trim() === ""}>
                Add note
              </Button>
            </form>
          )}
        </>
      )}
    </Dialog>
  );
}
