/** Human input: questions of runs, each with a form for the answer. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import type { Input, List } from "../../api/types";
import { Link, useFilters } from "../../app/router";
import { useMay } from "../../app/session";
import { Empty, LoadStatus } from "../../components/feedback";
import { Search } from "../../components/forms/filters";
import { askingStep, InputForm } from "../../components/forms/input-form";
import { PageHeader, Panel } from "../../components/layout";
import { Tag } from "../../components/state";
import { Ago } from "../../components/times";

export function HumanInput() {
  const may = useMay("operator");
  const [query, change] = useFilters();
  const workflow = query.get("workflow") ?? "";
  const found = useQuery({ queryKey: ["inputs"], queryFn: () => get<List<Input>>("/inputs"), refetchInterval: 10_000 });
  return (
    <>
      <PageHeader title="Human input" subtitle="Runs that are waiting for input from a person, oldest question first. The first valid answer is used." />
      {(found.data?.items.length ?? 0) > 1 && (
        <div className="filters">
          <Search label="Workflow" value={workflow} list={[...new Set(found.data?.items.map((input) => input.workflow))]} onChange={(text) => change({ workflow: text })} />
        </div>
      )}
      <LoadStatus query={found} />
      {found.data?.items.length === 0 && (
        <Panel>
          <Empty good title="No run is waiting for input">
            A dag asks with <code>input_node("agree", prompt="Order it?")</code>, a flow with <code>await ctx.wait_for_event(HumanResponseEvent, waiter_event=…)</code>. Open questions appear here automatically.
          </Empty>
        </Panel>
      )}
      <div className="cards">
        {found.data?.items.filter((input) => input.workflow.toLowerCase().includes(workflow.toLowerCase())).map((input) => (
          <Panel key={`${input.run_id}/${input.node}`} title={input.prompt || askingStep(input)} aside={<Link to={`/runs/${input.run_id}`}>r{input.run_id}</Link>}>
            <div className="pad">{may ? <InputForm input={input} /> : <p className="soft">Answering needs the role operator.</p>}</div>
            <div className="card-foot">
              <span>
                <Tag>{input.shape}</Tag> {input.workflow} · {askingStep(input)}
              </span>
              <span>
                asked <Ago at={input.asked_at} />
                {input.due_at && (
                  <>
                    {" "}
                    · {input.shape === "flow" ? "times out" : "answered with the default"} <Ago at={input.due_at} />
                  </>
                )}
              </span>
            </div>
          </Panel>
        ))}
      </div>
    </>
  );
}
