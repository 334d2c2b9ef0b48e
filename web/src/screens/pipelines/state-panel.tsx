/** One state: its explanation, content, lineage, builds and code. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { get, post } from "../../api/client";
import type { List } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Link } from "../../app/router";
import { Button } from "../../components/button";
import { Explanation } from "../../components/details/explanation";
import { Empty, LoadStatus } from "../../components/feedback";
import { bytes, plural } from "../../components/format";
import { Fact, Panel } from "../../components/layout";
import { State, Tag } from "../../components/state";
import { FAILED_PIPELINE_STATES, labelOf } from "../../components/states";
import { Ago, duration } from "../../components/times";
import { StateLink } from "./state-counts";
import { RebuildDialog } from "./state-dialogs";
import { type Build, type Content, type EarlierContent, type Effect, pipelineApi, type StateDetails } from "./types";

interface Props {
  pipeline: string;
  stage: string;
  entity: string;
  may: boolean;
  onClose: () => void;
}

export function StatePanel({ pipeline, stage, entity, may, onClose }: Props) {
  const found = useQuery({ queryKey: ["pipelines", pipeline, "state", stage, entity], queryFn: () => get<StateDetails>(`${pipelineApi(pipeline)}/state`, { stage, entity }), placeholderData: keepPreviousData, refetchInterval: 15_000 });
  const [rebuilding, setRebuilding] = useState(false);
  const top = useRef<HTMLElement>(null);
  const wanted = { stage, entities: [entity] };
  const retry = useAction<void, Effect>({ request: () => post<Effect>(`${pipelineApi(pipeline)}/retry`, wanted), message: () => `Retrying ${stage}${entity ? ` / ${entity}` : ""}.` });
  useEffect(() => {
    if (window.innerWidth < 1100) top.current?.scrollIntoView({ block: "start" });
  }, [stage, entity]);
  const details = found.data;
  const canRetry = details?.failure && FAILED_PIPELINE_STATES.includes(details.state);
  return (
    <aside className="state-panel" ref={top} aria-label={entity ? `${stage} of ${entity}` : stage}>
      <Panel
        title={entity ? `${stage} / ${entity}` : stage}
        aside={
          <span className="row">
            {details && <State state={details.state} />}
            <Button kind="quiet" aria-label="Close state" onClick={onClose}>
              ✕
            </Button>
          </span>
        }
      >
        <LoadStatus query={found} lines={6} />
        {details && (
          <>
            <div className="pad stack-small">
              <Explanation lines={details.why} />
              {details.failure && <Failed failure={details.failure} />}
            </div>
            {may && details.state !== "orphan" && (
              <div className="card-foot">
                <span className="row">
                  {canRetry && (
                    <Button kind="main" className="small" busy={retry.isPending} onClick={() => retry.mutate()}>
                      Retry now
                    </Button>
                  )}
                  <Button className="small" disabled={details.built_at === null} title={details.built_at === null ? "Not built yet" : undefined} onClick={() => setRebuilding(true)}>
                    Rebuild …
                  </Button>
                </span>
                <span>
                  checked <Ago at={details.looked_at} />
                </span>
              </div>
            )}
          </>
        )}
      </Panel>
      {details && (
        <>
          <Contents key={details.outputs[0]?.path} pipeline={pipeline} details={details} />
          <Lineage pipeline={pipeline} details={details} />
          <Panel title="Builds" aside={<span className="faint">{details.builds.length >= 20 ? "the last 20" : plural(details.builds.length, "build")}</span>}>
            {details.builds.length === 0 ? <Empty title="Not built yet" /> : <ul className="builds">{details.builds.map((build, index) => <BuildLine key={build.at + index} build={build} />)}</ul>}
          </Panel>
          <CodePanel details={details} />
        </>
      )}
      {rebuilding && <RebuildDialog pipeline={pipeline} wanted={wanted} what={<b>{entity ? `${stage} / ${entity}` : stage}</b>} onClose={() => setRebuilding(false)} />}
    </aside>
  );
}

function Failed({ failure }: { failure: NonNullable<StateDetails["failure"]> }) {
  return (
    <details className="failed" open>
      <summary>
        Failed {plural(failure.attempts, "time")}, last time <Ago at={failure.failed_at} />
        {failure.retry_at ? (
          <>
            ; next retry <Ago at={failure.retry_at} />
          </>
        ) : (
          "; no automatic retry"
        )}
      </summary>
      <pre tabIndex={0} aria-label="Error">{failure.log || failure.error}</pre>
    </details>
  );
}

/** The content of the state, or of one of its inputs. */
function Contents({ pipeline, details }: { pipeline: string; details: StateDetails }) {
  const files = [...details.outputs.map((each) => ({ ...each, what: "output" })), ...details.inputs.map((each) => ({ path: each.path, size: each.size, what: "input" }))].filter((each) => each.size !== null);
  const [chosen, setChosen] = useState<string | null>(null);
  const path = files.some((each) => each.path === chosen) ? chosen : (files[0]?.path ?? null);
  return (
    <Panel title="Content">
      {path === null ? (
        <Empty title="No content yet">It appears here after the first build.</Empty>
      ) : (
        <>
          {files.length > 1 && (
            <div className="pad">
              <select className="field wide-field" aria-label="File" value={path} onChange={(event) => setChosen(event.target.value)}>
                {files.map((each) => (
                  <option key={each.path} value={each.path}>
                    {each.what}: {each.path}
                  </option>
                ))}
              </select>
            </div>
          )}
          <FileView pipeline={pipeline} path={path} version={details.version} />
          {details.outputs.some((each) => each.path === path) && <Earlier pipeline={pipeline} path={path} version={details.version} />}
        </>
      )}
    </Panel>
  );
}

