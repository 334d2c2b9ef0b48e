/** One state: why it is as it is, what it is made from and who takes it, what it holds, how each build went. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { bytes, Button, Empty, Fact, Loading, Panel, plural, Tag, Trouble, Why } from "../parts/ui";
import { Link } from "../router";
import { Ago, duration } from "../times";
import { RebuildDialog } from "./acts";
import { Standing, StateLink } from "./parts";
import { apiOf, type Build, type Content, type Effect, type Story } from "./types";

interface Props {
  pipeline: string;
  stage: string;
  entity: string;
  may: boolean;
  onClose: () => void;
}

export function StatePanel({ pipeline, stage, entity, may, onClose }: Props) {
  const found = useQuery({ queryKey: ["pipelines", pipeline, "state", stage, entity], queryFn: () => get<Story>(`${apiOf(pipeline)}/state`, { stage, entity }), placeholderData: keepPreviousData, refetchInterval: 15_000 });
  const [rebuilding, setRebuilding] = useState(false);
  const top = useRef<HTMLElement>(null);
  const wanted = { stage, entities: [entity] };
  const retry = useAction<void, Effect>({ act: () => post<Effect>(`${apiOf(pipeline)}/retry`, wanted), told: () => `${stage} of ${entity} is tried again.` });
  useEffect(() => {
    if (window.innerWidth < 1100) top.current?.scrollIntoView({ block: "start" });
  }, [stage, entity]);
  const story = found.data;
  const retried = story?.failure && (story.standing === "failed" || story.standing === "parked");
  return (
    <aside className="state-panel" ref={top} aria-label={`${stage} of ${entity}`}>
      <Panel
        title={entity ? `${stage} / ${entity}` : stage}
        aside={
          <span className="row">
            {story && <Standing standing={story.standing} />}
            <Button kind="quiet" aria-label="Close the state" onClick={onClose}>
              ✕
            </Button>
          </span>
        }
      >
        {found.error && <Trouble error={found.error} retry={() => void found.refetch()} />}
        {found.isPending && <Loading lines={6} />}
        {story && (
          <>
            <div className="pad stack-small">
              <Why lines={story.why} />
              {story.failure && <Failed failure={story.failure} />}
            </div>
            {may && story.standing !== "orphan" && (
              <div className="card-foot">
                <span className="row">
                  {retried && (
                    <Button kind="main" className="small" busy={retry.isPending} onClick={() => retry.mutate()}>
                      Retry now
                    </Button>
                  )}
                  <Button className="small" disabled={story.built_at === null} title={story.built_at === null ? "It was never built" : undefined} onClick={() => setRebuilding(true)}>
                    Build again …
                  </Button>
                </span>
                <span>
                  as of <Ago at={story.looked_at} />
                </span>
              </div>
            )}
          </>
        )}
      </Panel>
      {story && (
        <>
          <Contents key={story.outputs[0]?.path} pipeline={pipeline} story={story} />
          <Lineage pipeline={pipeline} story={story} />
          <Panel title="Builds" aside={<span className="faint">{story.builds.length >= 20 ? "the last 20" : plural(story.builds.length, "build")}</span>}>
            {story.builds.length === 0 ? <Empty title="It was never built" /> : <ul className="builds">{story.builds.map((build, index) => <BuildLine key={build.at + index} build={build} />)}</ul>}
          </Panel>
          <CodePanel story={story} />
        </>
      )}
      {rebuilding && <RebuildDialog pipeline={pipeline} wanted={wanted} what={<b>{entity ? `${stage} / ${entity}` : stage}</b>} onClose={() => setRebuilding(false)} />}
    </aside>
  );
}

function Failed({ failure }: { failure: NonNullable<Story["failure"]> }) {
  return (
    <details className="failed" open>
      <summary>
        Failed {plural(failure.attempts, "time")}, last <Ago at={failure.failed_at} />
        {failure.retry_at ? (
          <>
            ; tried again <Ago at={failure.retry_at} />
          </>
        ) : (
          "; not tried again by itself"
        )}
      </summary>
      <pre tabIndex={0} aria-label="What went wrong">{failure.log || failure.error}</pre>
    </details>
  );
}

/** What the state holds, or one of the files that it was made from. */
function Contents({ pipeline, story }: { pipeline: string; story: Story }) {
  const files = [...story.outputs.map((each) => ({ ...each, what: "output" })), ...story.inputs.map((each) => ({ path: each.path, size: each.size, what: "input" }))].filter((each) => each.size !== null);
  const [chosen, setChosen] = useState<string | null>(null);
  const path = files.some((each) => each.path === chosen) ? chosen : (files[0]?.path ?? null);
  return (
    <Panel title="Content">
      {path === null ? (
        <Empty title="There is nothing yet">It is shown here once it was built.</Empty>
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
          <FileView pipeline={pipeline} path={path} version={story.version} />
        </>
      )}
    </Panel>
  );
}

