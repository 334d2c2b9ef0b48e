/** A graph whose nodes are coloured by state. A lazily loaded module because of its size. */
import { Background, BackgroundVariant, Controls, type Edge as FlowEdge, Handle, type Node as FlowNode, type NodeProps, Position, ReactFlow, useReactFlow, useStore } from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { memo, useCallback, useEffect, useMemo, useRef } from "react";
import { go } from "../../app/router";
import { useTheme } from "../../app/theme";
import { labelOf, toneOf } from "../states";
import type { Edge } from "./dag-edges";
import "./graph.css";
import { layoutGraph } from "./layout";

export type Box = {
  name: string;
  /** Shown instead of the name. */
  label?: string;
  /** The page that a click opens; without one, a click chooses the box. */
  to?: string;
  state: string;
  /** The second line, after the state: task, queue or progress. */
  about: string;
};

type BoxNode = FlowNode<Box & { chosen: boolean }, "box">;

const BoxView = memo(function BoxView({ data }: NodeProps<BoxNode>) {
  return (
    <div className={`node ${toneOf(data.state)} ${data.chosen ? "chosen" : ""} ${data.to ? "away" : ""}`}>
      <Handle type="target" position={Position.Left} isConnectable={false} />
      <b title={data.label ?? data.name}>{data.label ?? data.name}</b>
      <span title={data.about}>
        {labelOf(data.state)}
        {data.about && ` · ${data.about}`}
      </span>
      <Handle type="source" position={Position.Right} isConnectable={false} />
    </div>
  );
});

const KINDS = { box: BoxView };
const WIDE = 168;
/** Below this zoom text is unreadable, so a box shows only its colour. */
const FAR = 0.38;
const FIT = { padding: 0.05, maxZoom: 1.1 };

/** Fits the graph again when the width changes, such as when a phone is rotated. */
function Refit() {
  const width = useStore((store) => store.width);
  const before = useRef(width);
  const { fitView } = useReactFlow();
  useEffect(() => {
    if (before.current && width && before.current !== width) void fitView(FIT);
    before.current = width;
  }, [width, fitView]);
  return null;
}

interface Props {
  label: string;
  boxes: Box[];
  edges: Edge[];
  chosen: string | null;
  onChoose: (name: string) => void;
  onFar: (isFar: boolean) => void;
}

export default function Graph({ label, boxes, edges, chosen, onChoose, onFar }: Props) {
  const theme = useTheme();
  const shape = boxes.map((box) => box.name).join("\n") + edges.map((edge) => `${edge.from} ${edge.to}`).join("\n");
  // eslint-disable-next-line react-hooks/exhaustive-deps
  const places = useMemo(() => layoutGraph(boxes.map((box) => box.name), edges, WIDE), [shape]);
  const nodes = useMemo<BoxNode[]>(
    () =>
      boxes.map((box) => ({
        id: box.name,
        type: "box",
        position: places.get(box.name) ?? { x: 0, y: 0 },
        data: { ...box, chosen: box.name === chosen },
        draggable: false,
        connectable: false,
        ariaLabel: `${box.label ?? box.name}, ${box.state}`,
        width: WIDE,
        height: 46,
      })),
    [boxes, places, chosen],
  );
  const states = useMemo(() => new Map(boxes.map((box) => [box.name, box.state])), [boxes]);
  const lines = useMemo<FlowEdge[]>(
    () =>
      edges.map((edge) => ({
        id: `${edge.from} → ${edge.to}`,
        source: edge.from,
        target: edge.to,
        className: `edge ${toneOf(states.get(edge.from) ?? "")}`,
        animated: boxes.length < 150 && states.get(edge.to) === "running",
        focusable: false,
      })),
    [edges, states, boxes.length],
  );
  const choose = useCallback(
    (name: string) => {
      const to = boxes.find((box) => box.name === name)?.to;
      if (to) go(to);
      else onChoose(name);
    },
    [boxes, onChoose],
  );
  return (
    <ReactFlow
      key={shape.length}
      nodes={nodes}
      edges={lines}
      nodeTypes={KINDS}
      onNodeClick={(_, node) => choose(node.id)}
      onNodesChange={(changes) => {
        for (const change of changes) if (change.type === "select" && change.selected) choose(change.id);
      }}
      onViewportChange={({ zoom }) => onFar(zoom < FAR)}
      onInit={({ getZoom }) => window.setTimeout(() => onFar(getZoom() < FAR), 60)}
      fitView
      fitViewOptions={FIT}
      minZoom={0.05}
      maxZoom={2}
      colorMode={theme}
      nodesDraggable={false}
      nodesConnectable={false}
      edgesFocusable={false}
      onlyRenderVisibleElements={boxes.length > 150}
      proOptions={{ hideAttribution: false }}
      aria-label={label}
    >
      <Background variant={BackgroundVariant.Dots} gap={22} size={1} />
      <Controls showInteractive={false} orientation="horizontal" />
      <Refit />
    </ReactFlow>
  );
}
