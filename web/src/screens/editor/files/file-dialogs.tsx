/** Dialogs that rename or delete a file; both apply only to the version that the user has seen. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post, remove } from "../../../api/client";
import { useAction } from "../../../api/use-action";
import { Button } from "../../../components/button";
import { Dialog } from "../../../components/dialog";
import { ErrorMessage } from "../../../components/feedback";
import type { WorkFile } from "../types";
import { deleteDraft, moveDraft } from "./drafts";
import { cleanName, fileUrl, nameProblem } from "./paths";

export interface FileAct {
  verb: "rename" | "delete";
  path: string;
  /** The version that the user has seen; the current one if missing. */
  version?: string;
}

interface Props {
  act: FileAct;
  files: string[];
  /** Called with the new path; null after a deletion. */
  onDone: (path: string | null) => void;
  onClose: () => void;
}

export function FileActDialog({ act, files, onDone, onClose }: Props) {
  const { path } = act;
  const found = useQuery({ queryKey: ["workflow-file", path], queryFn: () => get<WorkFile>(fileUrl(path)), enabled: act.version === undefined });
  const version = act.version ?? found.data?.version;
  const seen = { "If-Match": `"${version}"` };
  if (found.error) {
    return (
      <Dialog title={path} onClose={onClose}>
        <ErrorMessage error={found.error} />
      </Dialog>
    );
  }
  return act.verb === "rename" ? <Rename path={path} seen={version ? seen : null} files={files} onDone={onDone} onClose={onClose} /> : <Delete path={path} seen={version ? seen : null} onDone={onDone} onClose={onClose} />;
}

type Seen = Record<string, string> | null;

function Rename({ path, seen, files, onDone, onClose }: { path: string; seen: Seen; files: string[]; onDone: Props["onDone"]; onClose: () => void }) {
  const ending = path.slice(path.lastIndexOf("."));
  const [name, setName] = useState(path);
  const clean = cleanName(name);
  const to = clean && !clean.endsWith(ending) ? clean + ending : clean;
  const problem = to === path ? null : nameProblem(to, files);
  const action = useAction({
    request: () => post("/workflow-files/rename", { path, to }, seen ?? {}),
    message: () => `Renamed ${path} to ${to}.`,
    onSuccess: () => {
      moveDraft(path, to);
      onClose();
      onDone(to);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate();
  };
  return (
    <Dialog title={`Rename ${path}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>New name</span>
          <input className="field mono" value={name} autoComplete="off" spellCheck={false} aria-invalid={problem !== null} autoFocus onChange={(event) => setName(event.target.value)} />
          {problem ? <small className="wrong">{problem}</small> : <small>{to && to !== path ? `Renames it to ${to}.` : `The extension ${ending} stays; use a slash for folders.`}</small>}
        </label>
        <p className="soft">Files and programs that use the old name will not find it.</p>
        {action.error && <ErrorMessage error={action.error} />}
        <footer className="actions">
          <Button onClick={onClose}>Close</Button>
          <Button kind="main" type="submit" busy={action.isPending} disabled={!to || to === path || problem !== null || seen === null}>
            Rename
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

function Delete({ path, seen, onDone, onClose }: { path: string; seen: Seen; onDone: Props["onDone"]; onClose: () => void }) {
  const action = useAction({
    request: () => remove(fileUrl(path), seen ?? {}),
    message: () => `Deleted ${path}.`,
    onSuccess: () => {
      deleteDraft(path);
      onClose();
      onDone(null);
    },
  });
  return (
    <Dialog title={`Delete ${path}?`} onClose={onClose}>
      <p>The file and its unsaved changes are deleted. The <b>audit log</b> keeps its text.</p>
      <p className="soft">What was built with it stays. Files and programs that use it will not find it.</p>
      {action.error && <ErrorMessage error={action.error} />}
      <footer>
        <Button onClick={onClose}>Close</Button>
        <Button kind="danger" busy={action.isPending} disabled={seen === null} onClick={() => action.mutate()}>
          Delete file
        </Button>
      </footer>
    </Dialog>
  );
}
