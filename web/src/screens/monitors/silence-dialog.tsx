/** Silences an alert for a chosen time: it stays open, and no notifications are sent for it. */
import { type FormEvent, useState } from "react";
import { post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { ErrorMessage } from "../../components/feedback";
import { type Alert, monitorApi } from "./types";

const LENGTHS = [
  { value: "1h", label: "1 hour" },
  { value: "4h", label: "4 hours" },
  { value: "1d", label: "1 day" },
  { value: "7d", label: "7 days" },
];

export function SilenceDialog({ alert, onClose }: { alert: Alert; onClose: () => void }) {
  const [lasts, setLasts] = useState("1h");
  const [own, setOwn] = useState("");
  const [comment, setComment] = useState("");
  const isOwn = lasts === "own";
  const length = isOwn ? own.trim() : lasts;
  const silence = useAction({
    request: () => post(`${monitorApi(alert.monitor)}/silences`, { matchers: { trigger: alert.trigger, entity: alert.entity }, lasts: length, comment: comment.trim() || "from the console" }),
    message: () => `Silenced ${alert.trigger} of ${alert.entity} for ${LENGTHS.find((each) => each.value === length)?.label ?? length}.`,
    onSuccess: onClose,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    silence.mutate();
  };
  return (
    <Dialog title={`Silence ${alert.trigger} of ${alert.entity}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <fieldset className="choices">
          <legend>For how long</legend>
          {[...LENGTHS, { value: "own", label: "another time" }].map((each) => (
            <label key={each.value} className="check">
              <input type="radio" name="lasts" checked={lasts === each.value} onChange={() => setLasts(each.value)} />
              <span>{each.label}</span>
            </label>
          ))}
        </fieldset>
        {isOwn && (
          <label>
            <span>Time</span>
            <input className="field" value={own} onChange={(event) => setOwn(event.target.value)} placeholder="90m, 36h, 2w" autoFocus />
          </label>
        )}
        <label>
          <span>Comment</span>
          <input className="field" value={comment} onChange={(event) => setComment(event.target.value)} placeholder="why, for others who see it" />
        </label>
        {silence.error && <ErrorMessage error={silence.error} />}
        <Button kind="main" type="submit" busy={silence.isPending} disabled={length === ""}>
          Silence
        </Button>
      </form>
    </Dialog>
  );
}
