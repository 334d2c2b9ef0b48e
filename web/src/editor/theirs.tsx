/** Somebody else has changed the file meanwhile: what they did, and whose text goes on. Neither is lost. */
import { useState } from "react";
import { Button, Dialog } from "../parts/ui";
import { DiffView } from "./diffview";
import type { WorkFile } from "./types";

export function Theirs({ file, base, mine, onTake, onKeep }: { file: WorkFile; base: string | null; mine: string; onTake: () => void; onKeep: () => void }) {
  const [shown, setShown] = useState(false);
  const theirs = file.text.replaceAll("\r\n", "\n");
  return (
    <div className="note bad" role="alert">
      <span>
        <b>Somebody else has changed this file.</b> Your text is not saved, and not lost.
      </span>
      <Button onClick={() => setShown(true)}>See what they changed</Button>
      <Button onClick={onTake} title="Undo brings yours back">
        Take theirs
      </Button>
      <Button onClick={onKeep} title="Nothing is written before you save">
        Go on with mine
      </Button>
      {shown && (
        <Dialog title="What somebody else changed" wide onClose={() => setShown(false)}>
          {base !== null && <DiffView before={base} after={theirs} label="Their changes" />}
          <h3>From theirs to yours</h3>
          <DiffView before={theirs} after={mine} label="From theirs to yours" />
        </Dialog>
      )}
    </div>
  );
}
