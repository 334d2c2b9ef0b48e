import type { Host } from "../../api/types";
import { Link } from "../../app/router";
import { bytes } from "../format";
import { Meter } from "../layout";

/** The current CPU, memory and GPU usage of a host, as bars. */
export function HostUsage({ host }: { host: Host }) {
  const sample = host.sample;
  const tone = (part: number) => (part > 0.9 ? "bad" : part > 0.75 ? "wait" : "run");
  const cpu = sample.cpu / Math.max(1, sample.cores);
  const memory = sample.memory / Math.max(1, sample.memory_total);
  return (
    <li>
      <Link to={`/workers/${encodeURIComponent(host.name)}`}>{host.name}</Link>
      <span className="use">
        CPU <Meter value={cpu} tone={tone(cpu)} label={`CPU of ${host.name}`} /> <span className="right">{sample.cpu.toFixed(1)} <span className="faint">of {sample.cores} cores</span></span>
      </span>
      <span className="use">
        RAM <Meter value={memory} tone={tone(memory)} label={`Memory of ${host.name}`} /> <span className="right">{bytes(sample.memory)} <span className="faint">of {bytes(sample.memory_total)}</span></span>
      </span>
      {(sample.gpus ?? []).map((gpu, index) => (
        <span className="use" key={gpu.index ?? index}>
          GPU {gpu.index ?? index} <Meter value={gpu.busy ?? 0} tone={tone(gpu.busy ?? 0)} label={`GPU ${index} of ${host.name}`} />
          <span className="right">{gpu.memory ? bytes(gpu.memory) : ""}</span>
        </span>
      ))}
    </li>
  );
}
