"""An owner that never comes to rest over one run still looks after all others."""

from __future__ import annotations

import asyncio

from tests.simulation.journeys import Reply
from tidemill.core.codec import encode
from tidemill.engine.simulation.simulation import Simulation
from tidemill.flows import Context, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.declared import declared
from tidemill.flows.encoding.events import encode_event
from tidemill.flows.runner.durable import FlowKind


class Busy(Workflow):
    @step
    async def work(self, ev: StartEvent) -> StopEvent:
        await asyncio.sleep(10_000)
        return StopEvent()


class Asleep(Workflow):
    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.wait_for_event(Reply, timeout=None)
        return StopEvent()


async def no_children(*_: object) -> None:
    raise AssertionError("nobody starts another run here")


def test_a_sleeping_run_is_woken_in_time_though_ends_of_jobs_come_without_a_pause() -> None:
    workflows = {"Busy": Busy(timeout=None), "Asleep": Asleep(timeout=3.0)}
    simulation = Simulation(
        5,
        lambda runs: {name: FlowKind(name, workflow, no_children) for name, workflow in workflows.items()},
        owners=1,
        workers=0,
    )
    numbers = {}
    for name, workflow in workflows.items():
        version = declared(workflow).topology.version
        numbers[name] = simulation.start(workflow=name, version=version, input=encode_event(StartEvent()))
    world, model = simulation.world, simulation.model
    nothing = encode({"job": 1, "state": "cancelled", "note": "of a step that is over"})

    def end_a_job() -> None:
        model._put(numbers["Busy"], work=99, data=nothing)
        model.notify(("runs", "inbox"))
        world.later(0.0005, end_a_job)

    world.later(0.1, end_a_job)
    try:
        world.go(lambda: model.runs[numbers["Asleep"]].state != "running", limit=3.5)
        assert model.runs[numbers["Asleep"]].state == "timed_out"
        assert model.runs[numbers["Busy"]].state == "running"
        assert len(model.ticks[numbers["Busy"]]) > 1000, "it was busy all the time"
    finally:
        simulation.close()
