/** A file gets another name, or goes: asked for first, and done only to the text that was seen. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post, remove } from "../api";
import { useAction } from "../parts/acting";
import { Button, Dialog, Trouble } from "../parts/ui";
import { forget, move } from "./drafts";
import { cleaned, fileUrl, wrongName } from "./paths";
import type { WorkFile } from "./types";

export interface FileAct {
  verb: "rename" | "delete";
  path: string;
  /** The version that was seen; without one, that of now. */
  version?: string;
}

interface Props {
  act: FileAct;
  files: string[];
  /** The name that it has now; null if it is gone. */
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
        <Trouble error={found.error} />
      </Dialog>
    );
  }
  return act.verb === "rename" ? <Rename path={path} seen={version ? seen : null} files={files} onDone={onDone} onClose={onClose} /> : <Delete path={path} seen={version ? seen : null} onDone={onDone} onClose={onClose} />;
}

type Seen = Record<string, string> | null;

function Rename({ path, seen, files, onDone, onClose }: { path: string; seen: Seen; files: string[]; onDone: Props["onDone"]; onClose: () => void }) {
  const ending = path.slice(path.lastIndexOf("."));
  const [name, setName] = useState(path);
  const clean = cleaned(name);
  const to = clean && !clean.endsWith(ending) ? clean + ending : clean;
  const wrong = to === path ? null : wrongName(to, files);
  const doing = useAction({
    act: () => post("/workflow-files/rename", { path, to }, seen ?? {}),
    told: () => `${path} is ${to} now.`,
    then: () => {
      move(path, to);
      onClose();
      onDone(to);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    doing.mutate();
  };
  return (
    <Dialog title={`Rename ${path}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>New name</span>
          <input className="field mono" value={name} autoComplete="off" spellCheck={false} aria-invalid={wrong !== null} autoFocus onChange={(event) => setName(event.target.value)} />
          {wrong ? <small className="wrong">{wrong}</small> : <small>{to && to !== path ? `It will be ${to}.` : `It keeps its ending, ${ending}; folders with a slash.`}</small>}
        </label>
        <p className="soft">Files and programs that load it by its old name do not find it any more.</p>
        {doing.error && <Trouble error={doing.error} />}
        <footer className="actions">
          <Button onClick={onClose}>Leave it</Button>
          <Button kind="main" type="submit" busy={doing.isPending} disabled={!to || to === path || wrong !== null || seen === null}>
            Rename
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

function Delete({ path, seen, onDone, onClose }: { path: string; seen: Seen; onDone: Props["onDone"]; onClose: () => void }) {
  const doing = useAction({
    act: () => remove(fileUrl(path), seen ?? {}),
    told: () => `${path} is deleted.`,
    then: () => {
      forget(path);
      onClose();
      onDone(null);
    },
  });
  return (
    <Dialog title={`Delete ${path}?`} onClose={onClose}>
      <p>The file goes from the folder, with what of it was not saved. The <b>audit trail</b> keeps its text.</p>
      <p className="soft">What was made with it stays. Files and programs that load it do not find it any more.</p>
      {doing.error && <Trouble error={doing.error} />}
      <footer>
        <Button onClick={onClose}>Keep it</Button>
        <Button kind="danger" busy={doing.isPending} disabled={seen === null} onClick={() => doing.mutate()}>
          Delete the file
        </Button>
      </footer>
    </Dialog>
  );
}
