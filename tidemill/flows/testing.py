"""Run a workflow in a test and inspect its published events.

result = await WorkflowTestRunner(Article()).run(StartEvent(topic="tides"))
assert result.result == "on tides"
assert result.event_types[Progress] == 3
assert [tick.timer for tick in result.recording.ticks if isinstance(tick, Elapsed)] == []

`simulate(Article(), seed=7, topic="tides")` runs it as a durable run in a simulation, where owners crash: see
`tidemill.flows.simulate`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tidemill.engine.runs.adapters import Recording
from tidemill.engine.runs.control_loop import Adapter
from tidemill.engine.simulation.simulation import Faults
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import Event, StartEvent
from tidemill.flows.definition.workflow import AnyWorkflow
from tidemill.flows.runner.runtime import BasicRuntime
from tidemill.flows.runner.steps.context import Context
from tidemill.flows.simulate import SimulatedRun, simulate

__all__ = ["Faults", "SimulatedRun", "WorkflowTestResult", "WorkflowTestRunner", "simulate"]


@dataclass
class WorkflowTestResult:
    """The published events of a run, their number by class, and the result."""

    collected: list[Any]
    event_types: dict[type, int]
    result: Any
    ctx: Context[Any] | None = None
    recording: Recording | None = field(default=None, repr=False)
    """The ticks of the run and the commands that followed from them."""


class WorkflowTestRunner:
    """Runs a workflow to its end and records its stream."""

    def __init__(self, workflow: AnyWorkflow) -> None:
        self._workflow = workflow

    async def run(
        self,
        start_event: StartEvent | None = None,
        ctx: Context[Any] | None = None,
        expose_internal: bool = True,
        exclude_events: list[type[Event]] | None = None,
    ) -> WorkflowTestResult:
        """Run the workflow with this start event; events of the classes in `exclude_events` are not recorded."""
        known = declared(self._workflow)
        recordings: list[Recording] = []

        def record(run: Adapter, name: str) -> Adapter:
            recordings.append(Recording(run))
            return recordings[0]

        usual, known.runtime = known.runtime, BasicRuntime(known.runtime.around, record)
        try:
            handler = self._workflow.run(ctx=ctx, start_event=start_event or StartEvent())
        finally:
            known.runtime = usual
        left_out = set(exclude_events or ())
        shown = [event async for event in handler.stream_events(expose_internal) if type(event) not in left_out]
        return WorkflowTestResult(shown, dict(Counter(map(type, shown))), await handler, handler.ctx, recordings[0])
