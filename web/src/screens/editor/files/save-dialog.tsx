/** Shown before saving: the changes, lost comments and errors. */
import { useState } from "react";
import { Button } from "../../../components/button";
import { Dialog } from "../../../components/dialog";
import { DiffView } from "../text/diff-view";
import { lostComments } from "../text/document";
import type { FileProblem } from "../types";

interface Props {
  path: string;
  /** The saved text; null for a new file. */
  before: string | null;
  after: string;
  problems: FileProblem[];
  busy: boolean;
  onSave: (broken: boolean) => void;
  onClose: () => void;
}

export function SaveDialog({ path, before, after, problems, busy, onSave, onClose }: Props) {
  const [anyway, setAnyway] = useState(false);
  const errors = problems.filter((each) => each.severity === "error");
  const lost = before === null ? [] : lostComments(before, after, path);
  return (
    <Dialog title={`Save ${path}`} wide onClose={onClose}>
      {errors.length > 0 && (
        <div className="trouble" role="alert">
          <b>{errors.length === 1 ? "The file has an error" : `The file has ${errors.length} errors`}</b>
          {errors.slice(0, 4).map((each) => (
            <span key={each.where + each.message}>
              {each.where && <code>{each.where}</code>} {each.message}
            </span>
          ))}
        </div>
      )}
      {lost.length > 0 && (
        <div className="note wait" role="status">
          <b>{lost.length === 1 ? "A comment will be lost" : `${lost.length} comments will be lost`}</b>
          {lost.slice(0, 6).map((each, index) => (
            <code key={index}>{each}</code>
          ))}
        </div>
      )}
      <DiffView before={before ?? ""} after={after} label={`Changes to ${path}`} />
      <p className="soft">
        Pipelines that <code>tidemill pipeline run</code> loads from this folder change at once. An application that loads the file itself reads it at its next start.
      </p>
      <footer>
        {errors.length > 0 && (
          <label className="row">
            <input type="checkbox" checked={anyway} onChange={(event) => setAnyway(event.target.checked)} /> Save with errors
          </label>
        )}
        <Button onClick={onClose}>Continue editing</Button>
        <Button kind="main" busy={busy} disabled={errors.length > 0 && !anyway} onClick={() => onSave(errors.length > 0)}>
          Save
        </Button>
      </footer>
    </Dialog>
  );
}