function FileView({ pipeline, path, version }: { pipeline: string; path: string; version: number }) {
  const found = useQuery({ queryKey: ["pipelines", pipeline, "content", path, version], queryFn: () => get<Content>(`${pipelineApi(pipeline)}/content`, { path }), retry: false });
  if (!found.data) return <LoadStatus query={found} lines={3} />;
  const { kind, text, data, media_type, size, truncated } = found.data;
  return (
    <div className="content">
      {kind === "text" && <pre tabIndex={0} aria-label={`Content of ${path}`}>{text}</pre>}
      {kind === "picture" && <img src={`data:${media_type};base64,${data}`} alt={`Content of ${path}`} />}
      <p className="faint">
        <code>{path}</code>, {bytes(size)}
        {truncated && kind === "text" && "; only the beginning is shown"}
        {kind === "bytes" && (truncated ? "; too large to show" : "; binary, not shown")}
      </p>
    </div>
  );
}

/** What a small output held before its last builds, and what each of them changed. */
function Earlier({ pipeline, path, version }: { pipeline: string; path: string; version: number }) {
  const found = useQuery({ queryKey: ["pipelines", pipeline, "earlier", path, version], queryFn: () => get<List<EarlierContent>>(`${pipelineApi(pipeline)}/content/earlier`, { path }), retry: false });
  if (!found.data?.items.length) return null;
  return (
    <ul className="builds earlier" aria-label="Earlier contents">
      {found.data.items.map((each, index) => (
        <li key={each.replaced_at + each.hash}>
          <details open={index === 0}>
            <summary>
              Changed <Ago at={each.replaced_at} /> <span className="faint">from {bytes(each.size)}</span>
            </summary>
            {each.text === null ? (
              <p className="faint">It was not text.</p>
            ) : (
              <>
                <pre className="difference" tabIndex={0} aria-label={index === 0 ? "Difference to the build before" : "Difference to the build before that"}>
                  {each.changes.map((line, at) => (
                    <span key={at} className={line.startsWith("+") ? "ok" : line.startsWith("-") ? "bad" : "faint"}>
                      {line}
                      {"\n"}
                    </span>
                  ))}
                </pre>
                <details>
                  <summary>All of it</summary>
                  <pre tabIndex={0} aria-label="Earlier content">{each.text}</pre>
                </details>
              </>
            )}
          </details>
        </li>
      ))}
    </ul>
  );
}

