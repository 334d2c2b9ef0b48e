"""The record of a step with several tasks is stored in a form that run workers of the version before go on with."""

from __future__ import annotations

import asyncio
import json

from tests.support import eventually, value
from tests.support.durable import Go, running_run_worker
from tidemill import App
from tidemill.flows import Context, StartEvent, StopEvent, Workflow, step
from tidemill.flows.reducer.record import ANSWERED, MARKS
from tidemill.store.database import Database


class Pairs(Workflow):
    """Each of two tasks waits, writes, and waits again."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def ask(name: str) -> list[str]:
            first = await ctx.wait_for_event(Go, requirements={"word": f"{name} first"})
            await ctx.store.set(name, first.word)
            second = await ctx.wait_for_event(Go, requirements={"word": f"{name} second"})
            async with ctx.store.edit_state() as state:
                state[name] += f", {second.word}"
            return [name, state[name]]

        return StopEvent(result=await asyncio.gather(ask("one"), ask("two")))


async def test_the_version_before_finds_only_operations_that_it_knows_in_the_record_of_a_step_with_tasks(
    app: App, database: Database
) -> None:
    app.workflow(Pairs)
    async with running_run_worker(app):
        run = await app.start(Pairs)
        for word in ("one first", "two first", "one second"):
            await run.send_event(Go(word=word))
        answers = "SELECT count(*) FROM tidemill.tick WHERE data ->> 'kind' = 'received'"
        await eventually(lambda: value(database, f"SELECT ({answers}) = 3"))
    work = json.loads(await value(database, "SELECT data -> 'works' -> 0 FROM tidemill.snapshot"))
    ticks = await database.fetch("SELECT data -> 'note' AS note FROM tidemill.tick WHERE data ->> 'kind' = 'noted'")
    notes = [json.loads(each["note"]) for each in ticks]
    kinds = {each[1] for record in (work["record"], *(note.get("operations", ()) for note in notes)) for each in record}
    assert kinds & MARKS == {"begin"}
    assert ANSWERED in {each[2] for each in work["marks"]}, "the order of the tasks is stored, too"
    async with running_run_worker(app):
        await run.send_event(Go(word="two second"))
        assert await run.result(timeout=60) == [["one", "one first, one second"], ["two", "two first, two second"]]
