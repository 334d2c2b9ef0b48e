/** The story of an alert: why it opened, who did what since, and a note of one's own. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { JsonView } from "../parts/json";
import { Button, Dialog, Loading, Trouble } from "../parts/ui";
import { Ago } from "../times";
import type { Alert } from "./model";

interface StoryData {
  alert: Alert;
  explain: unknown;
  history: { at: string; action: string; who: string | null; detail: string | null }[];
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
          <JsonView value={found.data.explain} label="why it opened" />
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
