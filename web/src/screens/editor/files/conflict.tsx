/** Shown when the file was changed on the server while it is being edited here. */
import { useState } from "react";
import { Button } from "../../../components/button";
import { Dialog } from "../../../components/dialog";
import { DiffView } from "../text/diff-view";
import type { WorkFile } from "../types";

export function Conflict({ file, base, mine, onTake, onKeep }: { file: WorkFile; base: string | null; mine: string; onTake: () => void; onKeep: () => void }) {
  const [shown, setShown] = useState(false);
  const serverText = file.text.replaceAll("\r\n", "\n");
  return (
    <div className="note bad" role="alert">
      <span>
        <b>This file was changed on the server.</b> Your changes are not saved yet, and are not lost.
      </span>
      <Button onClick={() => setShown(true)}>Compare</Button>
      <Button onClick={onTake} title="Undo restores your text">
        Use the server's version
      </Button>
      <Button onClick={onKeep} title="Nothing is written until you save">
        Keep my version
      </Button>
      {shown && (
        <Dialog title="Changes on the server" wide onClose={() => setShown(false)}>
          {base !== null && <DiffView before={base} after={serverText} label="Changes on the server" />}
          <h3>Your version compared with the server's</h3>
          <DiffView before={serverText} after={mine} label="Your version compared with the server's" />
        </Dialog>
      )}
    </div>
  );
}