function Lineage({ pipeline, details }: { pipeline: string; details: StateDetails }) {
  return (
    <Panel title="Lineage">
      <div className="pad stack-small">
        <h3>Inputs</h3>
        {details.inputs.length === 0 && <p className="faint">None of its inputs exist.</p>}
        <ul className="lineage">
          {details.inputs.map((each) => (
            <li key={each.path}>
              <code>{each.path}</code> {each.content === null ? <Tag tone="bad">missing</Tag> : each.changed && <Tag tone="wait">changed</Tag>}
              {each.made_by && (
                <>
                  {" "}
                  built by <StateLink pipeline={pipeline} state={each.made_by} />
                </>
              )}
            </li>
          ))}
        </ul>
        <h3>Used by</h3>
        {details.takers === 0 && <p className="faint">No other state uses it.</p>}
        <ul className="lineage">
          {details.taken_by.map((each) => (
            <li key={`${each.stage}/${each.entity}`}>
              <StateLink pipeline={pipeline} state={each} />
            </li>
          ))}
          {details.takers > details.taken_by.length && <li className="faint">and {details.takers - details.taken_by.length} more</li>}
        </ul>
      </div>
    </Panel>
  );
}

const OUTCOMES: Record<string, string> = { built: "ok", same: "ok", failed: "bad", adopted: "off", finished: "ok" };

function BuildLine({ build }: { build: Build }) {
  return (
    <li>
      <details>
        <summary>
          <Tag tone={OUTCOMES[build.outcome]}>{build.outcome === "same" ? "unchanged" : build.outcome}</Tag> <Ago at={build.at} />
          {build.took !== null && <span className="soft"> in {duration(build.took)}</span>}
          {build.size !== null && <span className="faint"> {bytes(build.size)}</span>}
        </summary>
        <dl className="facts">
          {build.reason && <Fact name="Reason">{build.reason}</Fact>}
          {build.built_by && <Fact name="By">{build.built_by}</Fact>}
          <Fact name="Code"><code>{build.code.slice(0, 12)}</code></Fact>
          {build.content && <Fact name="Content"><code>{build.content.slice(0, 12)}</code></Fact>}
        </dl>
        {build.log && <pre tabIndex={0} aria-label="Log of the build">{build.log}</pre>}
      </details>
    </li>
  );
}

function CodePanel({ details }: { details: StateDetails }) {
  const { built, now, parts, changed } = details.code;
  return (
    <Panel title="Code" aside={built === null ? undefined : built === now ? <Tag tone="ok">current</Tag> : <Tag tone="wait">changed</Tag>}>
      <dl className="facts">
        <Fact name="Built with"><code>{built?.slice(0, 12) ?? "not built yet"}</code></Fact>
        <Fact name="Current"><code>{now.slice(0, 12)}</code></Fact>
        {changed.length > 0 && <Fact name="Changed">{changed.join(", ")}</Fact>}
        {details.job && (
          <Fact name="Job">
            {details.job.id === null ? "runs in the pipeline's own process" : <><Link to={`/jobs/${details.job.id}`}>{details.job.id}</Link> {labelOf(details.job.state)} in queue {details.job.queue}</>}
          </Fact>
        )}
      </dl>
      <details className="pad">
        <summary>Parts of the code</summary>
        <ul className="lineage">
          {Object.entries(parts).map(([name, hash]) => (
            <li key={name}>
              <code>{name}</code> <span className="faint mono">{hash.slice(0, 12)}</span>
            </li>
          ))}
        </ul>
      </details>
    </Panel>
  );
}
