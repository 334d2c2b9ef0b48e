"""Steps: what is read of a function, and which functions are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, Generic, Optional, TypeVar

import pytest

from tidemill.flows import retry_policy
from tidemill.flows.definition.collect import All, Cardinality, Collect, Take
from tidemill.flows.definition.decorators import attach_step, catch_error, step, step_spec, steps_of
from tidemill.flows.definition.events import Event, StartEvent, StepFailedEvent, StopEvent
from tidemill.flows.definition.resource import Resource
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.errors import WorkflowValidationError

T = TypeVar("T")


class Context(Generic[T]):
    is_flow_context: ClassVar[bool] = True


class State:
    pass


class Draft(Event):
    pass


class LongDraft(Draft):
    pass


class Note(Event):
    pass


class Flow:
    @classmethod
    def add_step(cls, function: Any) -> None:
        attach_step(cls, function)


def spec_of(function: Any) -> StepSpec:
    spec = step_spec(function)
    assert spec is not None
    return spec


def get_client() -> str:
    return "client"


def test_a_step_is_read_from_its_annotations() -> None:
    class Writing(Flow):
        @step
        async def write(
            self, client: Annotated[str, Resource(get_client)], ev: StartEvent | Note, ctx: Context[State]
        ) -> Draft | StopEvent | None: ...

    spec = spec_of(Writing.write)
    assert spec.name == "write"
    assert spec.accepted_events == (StartEvent, Note)
    assert spec.event_name == "ev"
    assert spec.return_types == spec.bare_return_types == (Draft, StopEvent)
    assert not spec.is_fan_out
    assert (spec.context_parameter, spec.context_state_type) == ("ctx", State)
    assert [(one.name, one.type_annotation) for one in spec.resources] == [("client", str)]
    assert (spec.num_workers, spec.retry_policy, spec.timeout, spec.queue) == (4, None, None, None)
    assert spec.is_async
    assert not spec.is_free


def test_the_function_stays_what_it_was() -> None:
    async def write(self: Any, ev: StartEvent) -> StopEvent:
        return StopEvent(result=ev.topic)

    write.__qualname__ = "Flow.write"
    assert step(write) is write


def test_options_are_kept() -> None:
    policy = retry_policy()

    class Writing(Flow):
        @step(num_workers=2, retry_policy=policy, timeout="1m30s", queue="gpu", accept_event_subclasses=True)
        def write(self, ev: StartEvent) -> StopEvent: ...

    spec = spec_of(Writing.write)
    assert (spec.num_workers, spec.retry_policy, spec.timeout, spec.queue) == (2, policy, 90.0, "gpu")
    assert not spec.is_async
    assert spec.accepts(StartEvent)


def test_an_event_is_accepted_by_its_exact_class_unless_subclasses_are_welcome() -> None:
    class Writing(Flow):
        @step
        async def strict(self, ev: Draft) -> StopEvent: ...

        @step(accept_event_subclasses=True)
        async def open(self, ev: Draft) -> StopEvent: ...

    assert spec_of(Writing.strict).accepts(Draft)
    assert not spec_of(Writing.strict).accepts(LongDraft)
    assert spec_of(Writing.open).accepts(LongDraft)
    assert not spec_of(Writing.open).accepts(Note)


def test_a_returned_list_is_a_batch() -> None:
    class Writing(Flow):
        @step
        async def split(self, ev: StartEvent) -> list[Draft | Note] | StopEvent: ...

    spec = spec_of(Writing.split)
    assert spec.is_fan_out
    assert spec.listed_return_types == (Draft, Note)
    assert spec.bare_return_types == (StopEvent,)
    assert set(spec.return_types) == {Draft, Note, StopEvent}


def test_a_list_parameter_collects_a_batch() -> None:
    class Writing(Flow):
        @step
        async def whole(self, drafts: list[Draft | Note]) -> StopEvent: ...

        @step
        async def some(self, drafts: Annotated[list[Draft], Collect(Take(2))]) -> StopEvent: ...

    assert spec_of(Writing.whole).collection_param == ("drafts", (Draft, Note))
    assert spec_of(Writing.whole).collection_policy == Collect(All())
    assert spec_of(Writing.whole).accepted_events == (Draft, Note)
    assert spec_of(Writing.some).collection_policy == Collect(Take(2))


def test_several_event_parameters_take_one_of_each() -> None:
    class Writing(Flow):
        @step
        async def pair(self, draft: Draft, note: Note) -> StopEvent: ...

        @step
        async def twins(self, first: Draft, second: Draft) -> StopEvent: ...

    assert spec_of(Writing.pair).collect_params == (("draft", Draft), ("note", Note))
    assert spec_of(Writing.pair).accepted_events == (Draft, Note)
    assert spec_of(Writing.twins).collect_params == (("first", Draft), ("second", Draft))
    assert spec_of(Writing.twins).accepted_events == (Draft,)


def test_annotations_may_name_what_is_defined_around_the_step() -> None:
    class Local(Event):
        pass

    class Writing(Flow):
        class Inner(Event):
            pass

        @step
        async def one(self, ev: Local) -> Inner: ...  # pyright: ignore[reportUndefinedVariable]

        @step(num_workers=1)
        async def two(self, ev: Inner) -> StopEvent: ...

    assert spec_of(Writing.one).accepted_events == (Local,)
    assert spec_of(Writing.one).return_types == (Writing.Inner,)
    assert spec_of(Writing.two).accepted_events == (Writing.Inner,)


def test_an_optional_event_is_an_event() -> None:
    class Writing(Flow):
        @step
        async def write(self, ev: Optional[StartEvent]) -> Optional[StopEvent]: ...  # noqa: UP045

    assert spec_of(Writing.write).accepted_events == (StartEvent,)


def refused(match: str, **options: Any) -> Any:
    """Expect a function to be refused as a step."""

    def check(function: Any) -> None:
        function.__qualname__ = f"Flow.{function.__name__}"
        with pytest.raises(WorkflowValidationError, match=match):
            step(**options)(function)

    return check


def test_a_function_that_makes_no_step_is_refused_when_it_is_declared() -> None:
    @refused("must have at least one parameter annotated as type Event")
    async def unannotated(self: Any, ev) -> StopEvent: ...

    @refused("must have at least one parameter annotated as type Event")
    async def without_parameters(self: Any) -> StopEvent: ...

    @refused("must have at least one parameter annotated as type Event")
    async def with_a_number(self: Any, ev: int) -> StopEvent: ...

    @refused("must have at least one parameter annotated as type Event")
    async def with_either_list(self: Any, ev: list[Draft] | list[Note]) -> StopEvent: ...

    @refused("must be annotated with their type")
    async def without_return(self: Any, ev: StartEvent): ...

    @refused("cannot be combined with other event parameters")
    async def with_list_and_event(self: Any, ev: Draft, evs: list[Draft]) -> StopEvent: ...

    @refused("declare a single event type, but parameter 'ev' declares 2")
    async def with_union_in_a_set(self: Any, ev: Draft | Note, other: Note) -> StopEvent: ...

    @refused("Failed to resolve type annotations")
    async def with_unknown_name(self: Any, ev: Nowhere) -> StopEvent: ...  # noqa: F821  # pyright: ignore

    @refused("at most one list")
    async def with_two_lists(self: Any, ev: list[Draft], evs: list[Draft]) -> StopEvent: ...

    @refused("Collect marker")
    async def with_a_mark_on_one_event(self: Any, ev: Annotated[Draft, Collect()]) -> StopEvent: ...

    @refused(r"must be All\(\) or Take\(n\)")
    async def with_another_cardinality(self: Any, ev: Annotated[list[Draft], Collect(Cardinality())]) -> StopEvent: ...

    @refused("Async-iterator fan-out")
    async def with_an_iterator(self: Any, ev: Draft) -> AsyncIterator[Draft]: ...

    @refused("num_workers", num_workers=0)
    async def without_workers(self: Any, ev: StartEvent) -> StopEvent: ...

    @refused("num_workers", num_workers=2.5)
    async def with_half_a_worker(self: Any, ev: StartEvent) -> StopEvent: ...

    @refused("timeout", timeout="soon")
    async def with_vague_timeout(self: Any, ev: StartEvent) -> StopEvent: ...

    @refused("queue", queue="")
    async def with_nameless_queue(self: Any, ev: StartEvent) -> StopEvent: ...

    @refused("retry_policy", retry_policy=3)
    async def with_bad_policy(self: Any, ev: StartEvent) -> StopEvent: ...


def test_a_free_function_belongs_to_the_workflow_that_it_names() -> None:
    class Writing(Flow):
        @step
        async def write(self, ev: StartEvent) -> Draft: ...

    @step(workflow=Writing)
    async def check(ctx: Context, ev: Draft) -> StopEvent: ...

    class Longer(Writing):
        pass

    assert list(steps_of(Writing)) == list(steps_of(Longer)) == ["write", "check"]
    assert steps_of(Writing)["check"].is_free
    assert "check" not in steps_of(Flow)


def test_a_free_function_without_a_workflow_is_refused() -> None:
    with pytest.raises(WorkflowValidationError, match="workflow=YourWorkflow"):

        @step
        async def check(ev: Draft) -> StopEvent: ...


def test_a_step_name_is_used_once_and_a_plain_function_is_no_step() -> None:
    class Writing(Flow):
        @step
        async def write(self, ev: StartEvent) -> StopEvent: ...

    with pytest.raises(WorkflowValidationError, match="step write is already part of this workflow"):

        @step(workflow=Writing)
        async def write(ev: StartEvent) -> StopEvent: ...

    with pytest.raises(WorkflowValidationError, match="missing the `@step` decorator"):
        Writing.add_step(lambda: None)


def test_a_subclass_replaces_and_removes_steps_by_name() -> None:
    class Base(Flow):
        @step
        async def one(self, ev: StartEvent) -> Draft: ...

        @step
        async def two(self, ev: Draft) -> StopEvent: ...

    class Other(Base):
        @step
        async def one(self, ev: StartEvent) -> StopEvent: ...

        async def two(self, ev: Draft) -> StopEvent: ...

    assert list(steps_of(Base)) == ["one", "two"]
    assert list(steps_of(Other)) == ["one"]
    assert steps_of(Other)["one"].return_types == (StopEvent,)


def test_a_static_method_is_no_step() -> None:
    class Writing(Flow):
        @staticmethod
        @step
        async def write(ev: StartEvent) -> StopEvent: ...

    assert steps_of(Writing) == {}


def test_an_error_handler_is_read_with_its_budget() -> None:
    class Writing(Flow):
        @catch_error
        async def any(self, ctx: Context, ev: StepFailedEvent) -> StopEvent: ...

        @catch_error(for_steps=["write"], max_recoveries=3)
        async def some(self, ev: StepFailedEvent) -> Draft: ...

    everything, some = spec_of(Writing.any), spec_of(Writing.some)
    assert everything.is_handler
    assert (everything.catch_error_for_steps, everything.catch_error_max_recoveries) == (None, 1)
    assert (some.catch_error_for_steps, some.catch_error_max_recoveries) == (("write",), 3)


@pytest.mark.parametrize(
    "options", [{"max_recoveries": 0}, {"max_recoveries": True}, {"for_steps": "write"}, {"for_steps": ("write",)}]
)
def test_an_error_handler_with_options_that_mean_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(WorkflowValidationError, match="catch_error"):
        catch_error(**options)


def test_an_error_handler_takes_failures_only() -> None:
    async def wrong(self: Any, ev: StepFailedEvent | Draft) -> StopEvent: ...

    with pytest.raises(WorkflowValidationError, match="must accept StepFailedEvent"):
        catch_error(wrong)


@pytest.mark.parametrize("n", [0, -1, "x"])
def test_a_number_of_events_to_take_is_one_or_more(n: Any) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Take(n)
