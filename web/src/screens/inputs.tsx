/** Inputs: what waits for a person, with a form for each answer. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../api";
import { AnswerForm, askerOf } from "../parts/answer";
import { Empty, Head, Loading, Panel, Tag, Trouble } from "../parts/ui";
import { Link } from "../router";
import { useMay } from "../session";
import { Ago } from "../times";
import type { Input, List } from "../types";

export function Inputs() {
  const may = useMay("operate");
  const found = useQuery({ queryKey: ["inputs"], queryFn: () => get<List<Input>>("/inputs"), refetchInterval: 10_000 });
  return (
    <>
      <Head title="Inputs" under="Runs that wait for a person, the longest waiting first. The first answer that fits counts." />
      {found.error && <Trouble error={found.error} retry={() => void found.refetch()} />}
      {found.isPending && <Loading />}
      {found.data?.items.length === 0 && (
        <Panel>
          <Empty good title="Nothing waits for you">
            A dag asks with <code>input_node("agree", prompt="Order it?")</code>, a flow with <code>await ctx.wait_for_event(HumanResponseEvent, waiter_event=…)</code>. Their questions appear here by themselves.
          </Empty>
        </Panel>
      )}
      <div className="cards">
        {found.data?.items.map((input) => (
          <Panel key={`${input.run_id}/${input.node}`} title={input.prompt || askerOf(input)} aside={<Link to={`/runs/${input.run_id}`}>r{input.run_id}</Link>}>
            <div className="pad">{may ? <AnswerForm input={input} /> : <p className="soft">You may look, but not answer: that needs a token with scope operate.</p>}</div>
            <div className="card-foot">
              <span>
                <Tag>{input.shape}</Tag> {input.workflow} · {askerOf(input)}
              </span>
              <span>
                asked <Ago at={input.asked_at} />
                {input.due_at && (
                  <>
                    {" "}
                    · {input.shape === "flow" ? "given up" : "answered by default"} <Ago at={input.due_at} />
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
