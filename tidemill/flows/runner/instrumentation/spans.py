"""Spans of `llama_index_instrumentation` for runs and steps, for the tracing products that are built on it.

They are created only if the program has imported that package. A run is a span `Article.run`, and each attempt of a
step is a span `Article.write` inside it, so that the spans of what the step calls (models, tools, retrievers) are
inside that. A durable run has one span in each process that drives it.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context as Variables
from functools import cache
from typing import Any
from uuid import uuid4

from tidemill.core.errors import words_of
from tidemill.flows.definition.events import CollectionReleaseEvent, Event, StopEvent
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.errors import WorkflowCancelledByUser

PACKAGE = "llama_index_instrumentation"
_MOST, _MOST_OF_VALUE = 200, 50


def are_wanted() -> bool:
    """Return whether this process uses `llama_index_instrumentation`."""
    return PACKAGE in sys.modules


def no_span() -> None:
    """End the span of a run that has none."""


def enter_run(
    workflow: object, run_id: str, event: Event | None, result: asyncio.Future[Any], variables: Variables
) -> Callable[[], None]:
    """Open the span of a run; the steps of the run, in `variables`, are inside it.

    It ends when the result is there; the returned function ends it at once.
    """
    if not are_wanted():
        return no_span
    exit_run = variables.run(_enter_run, workflow, run_id, event)
    open_spans = [exit_run]

    def end(*_: Any) -> None:
        if open_spans:
            variables.run(open_spans.pop(), result)

    result.add_done_callback(end)
    return end


def _enter_run(workflow: object, run_id: str, event: Event | None) -> Callable[[asyncio.Future[Any]], None]:
    at = _instrumentation()
    number, parent = f"{type(workflow).__name__}.run-{uuid4()}", at.active_span_id.get()
    tags = {**at.active_instrument_tags.get(), "llamaindex.run_id": run_id}
    at.active_instrument_tags.set(tags)
    at.active_span_id.set(number)
    arguments = inspect.signature(_run_arguments).bind(event)
    if event is not None:
        tags = {**tags, "llamaindex.start_event": summary_of(event)}
    with at.instrument_tags(tags):
        at.dispatcher.span_enter(id_=number, bound_args=arguments, instance=workflow, parent_id=parent, tags=tags)

    def exit_run(future: asyncio.Future[Any]) -> None:
        outcome = None
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or isinstance(error, WorkflowCancelledByUser):
            at.dispatcher.event(at.SpanCancelledEvent(reason="workflow cancelled by user"))
        elif error is not None:
            at.dispatcher.event(at.SpanDropEvent(span_id=number, err_str=words_of(error)))
            at.dispatcher.span_drop(id_=number, bound_args=arguments, instance=workflow, err=error)
            return
        else:
            outcome = future.result()
            at.dispatcher.event(at.WorkflowRunOutputEvent(output=summary_of(outcome)))
        at.dispatcher.span_exit(id_=number, bound_args=arguments, instance=workflow, result=outcome)

    return exit_run


async def call_in_span(
    spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[], Awaitable[Any]]
) -> Any:
    """Call a step inside a span of its own."""
    at = _instrumentation()
    number = f"{spec.function.__qualname__}-{uuid4()}"
    bound = inspect.signature(spec.function).bind(*args, **kwargs)
    if args:
        bound.arguments.pop(next(iter(bound.arguments)))  # Without the workflow itself, as for a bound method.
    given = kwargs[spec.event_name]
    if isinstance(given, list):
        given = CollectionReleaseEvent(events=given)
    tags = {
        **at.active_instrument_tags.get(),
        "llamaindex.step.input_event": type(given).__name__,
        "llamaindex.step.input_summary": summary_of(given),
    }
    with at.instrument_tags(tags), _active(at.active_span_id, number) as parent:
        at.dispatcher.span_enter(id_=number, bound_args=bound, instance=None, parent_id=parent, tags=tags)
        try:
            result = await call()
        except asyncio.CancelledError:
            at.dispatcher.event(at.SpanCancelledEvent(reason="step cancelled"))
            at.dispatcher.span_exit(id_=number, bound_args=bound, instance=None, result=None)
            raise
        except BaseException as error:
            at.dispatcher.event(at.SpanDropEvent(span_id=number, err_str=words_of(error)))
            at.dispatcher.span_drop(id_=number, bound_args=bound, instance=None, err=error)
            raise
        if isinstance(result, Event):
            at.dispatcher.event(at.WorkflowStepOutputEvent(output=summary_of(result)))
        at.dispatcher.span_exit(id_=number, bound_args=bound, instance=None, result=result)
        return result


def summary_of(event: Event) -> str:
    """Return an event in one short line, for the attributes of a span."""
    values = {**vars(event), **event._data}
    if isinstance(event, StopEvent) and event.result is not None:
        values = {"result": event.result, **values}
    line = f"{type(event).__name__}({', '.join(f'{name}={_short(value)}' for name, value in values.items())})"
    return line if len(line) <= _MOST else f"{line[: _MOST - 3]}..."


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) > _MOST_OF_VALUE:
        return repr(f"{value[:_MOST_OF_VALUE]}...")
    if isinstance(value, list) and len(value) > 3:
        return f"[{len(value)} items]"
    if isinstance(value, dict) and len(value) > 3:
        return f"{{{len(value)} keys}}"
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a user's __repr__ must not fail a step
        return type(value).__name__


@contextmanager
def _active(variable: Any, number: str) -> Iterator[str | None]:
    before = variable.get()
    token = variable.set(number)
    try:
        yield before
    finally:
        variable.reset(token)


def _run_arguments(start_event: Event | None = None) -> None:
    """The arguments that the span of a run is shown with."""


@cache
def _instrumentation() -> Any:
    from tidemill.flows.runner.instrumentation import (
        span_events,  # needs `llama_index_instrumentation`, which may not be installed
    )

    return span_events
