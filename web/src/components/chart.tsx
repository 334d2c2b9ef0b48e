/** A chart over time. */
import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useTheme } from "../app/theme";

interface Props {
  title: string;
  unit: string;
  most?: number;
  /** The first and last time that the chart shows, where that is more than the data. */
  span?: [number, number];
  /** How a value is written. */
  format?: (value: number) => string;
  times: number[];
  lines: { name: string; tone: string; values: (number | null)[] }[];
}

const HEIGHT = 170;
const clock = (at: number) => new Date(at * 1000).toLocaleTimeString("en-GB");
const minute = (at: number) => clock(at).slice(0, 5);
const day = (at: number) => new Date(at * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
const LONG = 2 * 86_400;

/** The plotted data, with gaps where no sample was taken for much longer than usual. */
function dataOf(times: number[], lines: Props["lines"]): uPlot.AlignedData {
  const pauses = times.slice(1).map((at, index) => at - (times[index] ?? at));
  const usual = pauses.toSorted((a, b) => a - b)[Math.floor(pauses.length / 2)] ?? 0;
  const broken = <T,>(values: T[], between: (index: number) => T): T[] => values.flatMap((value, index) => ((pauses[index] ?? 0) > 4 * usual ? [value, between(index)] : [value]));
  return [broken(times, (index) => (times[index] ?? 0) + usual), ...lines.map((line) => broken<number | null>(line.values, () => null))];
}

export default function Chart({ title, unit, most, span, format, times, lines }: Props) {
  const ref = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const theme = useTheme();
  const write = format ?? ((value: number) => `${value.toFixed(1)} ${unit}`);
  const isSparse = times.length < 3;
  const shape = `${isSparse} ${span ? Math.round(span[1] - span[0]) : ""} ${title} ${unit} ${most} ${theme} ${lines.map((line) => line.name).join()}`;

  useEffect(() => {
    const place = ref.current;
    if (!place) return;
    const colours = getComputedStyle(document.documentElement);
    const colour = (name: string) => colours.getPropertyValue(name).trim();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "11px system-ui" };
    const made = new uPlot(
      {
        width: Math.max(200, place.clientWidth - 12),
        height: HEIGHT,
        scales: { x: span ? { range: () => [span[0], span[1]] } : {}, y: { range: (_, __, high) => [0, most ?? Math.max(high * 1.1, format ? 0.001 : 0.1)] } },
        axes: [{ ...axis, space: 80, values: (_, at, __, ___, step) => at.map((at.at(-1) ?? 0) - (at[0] ?? 0) > LONG ? day : step < 60 ? clock : minute) }, { ...axis, size: format ? 56 : 50, ...(format ? { values: (_: uPlot, at: number[]) => at.map(format) } : {}) }],
        series: [
          { label: "at", value: (_, at: number | null) => (at === null ? "now" : `${Date.now() / 1000 - at > 86_400 ? `${day(at)}, ` : ""}${clock(at)}`) },
          ...lines.map((line, index) => ({
            label: line.name,
            stroke: colour(line.tone),
            width: 1.6,
            fill: index === 0 ? `${colour(line.tone)}22` : undefined,
            points: { show: isSparse, size: 7 },
            value: (drawn: uPlot, pointed: number | null, at: number) => {
              const value = pointed ?? drawn.data[at]?.at(-1) ?? null; // Without a cursor, the last value.
              return value === null ? "–" : write(value);
            },
          })),
        ],
        cursor: { y: false },
      },
      dataOf(times, lines),
      place,
    );
    plot.current = made;
    const watching = new ResizeObserver(() => made.setSize({ width: Math.max(200, place.clientWidth - 12), height: HEIGHT }));
    watching.observe(place);
    return () => {
      watching.disconnect();
      made.destroy();
      plot.current = null;
    };
    // Data changes are applied below; only a different set of lines needs a new plot.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [shape]);

  useEffect(() => {
    plot.current?.setData(dataOf(times, lines));
  }, [times, lines]);

  const now = lines.map((line) => `${line.name} ${typeof line.values.at(-1) === "number" ? write(line.values.at(-1) as number) : "unknown"}`).join(", ");
  return <div className="chart" ref={ref} role="img" aria-label={`${title} over time; now ${now}`} />;
}
