/** The node types that can be added: drag one into the diagram, or click it. */
import { useState } from "react";
import type { Kind } from "../types";
import { DRAGGED } from "./canvas";

const TITLES: Record<string, string> = { starts: "Starts", states: "States", work: "Work", own: "Application", stages: "Stages", nodes: "Nodes" };

const ORDER = Object.keys(TITLES);

export function NodePalette({ kinds, locked, onAdd }: { kinds: Kind[]; locked: boolean; onAdd: (kind: Kind) => void }) {
  const [wanted, setWanted] = useState("");
  const shown = kinds.filter((kind) => `${kind.type} ${kind.about}`.toLowerCase().includes(wanted.toLowerCase()));
  const groups = ORDER.filter((group) => shown.some((kind) => kind.group === group));
  return (
    <section className="panel node-palette" aria-label="Node types">
      {kinds.length > 8 && <input className="field" type="search" placeholder="Search types" aria-label="Search node types" value={wanted} onChange={(event) => setWanted(event.target.value)} />}
      <div className="kinds" tabIndex={0} role="group" aria-label="Types">
        {groups.map((group) => (
          <div key={group}>
            <h3>{TITLES[group]}</h3>
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
        {shown.length === 0 && <p className="faint">No matching type.</p>}
      </div>
    </section>
  );
}
