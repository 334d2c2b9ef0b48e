"""A user's class may call its attributes and its steps whatever it likes."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.app import App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.declared import PLACE, declared
from tidemill.flows.errors import WorkflowConfigurationError

TAKEN = [
    "steps",
    "topology",
    "timeout",
    "verbose",
    "resource_manager",
    "serializer",
    "runtime",
    "events",
    "workflow_name",
    "start_event_class",
    "stop_event_class",
    "num_concurrent_runs",
    "room",
    "declared",
    "check_once",
    "start_event",
    "disable_validation",
]


class Named(Event):
    n: int


class Plain(Workflow):
    @step
    async def first(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=getattr(self, ev.name))


@pytest.mark.parametrize("name", TAKEN)
async def test_an_attribute_of_any_name_is_the_users_own(name: str) -> None:
    flow = Plain()
    setattr(flow, name, 3)
    assert await flow.run(name=name) == 3


@pytest.mark.parametrize("name", [*TAKEN, "validate", "add_step"])
async def test_a_step_may_have_any_name(name: str) -> None:
    async def body(self: Any, ctx: Context, ev: Named) -> StopEvent:
        return StopEvent(result=ev.n + 1)

    async def begin(self: Any, ev: StartEvent) -> Named:
        return Named(n=1)

    body.__name__ = name
    body.__qualname__ = f"Made.{name}"
    begin.__qualname__ = "Made.begin"
    flow_class = type("Made", (Workflow,), {"begin": step(begin), name: step(body)})
    flow = flow_class(timeout=60)
    assert await flow.run() == 2
    app = App("names")
    app.workflow(flow_class, timeout=None)
    assert declared(app.runs.flows["Made"].workflow).timeout is None


async def test_an_attribute_set_before_the_constructor_is_kept() -> None:
    class Early(Plain):
        def __init__(self, **options: Any) -> None:
            self.events = ["mine"]  # pyright: ignore[reportAttributeAccessIssue]
            super().__init__(**options)

    assert await Early(timeout=60).run(name="events") == ["mine"]


def test_nothing_but_one_private_attribute_is_ours() -> None:
    assert list(vars(Plain())) == [PLACE]


class Forgetful(Workflow):
    def __init__(self) -> None:
        self.model = "small"

    @step
    async def first(self, ev: StartEvent) -> StopEvent:
        return StopEvent()


async def test_a_class_that_forgets_the_constructor_of_its_base_is_told_so() -> None:
    flow = Forgetful()
    for use in (flow.run, flow.validate, lambda: flow.events, lambda: Context(flow)):
        with pytest.raises(WorkflowConfigurationError, match=r"Forgetful .* super\(\).__init__\(\)"):
            use()
    with pytest.raises(WorkflowConfigurationError, match="super"):
        App("forgetful").workflow(Forgetful)
