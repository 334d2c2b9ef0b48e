"""Questions of runs: an explanation names them; those of runs that need attention are not offered."""

from __future__ import annotations

import pytest

from tests.support.waiting import eventually
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import ConflictError
from tidemill.dags import Dag, input_node
from tidemill.flows import Context, Event, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.ops.admin.overview import get_overview
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Nothing
from tidemill.ops.runs.inputs import ListInputs, SubmitInput, list_inputs, submit_input
from tidemill.ops.runs.runs import RunRef, get_run
from tidemill.store.database import Database

ASKED = "INSERT INTO tidemill.run_input (run_id, node, prompt) VALUES ($1, 'agree', 'Order it?')"
PARKED = "UPDATE tidemill.run SET state = 'needs_attention', note = 'its code is gone' WHERE id = $1"


async def test_a_run_that_needs_attention_takes_no_answers(app: App, database: Database) -> None:
    app.dag(Dag("order", nodes=[input_node("agree", prompt="Order it?")]))
    run = await app.start("order")
    await database.fetch(ASKED, run.id)
    at = Local(database, Caller("ann", "operator"), app.declarations)
    assert [each.node for each in (await at.do(list_inputs, ListInputs())).items] == ["agree"]
    assert (await at.do(get_overview, Nothing())).counts.inputs_open == 1

    await database.fetch(PARKED, run.id)
    assert (await at.do(list_inputs, ListInputs())).items == []
    assert (await at.do(get_overview, Nothing())).counts.inputs_open == 0
    with pytest.raises(ConflictError, match=f"its code is gone; once that is mended, `tidemill retry r{run.id}`"):
        await at.do(submit_input, SubmitInput(id=run.id, node="agree", value="yes"))


class Approved(Event):
    ok: bool


class Publish(Workflow):
    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        answer = await ctx.wait_for_event(Approved, waiter_event=InputRequiredEvent(text="Publish it?"))
        return StopEvent(result=answer.ok)


async def test_a_flow_that_waits_for_a_person_says_what_it_asks_and_how_to_answer(app: App, database: Database) -> None:
    app.workflow(Publish)
    at = Local(database, Caller("ann", "operator"), app.declarations)
    async with app.running():
        run = await app.start(Publish)

        async def asked() -> bool:
            return bool((await at.do(list_inputs, ListInputs(run=run.id))).items)

        await eventually(asked)
        (question,) = (await at.do(list_inputs, ListInputs(run=run.id))).items
        (why,) = (await at.do(get_run, RunRef(id=run.id))).why
        assert why == (
            f"It waits for an answer to 'Publish it?': tidemill submit r{run.id} {question.node} "
            "'{\"ok\": ...}' --app app.py"
        )
        with pytest.raises(ConflictError, match=f"does not ask 'ask', .*; it asks {question.node}"):
            await at.do(submit_input, SubmitInput(id=run.id, node="ask", value={"ok": True}))
        await at.do(submit_input, SubmitInput(id=run.id, node=question.node, value={"ok": True}))
        assert await run is True
        (ended,) = (await at.do(get_run, RunRef(id=run.id))).why
        assert ended.startswith("It succeeded after ")
