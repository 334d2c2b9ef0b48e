/** The history of an alert: why it opened, what happened since, and a form for notes. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../../api/client";
import type { Schemas } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { Explanation } from "../../components/details/explanation";
import { JsonView } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { LoadStatus } from "../../components/feedback";
import { Ago } from "../../components/times";

type AlertDetails = Schemas["AlertDetails"];

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
          <Explanation lines={found.data.why} />
          <details>
            <summary>Recorded data</summary>
            <JsonView value={found.data.record} label="recorded data" />
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
