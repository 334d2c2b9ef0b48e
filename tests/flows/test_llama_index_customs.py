"""Small customs of LlamaIndex Workflows that programs rely on, found by running programs side by side."""

from __future__ import annotations

import asyncio
import warnings
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import BaseModel, Field

from tests.support.flows import names, shown
from tests.support.waiting import turns
from tidemill.flows import Context, Event, StartEvent, StepFailedEvent, StopEvent, Workflow, catch_error, step
from tidemill.flows.encoding.serializers import JsonSerializer
from tidemill.flows.errors import ContextStateError, WorkflowRuntimeError
from tidemill.flows.runner.state_store import DictState, InMemoryStateStore
from tidemill.flows.view.representation import get_workflow_representation

colour: ContextVar[str] = ContextVar("colour", default="none")


class Part(Event):
    n: int = 0


class Totals(BaseModel):
    n: int = 0
    inner: dict[str, Any] = Field(default_factory=dict)


class Noisy(Workflow):
    @step
    async def first(self, ctx: Context, ev: StartEvent) -> StopEvent:
        ctx.write_event_to_stream(Part(n=1))
        return StopEvent(result=1)


async def test_the_streaming_queue_has_everything_that_a_run_shows() -> None:
    handler = Noisy().run()
    await handler
    with pytest.warns(DeprecationWarning, match="stream_events"):
        queue = handler.ctx.streaming_queue
    got = [await asyncio.wait_for(queue.get(), 150) for _ in range(4)]
    assert names(got) == ["StepStateChanged", "Part", "StepStateChanged", "StopEvent"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert handler.ctx.streaming_queue is queue


async def test_the_streaming_queue_is_for_the_outside_of_a_run() -> None:
    class Curious(Workflow):
        @step
        async def first(self, ctx: Context, ev: StartEvent) -> StopEvent:
            with pytest.raises(ContextStateError):
                _ = ctx.streaming_queue
            return StopEvent(result="refused")

    assert await Curious().run() == "refused"
    with pytest.raises(ContextStateError):
        _ = Context(Curious()).streaming_queue


@pytest.mark.parametrize("name", ["items", "keys", "get", "values", "copy", "to_dict", "model_fields"])
async def test_a_value_of_the_state_may_have_the_name_of_a_method(name: str) -> None:
    class Naming(Workflow):
        @step
        async def first(self, ctx: Context, ev: StartEvent) -> StopEvent:
            before = await ctx.store.get(name, default="nothing")
            await ctx.store.set(name, [1])
            async with ctx.store.edit_state() as state:
                state[name] = [*state[name], 2]
            return StopEvent(result=(before, await ctx.store.get(name)))

    handler = Naming().run()
    assert await handler == ("nothing", [1, 2])
    assert Context.from_dict(Naming(), handler.ctx.to_dict()).store is not None


async def test_a_path_into_a_list_that_leads_nowhere_is_an_attribute_error() -> None:
    store = InMemoryStateStore(DictState())
    await store.set("l", [1, {"x": 2}])
    await store.set("l.1.x", 8)
    await store.set("l.-1.y", 9)
    assert await store.get("l") == [1, {"x": 8, "y": 9}]
    for path in ("l.5", "l.x"):
        with pytest.raises(AttributeError):
            await store.set(path, 1)


async def test_a_store_can_be_written_down_and_read_again() -> None:
    plain, typed = InMemoryStateStore(DictState()), InMemoryStateStore(Totals())
    await plain.set("a.b", 1)
    await typed.set("n", 5)
    for store, kind in ((plain, "DictState"), (typed, "Totals")):
        data = store.to_dict(JsonSerializer())
        assert sorted(data) == ["state_data", "state_module", "state_type", "store_type"]
        assert data["state_type"] == kind
        again = InMemoryStateStore.from_dict(data, JsonSerializer())
        assert await again.get_state() == await store.get_state()
        assert type(await again.get_state()).__name__ == kind


async def test_a_step_sees_the_variables_of_its_run_and_not_those_of_other_steps() -> None:
    class Painting(Workflow):
        @step
        async def first(self, ev: StartEvent) -> Part:
            assert colour.get() == "outer"
            colour.set("inner")
            return Part()

        @step
        def second(self, ev: Part) -> StopEvent:
            return StopEvent(result=colour.get())

    colour.set("outer")
    assert await Painting().run() == "outer"


async def test_a_step_that_is_added_later_is_there_in_the_next_run() -> None:
    class Growing(Workflow):
        @step
        async def first(self, ev: StartEvent) -> Part:
            return Part()

        @step
        async def last(self, ev: Part) -> StopEvent:
            await asyncio.sleep(0)
            return StopEvent(result="last")

    flow = Growing()
    assert await flow.run() == "last"

    @step(workflow=Growing)
    async def extra(ev: Part) -> None:
        pass

    handler = flow.run()
    told = [event.name for event in await shown(handler, internal=True) if names([event]) == ["StepStateChanged"]]
    assert "extra" in told
    assert await handler == "last"


def test_the_decorators_take_their_function_by_name() -> None:
    class Named(Workflow):
        @step(func=None)
        async def first(self, ev: StartEvent) -> StopEvent:
            return StopEvent()

    assert Named().validate() is False
    assert callable(catch_error(func=None))


def test_the_allowed_types_of_a_serializer_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        JsonSerializer([Part])  # pyright: ignore[reportCallIssue]
    assert JsonSerializer(allowed_types=[Part]).deserialize(JsonSerializer().serialize(Part(n=3))) == Part(n=3)


async def test_the_result_can_be_had_from_the_context_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    handler = Noisy().run()
    await handler
    assert handler.ctx.get_result() == 1
    assert [each for each in recwarn if each.category is DeprecationWarning] == []


async def test_a_verbose_run_says_what_waits_and_calls_no_failure_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    class Busy(Workflow):
        @step
        async def first(self, ev: StartEvent) -> list[Part]:
            return [Part(n=1), Part(n=2)]

        @step(num_workers=1)
        async def second(self, ev: Part) -> StopEvent:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await Busy(verbose=True).run()
    said = capsys.readouterr().out
    assert "[second] enqueued (waiting for capacity)" in said
    assert "[result]" not in said


async def test_a_step_that_has_ended_cannot_wait_any_more() -> None:
    left: list[asyncio.Task[Any]] = []

    class Hasty(Workflow):
        @step
        async def first(self, ctx: Context, ev: StartEvent) -> Part:
            async def later() -> Any:
                await turns()
                return await ctx.wait_for_event(Part)

            left.append(asyncio.create_task(later()))
            return Part()

        @step
        async def second(self, ev: Part) -> StopEvent:
            await asyncio.wait(left)
            return StopEvent(result=str(left[0].exception()))

    assert "this step has ended" in await Hasty().run()


async def test_a_retry_policy_that_fails_fails_the_run() -> None:
    class Broken:
        def next(self, elapsed_time: float, attempts: int, error: Exception) -> float | None:
            raise RuntimeError("the policy is broken")

    class Trying(Workflow):
        @step(retry_policy=Broken())  # pyright: ignore[reportArgumentType]
        async def first(self, ev: StartEvent) -> StopEvent:
            raise KeyError("the step failed")

    with pytest.raises(RuntimeError, match="the policy is broken") as caught:
        await Trying(timeout=60).run()
    assert isinstance(caught.value.__context__, KeyError)


class MoreTotals(Totals):
    more: str = "kept"


async def test_a_state_of_a_parent_class_replaces_only_the_fields_that_it_has() -> None:
    class Typed(Workflow):
        @step
        async def first(self, ctx: Context[MoreTotals], ev: StartEvent) -> Part:
            await ctx.store.set("more", "changed")
            await ctx.store.set_state(Totals(n=7))  # pyright: ignore[reportArgumentType]
            return Part()

        @step
        async def then(self, ctx: Context[MoreTotals], ev: Part) -> StopEvent:
            state = await ctx.store.get_state()
            with pytest.raises(ValueError, match="State must be of type MoreTotals or a parent type, got DictState"):
                await ctx.store.set_state(DictState())  # pyright: ignore[reportArgumentType]
            return StopEvent(result=(type(state).__name__, state.n, state.more))

    assert await Typed().run() == ("MoreTotals", 7, "changed")


async def test_an_event_cannot_be_sent_to_a_step_that_collects_a_batch() -> None:
    class Collecting(Workflow):
        @step
        async def fan(self, ctx: Context, ev: StartEvent) -> list[Part]:
            ctx.send_event(Part(n=9), step="join")
            return [Part(n=1)]

        @step
        async def join(self, parts: list[Part]) -> StopEvent:
            return StopEvent(result=len(parts))

    with pytest.raises(WorkflowRuntimeError, match="was sent to collect step 'join'"):
        await Collecting().run()


class Other(Event):
    n: int = 0


@pytest.mark.parametrize("last", [Part, Other])
async def test_a_failed_set_of_events_is_known_by_the_one_that_came_last(last: type[Event]) -> None:
    class Pairing(Workflow):
        @step
        async def first(self, ctx: Context, ev: StartEvent) -> Part | Other | None:
            for kind in sorted((Part, Other), key=lambda kind: kind is last):
                ctx.send_event(kind(n=1))

        @step
        async def pair(self, part: Part, other: Other) -> StopEvent:
            raise ValueError("no pair")

        @catch_error
        async def caught(self, ev: StepFailedEvent) -> StopEvent:
            return StopEvent(result=ev.input_event)

    assert await Pairing().run() == last(n=1)


async def test_one_event_of_a_class_that_is_declared_only_in_a_list_is_refused() -> None:
    class Bare(Workflow):
        @step
        async def fan(self, ev: StartEvent) -> list[Part] | Other:
            return Part(n=1)  # pyright: ignore[reportReturnType]

        @step
        async def join(self, parts: list[Part]) -> StopEvent:
            return StopEvent()

        @step
        async def other(self, ev: Other) -> StopEvent:
            return StopEvent()

    with pytest.raises(WorkflowRuntimeError, match="returned a bare Part"):
        await Bare().run()


def test_a_step_that_accepts_subclasses_is_drawn_with_all_of_them() -> None:
    class Special(Part):
        pass

    class Drawn(Workflow):
        @step
        async def first(self, ev: StartEvent) -> Special | Other | Part: ...

        @step(accept_event_subclasses=True)
        async def then(self, ev: Event) -> StopEvent: ...

    graph = get_workflow_representation(Drawn)
    taken = {edge.source for edge in graph.edges if edge.target == "then"}
    assert taken == {"Event", "StartEvent", "Part", "Special", "Other"}
    between = [(edge.source, edge.target, edge.label) for edge in graph.filter_by_node_type("event").edges]
    assert between == [("first", "then", "Special")]
