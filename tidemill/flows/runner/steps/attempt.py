"""One attempt of a step: its arguments, the call, and the outcome that goes to the reducer as a tick."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tidemill.core.errors import words_of
from tidemill.core.user_traceback import user_traceback
from tidemill.flows.definition.events import Event
from tidemill.flows.definition.retry_policy import next_delay
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.encoding.copies import copy_mutable
from tidemill.flows.errors import StepDiverged, WorkflowRuntimeError
from tidemill.flows.reducer.mailbox import Sent
from tidemill.flows.reducer.state.flow_state import Work
from tidemill.flows.reducer.step_ticks import Ended, StepFailure
from tidemill.flows.runner.instrumentation import spans
from tidemill.flows.runner.replay.local_timers import limited
from tidemill.flows.runner.replay.record_lanes import current_owner
from tidemill.flows.runner.steps.context import Context
from tidemill.flows.runner.steps.current_step import enter_step

if TYPE_CHECKING:
    from tidemill.flows.runner.in_memory import FlowRun


async def run_attempt(run: FlowRun, work: Work) -> None:
    """Run one attempt of a step and post its outcome. Never raises."""
    spec = run.declared.steps[work.step]
    enter_step(run, work.id)
    # A coroutine that takes no context gets one only if it asks for it.
    needs = spec.context_parameter is not None or work.record or not spec.is_async or work.id not in run._tasks
    context = run.step_context(work) if needs else None
    run.begun(spec, work)
    replay = None
    try:
        given = copy_mutable(work.input) if run.is_durable else work.input
        kwargs = dict(given) if isinstance(given, dict) else {spec.event_name: given}
        if spec.context_parameter is not None:
            kwargs[spec.context_parameter] = context
        if spec.resources:
            kwargs.update(await run.declared.resource_manager.get_for_call(spec.resources))
        timeout = None if spec.timeout is None else run.time_left(spec.timeout, work)
        if spec.is_async and timeout is None and not run.is_traced:
            result = await (spec.function(**kwargs) if spec.is_free else spec.function(run.workflow, **kwargs))
        else:
            result = await _call(run, spec, work, kwargs, timeout)
        events, listed = _events_of(spec, result)
        sent: tuple[Sent, ...] = ()
        if (used := run._contexts.get(work.id)) is not None:
            if (replay := used._replay_begun) is not None:
                replay.check_end()
                if replay.is_changed_in_place:
                    await used._write_changed_in_place()
            sent = used._unsent()
        ended = Ended(events, listed, sent)
    except StepDiverged:
        return
    except asyncio.CancelledError as error:
        if not run.is_running:
            return
        ended = run.failure(spec, work, _as_exception(error))
    except Exception as error:  # noqa: BLE001 - every exception of a step becomes its outcome
        ended = run.failure(spec, work, error)
    except BaseException as error:  # noqa: BLE001 - for example SystemExit
        ended = run.failure(spec, work, run.exit_of(spec, error))
    finally:
        if (used := run._contexts.pop(work.id, None)) is not None and (replay := used._replay_begun) is not None:
            replay.close()
        run._tasks.pop(work.id, None)
        run._questions.end(work.id)
    if replay is None or replay.diverged is None:
        run.ended(spec, work, ended)


def _call(run: FlowRun, spec: StepSpec, work: Work, kwargs: dict[str, Any], timeout: float | None) -> Awaitable[Any]:
    """Call a step in a thread, in a span, or with a timeout."""
    args = () if spec.is_free else (run.workflow,)
    begin: Callable[[], Any] = partial(spec.function, *args, **kwargs)
    what = f"step {spec.name} of run {run.run_id}"
    if not spec.is_async:
        begin = partial(run.threads.run, partial(_in_root, run.step_context(work), begin), what, timeout)
        timeout = None  # It begins with the thread.
    call = spans.call_in_span(spec, args, kwargs, begin) if run.is_traced else begin()
    return call if timeout is None else limited(call, timeout, f"{what} took longer than {spec.timeout:g} s")


def _in_root(context: Context[Any], call: Callable[[], Any]) -> Any:
    """Call a plain step in its thread, which is its lane."""
    context._set_owner(current_owner())
    return call()


def _events_of(spec: StepSpec, result: Any) -> tuple[tuple[Any, ...], bool]:
    """Return the events that a step has returned, and whether they are a batch."""
    if result is None:
        return (), False
    if isinstance(result, list) and spec.listed_return_types:
        for each in result:
            if not isinstance(each, Event):
                raise WorkflowRuntimeError(
                    f"Step function {spec.name} returned a list containing {type(each).__name__} instead of an Event "
                    "instance."
                )
        return tuple(result), True
    if not isinstance(result, Event):
        raise WorkflowRuntimeError(
            f"Step function {spec.name} returned {type(result).__name__} instead of an Event instance."
        )
    if spec.listed_return_types and not isinstance(result, spec.bare_return_types):
        raise WorkflowRuntimeError(
            f"Step function {spec.name} returned a bare {type(result).__name__} but its return annotation only "
            "declares it inside a list. Return a list with it, or annotate it beside the list: -> list[A] | B"
        )
    return (result,), False


def failed_attempt(spec: StepSpec, work: Work, error: Exception, *, elapsed: float, run_id: str) -> Ended:
    """Return the outcome of an attempt that has failed, with the decision of its retry policy."""
    delay, message = None, words_of(error)
    if spec.retry_policy is not None:
        try:
            delay = next_delay(
                spec.retry_policy,
                elapsed=elapsed,
                attempts=work.attempt,
                error=error,
                seed=crc32(f"{run_id}/{work.id}/{work.attempt}".encode()),
            )
        except Exception as worse:  # noqa: BLE001 - a retry policy is user code
            worse.__context__ = error
            error, message = worse, f"the retry policy of step {spec.name} failed: {worse}"
    trace = user_traceback(error)
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return Ended(error=StepFailure(kind, message, trace, error), retry_in=delay)


def exit_failure(spec: StepSpec, error: BaseException) -> Exception:
    """Return the failure of a step that has raised what is no `Exception`."""
    failure = WorkflowRuntimeError(f"step {spec.name} raised {type(error).__name__}: {words_of(error)}")
    failure.__cause__ = error
    return failure


def _as_exception(error: BaseException) -> Exception:
    made = WorkflowRuntimeError("the step cancelled itself")
    made.__cause__ = error
    return made
