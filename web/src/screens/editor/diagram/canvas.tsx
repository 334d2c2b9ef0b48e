/** The diagram: boxes to drag, handles to connect, and problems marked on their boxes. */
import { applyNodeChanges, Background, BackgroundVariant, type Connection, Controls, type Edge as FlowEdge, Handle, MarkerType, type Node as FlowNode, type NodeProps, Position, ReactFlow, ReactFlowProvider, useReactFlow, useStoreApi } from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { type DragEvent, memo, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useTheme } from "../../../app/theme";
import "../../../components/graph/graph.css";
import type { NodeResult } from "../runs";
import type { FileProblem } from "../types";
import { type Box, BOX_WIDTH, type Diagram, type Line, type Point } from "./diagram";

export const DRAGGED = "application/x-tidemill-kind";

type BoxNode = FlowNode<{ box: Box; errors: FileProblem[]; warnings: FileProblem[]; result: NodeResult | null }, "box">;

const tone = (data: BoxNode["data"]) => (data.errors.length || typeof data.result?.error === "string" ? "bad" : data.warnings.length ? "wait" : data.box.isStart ? "run" : "ok");

const BoxView = memo(function BoxView({ data, selected }: NodeProps<BoxNode>) {
  const { box, errors, warnings } = data;
  const found = [...errors, ...warnings];
  return (
    <div className={`node ${tone(data)} ${selected ? "chosen" : ""}`}>
      {!box.isStart && <Handle type="target" position={Position.Left} />}
      <b title={box.label}>{box.label}</b>
      <span title={box.about}>
        {box.type}
        {box.about && ` · ${box.about}`}
      </span>
      {found.length > 0 && (
        <i className="flag" title={found.map((each) => each.message).join("\n")} data-problems={found.length}>
          {found.length}
        </i>
      )}
      {data.result && (
        <>
          <i className={data.result.error === null ? "items" : "items bad"} title={data.result.error ?? "Items of the run that is shown"}>
            {data.result.error === null ? data.result.outputs.length : "failed"}
          </i>
          <small className="result">{data.result.error === null && box.exits.length > 0 ? `true for ${data.result.outputs.filter(Boolean).length}` : shortText(data.result.error ?? data.result.outputs[0])}</small>
        </>
      )}
      {box.exits.length === 0 && <Handle type="source" position={Position.Right} />}
      {box.exits.map((exit, index) => (
        <Handle key={exit} id={exit} type="source" position={Position.Right} className={`exit exit-${index}`} title={exit} />
      ))}
    </div>
  );
});

const shortText = (value: unknown): string => (typeof value === "string" ? value : (JSON.stringify(value) ?? "")).slice(0, 60);

const KINDS = { box: BoxView };
const FIT = { padding: 0.05, minZoom: 0.55, maxZoom: 1.1 };
const DELETE = ["Backspace", "Delete"];

interface Props {
  diagram: Diagram;
  places: Map<string, Point>;
  problems: FileProblem[];
  /** What each node gave in the run that is shown, by name. */
  results: Record<string, NodeResult> | null;
  chosen: string | null;
  locked: boolean;
  onChoose: (id: string | null) => void;
  /** These are no longer selected: one that was chosen since then stays chosen. */
  onDeselect: (ids: string[]) => void;
  onMove: (moved: Map<string, Point>) => void;
  onConnect: (from: Box, to: Box, exit: string | null) => void;
  onDelete: (boxes: Box[], lines: Line[]) => void;
  onDrop: (kind: string, at: Point) => void;
  /** Changes whenever the whole diagram should be brought into view. */
  fit: number;
}

export default function Canvas(props: Props) {
  return (
    <ReactFlowProvider>
      <Inner {...props} />
    </ReactFlowProvider>
  );
}

