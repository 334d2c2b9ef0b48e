/** Before anything is written: what will change, what would be lost, and whether it can work. */
import { useState } from "react";
import { Button, Dialog } from "../parts/ui";
import { lostComments } from "./doc";
import { DiffView } from "./diffview";
import type { Trouble } from "./types";

interface Props {
  path: string;
  /** What is in the file now; null for a new one. */
  before: string | null;
  after: string;
  problems: Trouble[];
  busy: boolean;
  onSave: (broken: boolean) => void;
  onClose: () => void;
}

export function Saving({ path, before, after, problems, busy, onSave, onClose }: Props) {
  const [anyway, setAnyway] = useState(false);
  const errors = problems.filter((each) => each.severity === "error");
  const lost = before === null ? [] : lostComments(before, after, path);
  return (
    <Dialog title={`Save ${path}`} wide onClose={onClose}>
      {errors.length > 0 && (
        <div className="trouble" role="alert">
          <b>{errors.length === 1 ? "One thing is wrong" : `${errors.length} things are wrong`}</b>
          {errors.slice(0, 4).map((each) => (
            <span key={each.where + each.message}>
              {each.where && <code>{each.where}</code>} {each.message}
            </span>
          ))}
        </div>
      )}
      {lost.length > 0 && (
        <div className="note wait" role="status">
          <b>{lost.length === 1 ? "A comment is no longer in the text" : `${lost.length} comments are no longer in the text`}</b>
          {lost.slice(0, 6).map((each, index) => (
            <code key={index}>{each}</code>
          ))}
        </div>
      )}
      <DiffView before={before ?? ""} after={after} label={`Changes to ${path}`} />
      <p className="soft">
        Pipelines that <code>tidemill pipeline run</code> keeps from this folder follow at once. An application that loads the file itself reads it when it is started.
      </p>
      <footer>
        {errors.length > 0 && (
          <label className="row">
            <input type="checkbox" checked={anyway} onChange={(event) => setAnyway(event.target.checked)} /> Save it although it cannot work
          </label>
        )}
        <Button onClick={onClose}>Go on editing</Button>
        <Button kind="main" busy={busy} disabled={errors.length > 0 && !anyway} onClick={() => onSave(errors.length > 0)}>
          Save
        </Button>
      </footer>
    </Dialog>
  );
}