function FileView({ pipeline, path, version }: { pipeline: string; path: string; version: number }) {
  const found = useQuery({ queryKey: ["pipelines", pipeline, "content", path, version], queryFn: () => get<Content>(`${apiOf(pipeline)}/content`, { path }), retry: false });
  if (found.error) return <Trouble error={found.error} retry={() => void found.refetch()} />;
  if (!found.data) return <Loading lines={3} />;
  const { kind, text, data, media_type, size, truncated } = found.data;
  return (
    <div className="content">
      {kind === "text" && <pre tabIndex={0} aria-label={`Content of ${path}`}>{text}</pre>}
      {kind === "picture" && <img src={`data:${media_type};base64,${data}`} alt={`Content of ${path}`} />}
      <p className="faint">
        <code>{path}</code>, {bytes(size)}
        {truncated && kind === "text" && "; this is its beginning"}
        {kind === "bytes" && (truncated ? "; too large to be shown here" : "; not text, so not shown")}
      </p>
    </div>
  );
}

function Lineage({ pipeline, story }: { pipeline: string; story: Story }) {
  return (
    <Panel title="Lineage">
      <div className="pad stack-small">
        <h3>Made from</h3>
        {story.inputs.length === 0 && <p className="faint">Its inputs are gone.</p>}
        <ul className="lineage">
          {story.inputs.map((each) => (
            <li key={each.path}>
              <code>{each.path}</code> {each.content === null ? <Tag tone="bad">not there</Tag> : each.changed && <Tag tone="wait">changed</Tag>}
              {each.made_by && (
                <>
                  {" "}
                  made by <StateLink pipeline={pipeline} state={each.made_by} />
                </>
              )}
            </li>
          ))}
        </ul>
        <h3>Taken by</h3>
        {story.takers === 0 && <p className="faint">Nothing is made from it.</p>}
        <ul className="lineage">
          {story.taken_by.map((each) => (
            <li key={`${each.stage}/${each.entity}`}>
              <StateLink pipeline={pipeline} state={each} />
            </li>
          ))}
          {story.takers > story.taken_by.length && <li className="faint">and {story.takers - story.taken_by.length} more</li>}
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
          <Tag tone={OUTCOMES[build.outcome]}>{build.outcome === "same" ? "same result" : build.outcome}</Tag> <Ago at={build.at} />
          {build.took !== null && <span className="soft"> in {duration(build.took)}</span>}
          {build.size !== null && <span className="faint"> {bytes(build.size)}</span>}
        </summary>
        <dl className="facts">
          {build.reason && <Fact name="Why">{build.reason}</Fact>}
          {build.built_by && <Fact name="By">{build.built_by}</Fact>}
          <Fact name="Code"><code>{build.code.slice(0, 12)}</code></Fact>
          {build.content && <Fact name="Content"><code>{build.content.slice(0, 12)}</code></Fact>}
        </dl>
        {build.log && <pre tabIndex={0} aria-label="Log of the build">{build.log}</pre>}
      </details>
    </li>
  );
}

function CodePanel({ story }: { story: Story }) {
  const { built, now, parts, changed } = story.code;
  return (
    <Panel title="Code" aside={built === null ? undefined : built === now ? <Tag tone="ok">the code of now</Tag> : <Tag tone="wait">changed</Tag>}>
      <dl className="facts">
        <Fact name="Built by"><code>{built?.slice(0, 12) ?? "nothing yet"}</code></Fact>
        <Fact name="Now"><code>{now.slice(0, 12)}</code></Fact>
        {changed.length > 0 && <Fact name="Changed">{changed.join(", ")}</Fact>}
        {story.job && (
          <Fact name="Job">
            {story.job.id === null ? "in the process that keeps the pipeline" : <><Link to={`/jobs/${story.job.id}`}>{story.job.id}</Link> {story.job.state} in queue {story.job.queue}</>}
          </Fact>
        )}
      </dl>
      <details className="pad">
        <summary>What it is made of</summary>
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
