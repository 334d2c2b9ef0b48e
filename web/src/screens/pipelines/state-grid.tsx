/** The grid of states: a row for each entity, a column for each stage. Arrow keys move between cells. */
import { type KeyboardEvent, memo, useRef } from "react";
import { aboutOf, labelOf, PIPELINE_STATES, signOf, toneOf } from "../../components/states";
import { type Grid, NO_VARIABLES } from "./types";

/** States that the legend hides while there are none. */
const RARE_STATES = ["paused", "needs_approval", "orphan"];

interface Props {
  grid: Grid;
  chosen: { stage: string; entity: string } | null;
  onChoose: (stage: string, entity: string) => void;
}

export function StateGrid({ grid, chosen, onChoose }: Props) {
  const table = useRef<HTMLTableElement>(null);
  const at = chosen && grid.stages.includes(chosen.stage) && grid.items.some((row) => row.entity === chosen.entity) ? chosen : null;
  // Only one cell takes part in the Tab order: the selected one, or the first.
  const first = grid.items.find((row) => row.cells.some((cell) => cell !== null));
  const stop = at ?? (first ? { entity: first.entity, stage: grid.stages[first.cells.findIndex((cell) => cell !== null)] ?? "" } : null);

  const move = (event: KeyboardEvent) => {
    const cell = (event.target as HTMLElement).closest<HTMLElement>("[data-row]");
    if (!cell || !table.current || event.metaKey || event.ctrlKey || event.altKey) return;
    const [row, column] = [Number(cell.dataset.row), Number(cell.dataset.column)];
    const steps: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -grid.stages.length], End: [0, grid.stages.length] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    let next = cell;
    for (let distance = 1; distance <= Math.max(grid.items.length, grid.stages.length); distance += 1) {
      const found = table.current.querySelector<HTMLElement>(`[data-row="${row + Math.sign(step[0]) * distance}"][data-column="${column + Math.sign(step[1]) * distance}"]`);
      if (found) next = found;
      if (found && Math.abs(step[1]) <= 1) break;
    }
    next.focus();
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  };

  return (
    <table className="states" ref={table} onKeyDown={move} aria-label="States: entities by stages">
      <thead>
        <tr>
          <th scope="col">{grid.by === NO_VARIABLES ? "entity" : grid.by}</th>
          {grid.stages.map((stage) => (
            <th scope="col" key={stage} className="stage-name">
              {stage}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {grid.items.map((row, index) => (
          <Row key={row.entity} row={index} entity={row.entity} cells={row.cells.join(" ")} stages={grid.stages.join("\n")} chosen={at?.entity === row.entity ? at.stage : null} stop={stop?.entity === row.entity ? stop.stage : null} onChoose={onChoose} />
        ))}
      </tbody>
    </table>
  );
}

interface RowProps {
  row: number;
  entity: string;
  cells: string;
  stages: string;
  chosen: string | null;
  stop: string | null;
  onChoose: (stage: string, entity: string) => void;
}

const Row = memo(function Row({ row, entity, cells, stages, chosen, stop, onChoose }: RowProps) {
  const names = stages.split("\n");
  return (
    <tr>
      <th scope="row" title={entity}>
        {entity || <span className="faint">single</span>}
      </th>
      {cells.split(" ").map((state, column) => {
        const stage = names[column] ?? "";
        if (!state) return <td key={stage} />;
        return (
          <td key={stage}>
            <button
              type="button"
              className={`cell ${toneOf(state)} ${state}`}
              data-row={row}
              data-column={column}
              tabIndex={stop === stage ? 0 : -1}
              aria-pressed={chosen === stage}
              aria-label={`${stage} of ${entity || "all"}: ${labelOf(state)}`}
              title={[`${stage}: ${labelOf(state)}`, aboutOf(state)].filter(Boolean).join(", ")}
              onClick={() => onChoose(stage, entity)}
            >
              <span aria-hidden="true">{signOf(state)}</span>
            </button>
          </td>
        );
      })}
    </tr>
  );
});

/** The legend of the grid; each entry is also a filter. */
export function Legend({ counts, value, onChange }: { counts: Record<string, number>; value: string[]; onChange: (value: string[]) => void }) {
  return (
    <div className="legend-states" role="group" aria-label="State">
      {PIPELINE_STATES.map((state) => {
        const number = counts[state] ?? 0;
        const on = value.includes(state);
        if (number === 0 && !on && RARE_STATES.includes(state)) return null;
        return (
          <button key={state} type="button" className="chip legend-chip" aria-pressed={on} title={aboutOf(state)} onClick={() => onChange(on ? value.filter((each) => each !== state) : [...value, state])}>
            <span className={`cell small ${toneOf(state)} ${state}`} aria-hidden="true">
              {signOf(state)}
            </span>
            {labelOf(state)} <b>{number.toLocaleString("en-GB")}</b>
          </button>
        );
      })}
    </div>
  );
}
