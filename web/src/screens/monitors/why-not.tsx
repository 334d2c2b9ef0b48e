/** Why a trigger has opened no alert for an entity: what was checked last, with which state, and what comes next. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../../api/client";
import type { Schemas } from "../../api/types";
import { Explanation } from "../../components/details/explanation";
import { JsonView } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { LoadStatus } from "../../components/feedback";
import { State } from "../../components/state";

type Found = Schemas["Explanation"];

export function WhyNot({ monitor, entity, triggers, onClose }: { monitor: string; entity: string; triggers: string[]; onClose: () => void }) {
  const [trigger, setTrigger] = useState(triggers[0] ?? "");
  const found = useQuery({ queryKey: ["why-not", monitor, trigger, entity], queryFn: () => get<Found>("/why-not", { monitor, trigger, entity }), enabled: trigger !== "" });
  return (
    <Dialog title={`Why no alert of ${entity}?`} onClose={onClose} wide>
      <label className="row">
        <span>Trigger</span>
        <select className="field" value={trigger} onChange={(event) => setTrigger(event.target.value)}>
          {triggers.map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
        {found.data && <State state={found.data.state} />}
      </label>
      <LoadStatus query={found} />
      {found.data && (
        <>
          <Explanation lines={found.data.why} />
          <details>
            <summary>State and rule</summary>
            <JsonView value={{ state: found.data.trigger?.state, rule: found.data.trigger?.rule }} label={`state of ${entity}`} />
          </details>
        </>
      )}
    </Dialog>
  );
}
