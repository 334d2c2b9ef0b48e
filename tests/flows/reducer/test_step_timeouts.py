"""The timeout of a step that waits: it is never lost, whether the step is in memory or not."""

from __future__ import annotations

from tidemill.core.ticks import Elapsed, Noted, Resumed, RunWork, SetTimer, Started
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.declared import declared
from tidemill.flows.reducer.reducer import RULES
from tidemill.flows.reducer.step_ticks import WaitAsked


class Said(Event):
    pass


class Limited(Workflow):
    @step(timeout=2.0)
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.wait_for_event(Said)
        return StopEvent()


def test_a_step_that_its_timer_finds_in_memory_is_looked_at_again() -> None:
    """Its process may have stood still: its own clock then says that it has time left, and it may leave memory."""
    program = declared(Limited()).program(durable=True)
    state = program.begin()
    program.reduce(state, Started(1000.0, StartEvent(), RULES))
    asked = WaitAsked("said", Said, {}, operations=(), rests_on=("said",))
    assert SetTimer("step:1", 1002.0) in program.reduce(state, Noted(1003.0, 1, asked))
    assert program.reduce(state, Elapsed(1003.1, "step:1")) == [SetTimer("step:1", 1004.1)]

    program.reduce(state, Resumed(1003.5, queued=True, rules=RULES))
    again = program.reduce(state, Elapsed(1004.1, "step:1"))
    assert [type(each) for each in again] == [RunWork]
