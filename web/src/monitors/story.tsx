/** The story of an alert: why it opened, who did what since, and a note of one's own. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { JsonView } from "../parts/json";
import { Button, Dialog, Loading, Trouble, Why } from "../parts/ui";
import { absolute, Ago, duration, millis } from "../times";
import type { Alert } from "./model";

interface StoryData {
  alert: Alert;
  explain: Told | null;
  history: { at: string; action: string; who: string | null; detail: string | null }[];
}

/** What is kept with an alert when it opens. */
interface Told {
  rule?: Record<string, unknown>;
  occurrence?: unknown;
  evidence?: unknown;
  features?: unknown;
  events?: { at: number }[];
}

const inWords = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value));

/** Why an alert opened, in sentences: what its trigger looks for, by which rule, what it saw, and when. */
function whyOpened(alert: Alert, told: Told): string[] {
  const rule = told.rule ?? {};
  const says = typeof rule.says === "string" && rule.says;
  const silence = alert.kind === "absent" && typeof rule.after === "number" && `no event for ${duration(rule.after)}`;
  const code = [rule.when, rule.of].find((each) => typeof each === "string") as string | undefined;
  const seen = told.evidence ?? told.features;
  const last = told.events?.at(-1);
  return [
    `${alert.trigger} of ${alert.entity} (${alert.severity}): ${says || silence || "its rule came true"}.`,
    code && `Its rule is \`${code.replace(/^\w+=(lambda[^:]*:\s*)?/, "")}\`${typeof rule.hold === "number" && rule.hold > 0 ? `, for ${duration(rule.hold)} on end` : ""}.`,
    seen !== undefined && seen !== null && `What was known then: ${inWords(seen)}.`,
    told.occurrence !== undefined && `What happened: ${inWords(told.occurrence)}.`,
    `It began on ${absolute(alert.started_at ?? alert.opened_at)} and was noticed ${duration((millis(alert.opened_at) - millis(alert.started_at ?? alert.opened_at)) / 1000)} later.`,
    last && `The last event before that was of ${absolute(last.at)}.`,
  ].filter((line): line is string => Boolean(line));
}

export function Story({ id, may, onClose }: { id: number; may: boolean; onClose: () => void }) {
  const [text, setText] = useState("");
  const found = useQuery({ queryKey: ["alerts", "story", id], queryFn: () => get<StoryData>(`/alerts/${id}`) });
  const note = useAction({ act: () => post(`/alerts/${id}/note`, { note: text.trim() }), then: () => setText("") });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    note.mutate();
  };
  return (
    <Dialog title={found.data ? `${found.data.alert.trigger} of ${found.data.alert.entity}` : "Alert"} onClose={onClose} wide>
      {found.error && <Trouble error={found.error} />}
      {found.isPending && <Loading />}
      {found.data && (
        <>
          <h3>Why it opened</h3>
          <Why lines={whyOpened(found.data.alert, found.data.explain ?? {})} />
          <details>
            <summary>All that was recorded then</summary>
            <JsonView value={found.data.explain} label="all that was recorded then" />
          </details>
          <h3>What happened since</h3>
          <ul className="why">
            {found.data.history.map((each, index) => (
              <li key={index}>
                <b>{each.action}</b> {each.who && `by ${each.who}`} <span className="faint"><Ago at={each.at} /></span> {each.detail && <span className="soft">{each.detail}</span>}
              </li>
            ))}
          </ul>
          {may && (
            <form className="row" onSubmit={submit}>
              <input className="field" value={text} onChange={(event) => setText(event.target.value)} aria-label="Note" placeholder="a note for those who look later" maxLength={2000} />
              <Button type="submit" busy={note.isPending} disabled={text.trim() === ""}>
                Note it
              </Button>
            </form>
          )}
        </>
      )}
    </Dialog>
  );
}
