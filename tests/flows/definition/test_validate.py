"""Which workflows are refused before they run, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel

from tidemill.flows.definition.decorators import attach_step, catch_error, step, steps_of
from tidemill.flows.definition.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepFailedEvent,
    StopEvent,
)
from tidemill.flows.definition.resource import Resource, ResourceConfig, ResourceManager
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.definition.validate import (
    check_names,
    find_start_class,
    find_state_type,
    find_stop_class,
    validate_resource_configs,
    validate_resources,
    validate_steps,
)
from tidemill.flows.errors import (
    ResourceCycleError,
    StateTypeError,
    WorkflowConfigurationError,
    WorkflowValidationError,
)


class A(Event):
    pass


class SubA(A):
    pass


class B(Event):
    pass


class C(Event):
    pass


class Begin(StartEvent):
    pass


class End(StopEvent):
    pass


class Ask(InputRequiredEvent):
    pass


class Answer(HumanResponseEvent):
    pass


Nothing = type(None)
Declared = tuple[Any, ...]


def flow(**steps: Declared) -> dict[str, StepSpec]:
    """Steps from `name=(what it takes, what it returns, options)`; a dict stands for several parameters."""

    class Flow:
        add_step: Callable[..., None] = classmethod(attach_step)  # type: ignore[assignment]

    for name, (takes, returns, *options) in steps.items():
        parameters = takes if isinstance(takes, dict) else {"ev": takes}
        scope: dict[str, Any] = {}
        exec(f"async def {name}({', '.join(parameters)}): ...", scope)
        function = scope[name]
        function.__annotations__ = {**parameters, "return": returns}
        if takes is StepFailedEvent and options[:1] != [{"plain": True}]:
            attach_step(Flow, catch_error(**(options[0] if options else {}))(function))
        else:
            settings = {key: value for key, value in (options[0] if options else {}).items() if key != "plain"}
            step(workflow=Flow, **settings)(function)
    return steps_of(Flow)


OPEN = {"accept_event_subclasses": True}


@pytest.mark.parametrize(
    ("steps", "asks_people"),
    [
        ({"a": (StartEvent, StopEvent)}, False),
        ({"a": (Begin, A), "b": (A, End)}, False),
        ({"a": (StartEvent | A, A | StopEvent)}, False),
        ({"a": (StartEvent, StartEvent | StopEvent)}, False),
        ({"a": (StartEvent, A | StopEvent), "b": (A, Nothing)}, False),
        ({"a": (StartEvent, SubA), "b": (A, StopEvent, OPEN)}, False),
        ({"a": (StartEvent, SubA), "b": (Event, StopEvent, OPEN)}, False),
        ({"a": (StartEvent, Ask), "b": (Answer, StopEvent)}, True),
        ({"a": (StartEvent, Ask), "b": (Ask, StopEvent)}, True),
        ({"a": (StartEvent, StopEvent), "b": (Answer, StopEvent)}, True),
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, StopEvent)}, False),
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, Nothing)}, False),
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, StopEvent, {"for_steps": []})}, False),
        ({"a": (StartEvent, StopEvent), "b": (A, A | StopEvent, {"skip_graph_checks": ["reachability"]})}, False),
        ({"a": (StartEvent, A | StopEvent), "b": (A, A, {"skip_graph_checks": ["dead_end"]})}, False),
        # batches
        ({"a": (StartEvent, list[A]), "b": (A, B), "j": (list[B], StopEvent)}, False),
        ({"a": (StartEvent, list[A]), "j": (list[A], StopEvent)}, False),
        ({"a": (StartEvent, list[SubA]), "j": (list[A], StopEvent, OPEN)}, False),
        ({"a": (StartEvent, list[A] | B), "j": (list[A | B], StopEvent)}, False),
        ({"a": (StartEvent, list[A]), "b": (A, list[B]), "j": (list[B], C), "k": (list[C], StopEvent)}, False),
        ({"a": (StartEvent, list[A]), "b": (A, list[B]), "c": (B, C), "k": (list[C], StopEvent)}, False),
        ({"a": (StartEvent, list[A]), "b": (A, B), "h": (StepFailedEvent, C), "k": (list[B | C], StopEvent)}, False),
        ({"a": (StartEvent, list[A]), "b": (A, list[A] | B), "k": (list[B], StopEvent)}, False),
        ({"a": (StartEvent, list[A] | B), "b": (B, C), "j": (list[A | C], StopEvent)}, False),
        ({"a": (StartEvent, list[StopEvent])}, False),
        # sets
        ({"a": (StartEvent, A | B), "j": ({"x": A, "y": B}, StopEvent)}, False),
        ({"a": (StartEvent, A), "j": ({"x": A, "y": A}, StopEvent)}, False),
        ({"a": (StartEvent, A), "j": ({"x": StartEvent, "y": A}, StopEvent)}, False),
        ({"a": (StartEvent, A), "j": ({"x": Answer, "y": A}, StopEvent)}, True),
        ({"a": (StartEvent, list[A]), "b": (A, B), "j": ({"x": A, "y": B}, StopEvent)}, False),
    ],
    ids=str,
)
def test_a_workflow_that_can_work_is_accepted(steps: dict[str, Declared], asks_people: bool) -> None:
    assert validate_steps(flow(**steps)) is asks_people


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ({"a": (StartEvent, A | StopEvent)}, "produced but never consumed: A"),
        ({"a": (StartEvent, A | B | StopEvent)}, "produced but never consumed: A, B"),
        ({"a": (StartEvent, Event | StopEvent)}, "produced but never consumed: Event"),
        ({"a": (StartEvent, StepFailedEvent | StopEvent)}, "produced but never consumed: StepFailedEvent"),
        ({"a": (StartEvent, StopEvent), "b": (A, StopEvent)}, "consumed but never produced: A"),
        (
            {"a": (StartEvent, StopEvent), "b": (A, StopEvent, {"skip_graph_checks": ["reachability"]})},
            "consumed but never produced",
        ),
        ({"a": (StartEvent, SubA), "b": (A, StopEvent)}, "consumed but never produced: A"),
        ({"a": (StartEvent, A), "b": (SubA, StopEvent)}, "consumed but never produced: SubA"),
        ({"a": (StartEvent, StopEvent), "b": (StopEvent, Nothing)}, "cannot accept StopEvent"),
        ({"a": (StartEvent, StopEvent), "b": (End, StopEvent)}, "cannot accept End"),
        ({"a": (StartEvent, StopEvent), "b": (A, B), "c": (B, A)}, r"(?s)reachability.*b, c.*dead_end.*b, c"),
        ({"a": (StartEvent, StopEvent), "b": (A, A | StopEvent)}, "reachability"),
        ({"a": (StartEvent, StopEvent), "b": (InputRequiredEvent, Ask)}, "consumed but never produced: InputRequired"),
        ({"a": (StartEvent, StopEvent), "b": (StepFailedEvent, StopEvent, {"plain": True})}, "reachability"),
        ({"a": (StartEvent, A | StopEvent), "b": (A, A)}, "dead_end.*b"),
        ({"a": (StartEvent, A), "b": (A, Nothing), "c": (Answer, StopEvent)}, "dead_end.*a"),
        ({"a": (StartEvent, HumanResponseEvent | StopEvent)}, "terminal_event.*HumanResponseEvent"),
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, A)}, "produced but never consumed: A"),
        # batches and sets
        ({"a": (StartEvent, A), "j": (list[A], StopEvent)}, "no returned-list producer"),
        (
            {"a": (StartEvent, A | B), "b": (A, list[C]), "j": (list[B | C], StopEvent)},
            r"list\[B\], but no",
        ),
        ({"j": (list[StartEvent], StopEvent)}, "no returned-list producer"),
        ({"a": (StartEvent, list[A]), "b": (list[A], B), "j": (list[B], StopEvent)}, "no returned-list producer"),
        (
            {"a": (StartEvent, list[A]), "b": (A, Ask), "c": (Answer, B), "j": (list[B], StopEvent)},
            "no returned-list producer",
        ),
        (
            {"a": (StartEvent, A), "b": (A, list[B]), "j": ({"x": A, "y": B}, StopEvent)},
            "at a common stream level",
        ),
        (
            {"a": (StartEvent, list[A]), "j": ({"x": Answer, "y": A}, StopEvent)},
            "at a common stream level",
        ),
        # error handlers
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, StopEvent), "i": (StepFailedEvent, StopEvent)}, "h, i"),
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, StopEvent, {"for_steps": ["z"]})}, "unknown step 'z'"),
        (
            {"a": (StartEvent, StopEvent), "h": (StepFailedEvent, StopEvent, {"for_steps": ["h"]})},
            "another handler",
        ),
        (
            {"a": (StartEvent, StopEvent), "h": (StepFailedEvent, StopEvent, {"for_steps": ["a", "a"]})},
            "claimed by",
        ),
    ],
    ids=str,
)
def test_a_workflow_that_cannot_work_is_refused(steps: dict[str, Declared], told: str) -> None:
    with pytest.raises(WorkflowValidationError, match=told):
        validate_steps(flow(**steps))


def test_graph_checks_can_be_switched_off_for_a_workflow() -> None:
    island = flow(a=(StartEvent, StopEvent), b=(A, B), c=(B, A))
    assert validate_steps(island, {"reachability", "dead_end"}) is False
    with pytest.raises(WorkflowValidationError, match="dead_end"):
        validate_steps(island, {"reachability"})
    assert validate_steps(flow(a=(StartEvent, HumanResponseEvent | StopEvent)), {"terminal_event"}) is False
    with pytest.raises(WorkflowValidationError, match="Unknown graph check names: everything"):
        check_names({"everything"})


def test_a_workflow_has_one_beginning_and_one_end() -> None:
    steps = flow(a=(Begin, A), b=(A, End))
    assert find_start_class(steps, "Flow") is Begin
    assert find_stop_class(steps, "Flow") is End


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ({}, "At least one Event of type StartEvent must be received"),
        ({"a": (A, StopEvent)}, "At least one Event of type StartEvent must be received"),
        ({"a": (Event, StopEvent, OPEN)}, "At least one Event of type StartEvent must be received"),
        ({"a": (StartEvent, StopEvent), "b": (Begin, StopEvent)}, "Only one type of StartEvent is allowed"),
    ],
    ids=str,
)
def test_a_workflow_without_one_beginning_is_refused(steps: dict[str, Declared], told: str) -> None:
    with pytest.raises(WorkflowConfigurationError, match=told):
        find_start_class(flow(**steps), "Flow")


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ({"a": (StartEvent, Nothing)}, "At least one Event of type StopEvent must be returned"),
        ({"a": (StartEvent, int)}, "At least one Event of type StopEvent must be returned"),
        ({"a": (StartEvent, Any)}, "At least one Event of type StopEvent must be returned"),
        ({"a": (StartEvent, StopEvent | End)}, "Only one type of StopEvent is allowed"),
    ],
    ids=str,
)
def test_a_workflow_without_one_end_is_refused(steps: dict[str, Declared], told: str) -> None:
    with pytest.raises(WorkflowConfigurationError, match=told):
        find_stop_class(flow(**steps), "Flow")


class State(BaseModel):
    n: int = 0


class MoreState(State):
    m: int = 0


class OtherState(BaseModel):
    pass


def with_states(*states: Any) -> dict[str, StepSpec]:
    steps = flow(a=(StartEvent, StopEvent))
    return {str(n): msgspec.structs.replace(steps["a"], context_state_type=state) for n, state in enumerate(states)}


def test_the_state_of_a_run_is_the_most_derived_that_the_steps_declare() -> None:
    assert find_state_type(with_states(None)) is None
    assert find_state_type(with_states(State, None, MoreState)) is MoreState
    with pytest.raises(StateTypeError, match="OtherState, State"):
        find_state_type(with_states(State, OtherState))


def test_missing_configuration_is_found_before_the_run(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text('{"n": 1}')
    bad.write_text('{"n": "x"}')

    def nested(config: Any) -> Any: ...

    nested.__annotations__["config"] = Annotated[State, ResourceConfig(str(bad))]
    validate_resource_configs(flow(a=({"ev": StartEvent, "c": Annotated[State, ResourceConfig(str(good))]}, StopEvent)))
    for resource in (ResourceConfig(str(bad)), Resource(nested), ResourceConfig(str(tmp_path / "none.json"))):
        with pytest.raises(WorkflowValidationError, match="step 'a', parameter 'c'"):
            validate_resource_configs(flow(a=({"ev": StartEvent, "c": Annotated[State, resource]}, StopEvent)))


def test_a_resource_that_needs_itself_is_found_before_the_run() -> None:
    def ouroboros(tail: Any) -> Any: ...

    ouroboros.__annotations__["tail"] = Annotated[Any, Resource(ouroboros)]
    steps = flow(a=({"ev": StartEvent, "r": Annotated[Any, Resource(ouroboros)]}, StopEvent))
    with pytest.raises(
        WorkflowValidationError, match=r"Circular resource dependency detected: .*ouroboros -> "
    ) as raised:
        validate_resources(steps, ResourceManager())
    assert isinstance(raised.value.__cause__, ResourceCycleError)


@pytest.mark.parametrize("inside_a_loop", [False, True])
def test_resources_are_created_before_the_run_where_that_is_asked_for(inside_a_loop: bool) -> None:
    made: list[str] = []

    async def fine() -> str:
        made.append("fine")
        return "fine"

    def broken() -> None:
        raise RuntimeError("no licence")

    manager = ResourceManager()
    good = flow(a=({"ev": StartEvent, "r": Annotated[Any, Resource(fine)]}, StopEvent))
    bad = flow(a=({"ev": StartEvent, "r": Annotated[Any, Resource(broken)]}, StopEvent))

    def check() -> None:
        validate_resources(good, manager)
        with pytest.raises(
            WorkflowValidationError, match=r"(?s)Resource validation failed:.*parameter 'r': no licence"
        ):
            validate_resources(bad, manager)

    async def check_in_a_loop() -> None:
        check()

    asyncio.run(check_in_a_loop()) if inside_a_loop else check()
    assert made == ["fine"]
    assert list(manager.get_all().values()) == ["fine"]
