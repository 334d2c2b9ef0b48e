/** The kinds of nodes that may be put into the file: drag one into the picture, or press it. */
import { useState } from "react";
import { DRAGGED } from "./canvas";
import type { Kind } from "./types";

const TITLES: Record<string, string> = { starts: "Starts", states: "States", work: "Work", own: "Your own", stages: "Stages", nodes: "Nodes" };

export function NodePalette({ kinds, locked, onAdd }: { kinds: Kind[]; locked: boolean; onAdd: (kind: Kind) => void }) {
  const [wanted, setWanted] = useState("");
  const shown = kinds.filter((kind) => `${kind.type} ${kind.about}`.toLowerCase().includes(wanted.toLowerCase()));
  const groups = [...new Set(shown.map((kind) => kind.group))];
  return (
    <section className="panel node-palette" aria-label="Kinds of nodes">
      {kinds.length > 8 && <input className="field" type="search" placeholder="Find a kind" aria-label="Find a kind of nodes" value={wanted} onChange={(event) => setWanted(event.target.value)} />}
      <div className="kinds" tabIndex={0} role="group" aria-label="Kinds">
        {groups.map((group) => (
          <div key={group}>
            <h3>{TITLES[group] ?? group}</h3>
            {shown
              .filter((kind) => kind.group === group)
              .map((kind) => (
                <button
                  key={kind.type}
                  type="button"
                  className={`kind ${kind.is_start ? "run" : "ok"}`}
                  title={kind.about}
                  disabled={locked}
                  draggable={!locked}
                  onDragStart={(event) => {
                    event.dataTransfer.setData(DRAGGED, kind.type);
                    event.dataTransfer.effectAllowed = "copy";
                  }}
                  onClick={() => onAdd(kind)}
                >
                  {kind.type}
                </button>
              ))}
          </div>
        ))}
        {shown.length === 0 && <p className="faint">There is no such kind.</p>}
      </div>
    </section>
  );
}
