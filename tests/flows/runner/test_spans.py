"""Runs and steps are spans of `llama_index_instrumentation`, for the tracing products that are built on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.durable import Go, running_run_worker
from tidemill import App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step

instrumentation = pytest.importorskip("llama_index_instrumentation")


class Made(Event):
    n: int


class Writing(Workflow):
    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Made:
        return Made(n=1)

    @step
    async def end(self, ctx: Context, ev: Made) -> StopEvent:
        if ev.n != 1:
            raise ValueError("not one")
        await ctx.wait_for_event(Go)
        return StopEvent(result="written")


class Failing(Workflow):
    @step
    async def fail(self, ev: StartEvent) -> StopEvent:
        raise ValueError("not today")


@pytest.fixture
def spans() -> Iterator[list[tuple[str, str, str | None]]]:
    """What happens to spans: what, the name of the span without its number, and that of the span around it."""
    from llama_index_instrumentation import get_dispatcher
    from llama_index_instrumentation.span.base import BaseSpan
    from llama_index_instrumentation.span_handlers import BaseSpanHandler

    seen: list[tuple[str, str, str | None]] = []

    def name(number: str | None) -> str | None:
        return None if number is None else number.partition("-")[0].rpartition("<locals>.")[2]

    class Noting(BaseSpanHandler[BaseSpan]):
        def new_span(self, id_: str, bound_args: Any, parent_span_id: str | None = None, **rest: Any) -> BaseSpan:
            seen.append(("enter", name(id_) or "", name(parent_span_id)))
            return BaseSpan(id_=id_, parent_id=parent_span_id)

        def prepare_to_exit_span(self, id_: str, **rest: Any) -> BaseSpan | None:
            seen.append(("exit", name(id_) or "", None))
            return self.open_spans.get(id_)

        def prepare_to_drop_span(self, id_: str, **rest: Any) -> BaseSpan | None:
            seen.append(("drop", name(id_) or "", None))
            return self.open_spans.get(id_)

    root = get_dispatcher()
    handler = Noting()
    root.add_span_handler(handler)
    yield seen
    root.span_handlers.remove(handler)


STEPS = [
    ("enter", "Writing.run", None),
    ("enter", "Writing.begin", "Writing.run"),
    ("exit", "Writing.begin", None),
    ("enter", "Writing.end", "Writing.run"),
    ("exit", "Writing.end", None),
    ("exit", "Writing.run", None),
]


async def test_a_run_in_memory_is_a_span_with_one_for_each_step_inside(spans: list[Any]) -> None:
    handler = Writing(timeout=60).run()
    await handler.send_event(Go(word="on"))
    assert await handler == "written"
    assert spans == STEPS


async def test_a_durable_run_has_the_same_spans_in_the_process_that_drives_it(app: App, spans: list[Any]) -> None:
    app.workflow(Writing)
    async with running_run_worker(app):
        run = await app.start(Writing)
        await run.send_event(Go(word="on"))
        assert await run.result(timeout=120) == "written"
    assert spans == STEPS


async def test_a_step_that_fails_drops_its_span_and_that_of_its_run(spans: list[Any]) -> None:
    with pytest.raises(ValueError, match="not today"):
        await Failing(timeout=60).run()
    assert [(what, name) for what, name, _ in spans] == [
        ("enter", "Failing.run"),
        ("enter", "Failing.fail"),
        ("drop", "Failing.fail"),
        ("drop", "Failing.run"),
    ]
