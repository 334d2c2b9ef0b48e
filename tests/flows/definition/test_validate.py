"""Which workflows are refused before they run, and why."""

from __future__ import annotations

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
from tidemill.flows.definition.resource import Resource, ResourceConfig
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.definition.validate import (
    check_names,
    check_resource_cycles,
    find_start_class,
    find_state_type,
    find_stop_class,
    validate_resource_configs,
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
        ({"a": (StartEvent, A | StopEvent)}, "no step takes A"),
        ({"a": (StartEvent, A | B | StopEvent)}, "no step takes A, B"),
        ({"a": (StartEvent, Event | StopEvent)}, "no step takes Event"),
        ({"a": (StartEvent, StepFailedEvent | StopEvent)}, "no step takes StepFailedEvent"),
        ({"a": (StartEvent, StopEvent), "b": (A, StopEvent)}, "no step returns A"),
        (
            {"a": (StartEvent, StopEvent), "b": (A, StopEvent, {"skip_graph_checks": ["reachability"]})},
            "no step returns",
        ),
        ({"a": (StartEvent, SubA), "b": (A, StopEvent)}, "no step returns A"),
        ({"a": (StartEvent, A), "b": (SubA, StopEvent)}, "no step returns SubA"),
        ({"a": (StartEvent, StopEvent), "b": (StopEvent, Nothing)}, "takes StopEvent"),
        ({"a": (StartEvent, StopEvent), "b": (End, StopEvent)}, "takes End"),
        ({"a": (StartEvent, StopEvent), "b": (A, B), "c": (B, A)}, r"(?s)reachability.*b, c.*dead_end.*b, c"),
        ({"a": (StartEvent, StopEvent), "b": (A, A | StopEvent)}, "reachability"),
        ({"a": (StartEvent, StopEvent), "b": (InputRequiredEvent, Ask)}, "no step returns InputRequiredEvent"),
        ({"a": (StartEvent, StopEvent), "b": (StepFailedEvent, StopEvent, {"plain": True})}, "reachability"),
        ({"a": (StartEvent, A | StopEvent), "b": (A, A)}, "dead_end.*b"),
        ({"a": (StartEvent, A), "b": (A, Nothing), "c": (Answer, StopEvent)}, "dead_end.*a"),
        ({"a": (StartEvent, HumanResponseEvent | StopEvent)}, "terminal_event.*HumanResponseEvent"),
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, A)}, "no step takes A"),
        # batches and sets
        ({"a": (StartEvent, A), "j": (list[A], StopEvent)}, "no batch to collect"),
        ({"a": (StartEvent, A | B), "b": (A, list[C]), "j": (list[B | C], StopEvent)}, "which B follows"),
        ({"j": (list[StartEvent], StopEvent)}, "no batch to collect"),
        ({"a": (StartEvent, list[A]), "b": (list[A], B), "j": (list[B], StopEvent)}, "no batch to collect"),
        (
            {"a": (StartEvent, list[A]), "b": (A, Ask), "c": (Answer, B), "j": (list[B], StopEvent)},
            "no batch to collect",
        ),
        ({"a": (StartEvent, A), "b": (A, list[B]), "j": ({"x": A, "y": B}, StopEvent)}, "never meet"),
        ({"a": (StartEvent, list[A]), "j": ({"x": Answer, "y": A}, StopEvent)}, "never meet"),
        # error handlers
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, StopEvent), "i": (StepFailedEvent, StopEvent)}, "h, i"),
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, StopEvent, {"for_steps": ["z"]})}, "does not exist"),
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, StopEvent, {"for_steps": ["h"]})}, "handler itself"),
        ({"a": (StartEvent, StopEvent), "h": (StepFailedEvent, StopEvent, {"for_steps": ["a", "a"]})}, "two handlers"),
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
    with pytest.raises(WorkflowValidationError, match="no check everything"):
        check_names({"everything"})


def test_a_workflow_has_one_beginning_and_one_end() -> None:
    steps = flow(a=(Begin, A), b=(A, End))
    assert find_start_class(steps, "Flow") is Begin
    assert find_stop_class(steps, "Flow") is End


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ({}, "no StartEvent is taken"),
        ({"a": (A, StopEvent)}, "no StartEvent is taken"),
        ({"a": (Event, StopEvent, OPEN)}, "no StartEvent is taken"),
        ({"a": (StartEvent, StopEvent), "b": (Begin, StopEvent)}, "more than one class of StartEvent"),
    ],
    ids=str,
)
def test_a_workflow_without_one_beginning_is_refused(steps: dict[str, Declared], told: str) -> None:
    with pytest.raises(WorkflowConfigurationError, match=told):
        find_start_class(flow(**steps), "Flow")


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ({"a": (StartEvent, Nothing)}, "no StopEvent is returned"),
        ({"a": (StartEvent, int)}, "no StopEvent is returned"),
        ({"a": (StartEvent, Any)}, "no StopEvent is returned"),
        ({"a": (StartEvent, StopEvent | End)}, "more than one class of StopEvent"),
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
        with pytest.raises(WorkflowValidationError, match="step a, parameter c"):
            validate_resource_configs(flow(a=({"ev": StartEvent, "c": Annotated[State, resource]}, StopEvent)))


def test_a_resource_that_needs_itself_is_found_before_the_run() -> None:
    def ouroboros(tail: Any) -> Any: ...

    ouroboros.__annotations__["tail"] = Annotated[Any, Resource(ouroboros)]
    steps = flow(a=({"ev": StartEvent, "r": Annotated[Any, Resource(ouroboros)]}, StopEvent))
    with pytest.raises(ResourceCycleError):
        check_resource_cycles(steps)