function Inner({ diagram, places, problems, results, chosen, locked, onChoose, onDeselect, onMove, onConnect, onDelete, onDrop, fit }: Props) {
  const theme = useTheme();
  const flow = useReactFlow();
  const store = useStoreApi();
  const shown = useRef(chosen);
  shown.current = chosen;
  const drawn = useMemo<BoxNode[]>(
    () =>
      diagram.boxes.map((box) => {
        const own = problems.filter((each) => each.node === box.at);
        const errors = own.filter((each) => each.severity === "error");
        return {
          id: box.id,
          type: "box",
          position: places.get(box.id) ?? { x: 0, y: 0 },
          data: { box, errors, warnings: own.filter((each) => each.severity === "warning"), result: results?.[box.label] ?? null },
          selected: box.id === chosen,
          ariaLabel: `${box.label}, ${box.type}${errors.length ? `, ${errors.length} errors` : ""}`,
          width: BOX_WIDTH,
          height: 50,
        };
      }),
    [diagram, places, problems, results, chosen],
  );
  const [nodes, setNodes] = useState(drawn);
  useEffect(() => setNodes(drawn), [drawn]);
  useEffect(() => {
    const timer = window.setTimeout(async () => {
      await flow.fitView(FIT);
      const at = shown.current === null ? undefined : flow.getNode(shown.current)?.position;
      if (!at) return;
      // A large diagram is not shown as a whole: the selected box must be in view.
      const { x, y, zoom } = flow.getViewport();
      const { width, height } = store.getState();
      const [left, top] = [at.x * zoom + x, at.y * zoom + y];
      if (left < 0 || top < 0 || left + BOX_WIDTH * zoom > width || top + 50 * zoom > height) await flow.setCenter(at.x + BOX_WIDTH / 2, at.y + 25, { zoom });
    }, 30);
    return () => window.clearTimeout(timer);
  }, [fit, flow, store]);
  const byId = useMemo(() => new Map(diagram.boxes.map((box) => [box.id, box])), [diagram]);
  const lines = useMemo<FlowEdge[]>(
    () =>
      diagram.lines.map((line) => ({
        id: line.id,
        source: line.from,
        target: line.to,
        sourceHandle: line.exit,
        label: line.exit ?? undefined,
        className: line.implied ? "implied" : "",
        deletable: !line.implied,
        markerEnd: { type: MarkerType.ArrowClosed, width: 16, height: 16 },
        ariaLabel: `from ${byId.get(line.from)?.label} to ${byId.get(line.to)?.label}${line.exit ? `, if ${line.exit}` : ""}`,
      })),
    [diagram, byId],
  );
  const connect = useCallback(
    (made: Connection) => {
      const [from, to] = [byId.get(made.source), byId.get(made.target)];
      if (from && to) onConnect(from, to, made.sourceHandle ?? null);
    },
    [byId, onConnect],
  );
  const drop = (event: DragEvent) => {
    const kind = event.dataTransfer.getData(DRAGGED);
    if (!kind) return;
    event.preventDefault();
    const at = flow.screenToFlowPosition({ x: event.clientX, y: event.clientY });
    onDrop(kind, { x: Math.round(at.x - 92), y: Math.round(at.y - 25) });
  };
  return (
    <ReactFlow
      nodes={nodes}
      edges={lines}
      nodeTypes={KINDS}
      onNodesChange={(changes) => {
        setNodes((before) => applyNodeChanges(changes.filter((each) => each.type !== "remove"), before));
        // The end of a drag, or a move with the arrow keys.
        const moved = changes.flatMap((each) => (each.type === "position" && each.dragging === false && each.position ? [[each.id, { x: Math.round(each.position.x), y: Math.round(each.position.y) }] as const] : []));
        if (moved.length) onMove(new Map(moved));
        const picked = changes.filter((each) => each.type === "select");
        const on = picked.findLast((each) => each.selected);
        if (on) onChoose(on.id);
        else if (picked.length) onDeselect(picked.map((each) => each.id));
      }}
      onConnect={connect}
      onBeforeDelete={async (gone) => {
        const boxes = gone.nodes.flatMap((node) => byId.get(node.id) ?? []);
        const cut = diagram.lines.filter((line) => gone.edges.some((edge) => edge.id === line.id));
        onDelete(boxes, boxes.length ? [] : cut);
        return false;
      }}
      onDragOver={(event) => {
        event.preventDefault();
        event.dataTransfer.dropEffect = "copy";
      }}
      onDrop={drop}
      deleteKeyCode={locked ? null : DELETE}
      nodesDraggable={!locked}
      nodesConnectable={!locked}
      fitView
      fitViewOptions={FIT}
      minZoom={0.1}
      maxZoom={2}
      snapToGrid
      snapGrid={[6, 6]}
      connectionRadius={30}
      colorMode={theme}
      onlyRenderVisibleElements={diagram.boxes.length > 150}
      proOptions={{ hideAttribution: false }}
      aria-label="Diagram of the workflow"
    >
      <Background variant={BackgroundVariant.Dots} gap={22} size={1} />
      <Controls showInteractive={false} orientation="horizontal" />
    </ReactFlow>
  );
}
