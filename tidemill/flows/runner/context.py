"""What a step can do beside returning events, and how the outside looks at a run: `Context`.

    await ctx.store.set("n", 1)                        state that the steps share
    ctx.send_event(Draft(text="..."))                  to whoever accepts it; `step="review"` for one step
    ctx.write_event_to_stream(Progress(done=3))        shown to whoever follows the run
    events = ctx.collect_events(ev, [Draft] * 3)       None until three are there
    answer = await ctx.wait_for_event(Approved, waiter_event=NeedsApproval())
    data = await ctx.once("charge", charge_card)       a side effect that is not repeated when the step is

A context has three faces: before its run, inside a step, and outside of a run. What makes no sense for a face raises
`ContextStateError`.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import Event, StopEvent
from tidemill.flows.definition.retry_policy import RetryInfo
from tidemill.flows.definition.validate import find_state_type
from tidemill.flows.encoding.context_dict import (
    VERSION,
    check_version,
    default_serializer,
    load_run,
    load_store,
    save_run,
    save_store,
)
from tidemill.flows.errors import ContextSerdeError, ContextStateError, WorkflowRuntimeError
from tidemill.flows.reducer.state_paths import Changes, write_paths
from tidemill.flows.reducer.state_undo import write_for_good
from tidemill.flows.reducer.step_ticks import Did, EventSent, Gathered, StateEdited, WaitAsked, Wrote
from tidemill.flows.runner.state_store import StateCell, StateStore

if TYPE_CHECKING:
    from tidemill.flows.definition.workflow import Workflow
    from tidemill.flows.reducer.state import FlowState, Work
    from tidemill.flows.runner.in_memory import FlowRun

S = TypeVar("S")
E = TypeVar("E", bound=Event)

WAIT_LIMIT = 2000.0
_step: ContextVar[Context[Any]] = ContextVar("tidemill_step")


class Context(Generic[S]):
    """The face of a run that programs hold. `Context[State]` says what its state is."""

    is_flow_context: ClassVar[bool] = True

    _saved: FlowState | None = None
    _shown = 0
    _children = 0

    def __init__(
        self, workflow: Workflow, previous_context: dict[str, Any] | None = None, serializer: Any = None
    ) -> None:
        known = declared(workflow)
        self._workflow = workflow
        self._run: FlowRun | None = None
        self._work: Work | None = None
        self._held: list[tuple[Any, str | None]] = []
        self._holds = False
        self._to_skip = self._writes_to_skip = self._shown_before = 0
        self._cell: Any = StateCell(find_state_type(known.steps))
        self._serializer = serializer or known.serializer or default_serializer()
        if previous_context:
            self._load(previous_context)

    @classmethod
    def _of_step(cls, run: FlowRun, work: Work, *, hold: bool) -> Context[Any]:
        """The context of one attempt. With `hold`, what it sends leaves only when it ends or waits."""
        made = cls.__new__(cls)
        made._workflow = run.workflow
        made._run = run
        made._work = work
        made._held = []
        made._holds = hold
        made._to_skip = work.sent
        made._writes_to_skip = work.wrote
        made._shown_before = work.shown
        made._cell = run.cell
        return made

    # -- everywhere -------------------------------------------------------------------------------

    @property
    def store(self) -> StateStore[S]:
        """The state that the steps of the run share."""
        cell = self._cell
        holder = cell if self._run is None else self._run.loop.state
        return StateStore(holder, cell.kind, cell.lock, self._write)

    @property
    def is_running(self) -> bool:
        return self._saved is not None or (self._run is not None and self._run.is_running)

    def send_event(self, message: Event, step: str | None = None) -> None:
        """Send an event to the steps that accept it, or to one of them."""
        run = self._running("send_event")
        run.check_target(message, step)
        if self._work is None:
            run.receive(message, step)
        elif self._to_skip:
            self._to_skip -= 1  # It left in an earlier life of this step.
        else:
            self._held.append((message, step))
            if not self._holds and len(self._held) == 1:
                run.soon(self._let_go)  # What a step sends in one go leaves in one go.

    @staticmethod
    def get_step_context() -> Context[Any]:
        """The context of the step that this code runs in."""
        found = _step.get(None)
        if found is None:
            raise WorkflowRuntimeError("get_step_context() was called outside of a step")
        return found

    # -- inside a step ----------------------------------------------------------------------------

    def write_event_to_stream(self, ev: Any) -> None:
        """Show something to whoever follows the run, at once."""
        run, _ = self._stepping("write_event_to_stream")
        if ev is not None:
            self._shown += 1
            if self._shown > self._shown_before:
                run.show(ev)

    def collect_events(self, ev: Event, expected: list[type[Event]], buffer_id: str | None = None) -> list[Any] | None:
        """Keep this event; one of each expected kind, in that order, once all are there. None until then."""
        run, work = self._stepping("collect_events")
        run.note_here(work, Gathered(buffer_id or "", ev, tuple(expected)))
        return work.collected

    async def wait_for_event(
        self,
        event_type: type[E],
        waiter_event: Event | None = None,
        waiter_id: str | None = None,
        requirements: dict[str, Any] | None = None,
        timeout: float | None = WAIT_LIMIT,
    ) -> E:
        """Wait for an event of this class whose fields fit; `waiter_event` is shown to ask for it."""
        run, work = self._stepping("wait_for_event")
        needed = requirements or {}
        name = f"{event_type.__module__}.{event_type.__qualname__}"
        question = waiter_id or f"{name} {sorted(needed.items(), key=str)!r}"
        self._let_go()
        answer = await run.ask(work, WaitAsked(question, event_type, needed, waiter_event, timeout, self._shown))
        if answer is None:
            raise TimeoutError(f"no {event_type.__name__} came within {timeout:g} seconds")
        return answer

    async def once(self, name: str, effect: Callable[[], Awaitable[Any] | Any]) -> Any:
        """The result of a side effect that happens once, however often the step is run."""
        run, work = self._stepping("once")
        if name not in work.did:
            result = effect()
            run.note(work, Did(name, await result if inspect.isawaitable(result) else result))
        return work.did[name]

    async def child(self, workflow: Any, /, **fields: Any) -> Any:
        """The result of another workflow, run for this step. It is a run of its own, begun once however often the step
        is run; of a durable run it is a durable one, and this run need not be in memory while it lasts."""
        run, work = self._stepping("child")
        self._let_go()
        self._children += 1
        return await run.child(work, self._children, workflow, fields, shown=self._shown)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A database connection whose writes are committed together with the step's result: both, or neither.

        It belongs to the step until the step has ended. One step of a run at a time may have one.
        """
        run, work = self._stepping("transaction")
        return run.transaction(work)

    def retry_info(self) -> RetryInfo:
        """What is known of this step's earlier attempts."""
        run, work = self._stepping("retry_info")
        error = None if work.error is None else work.error.exception
        failed_at = None if work.failed_at is None else datetime.fromtimestamp(work.failed_at, UTC)
        elapsed = run.now() - work.began if work.attempt > 1 else 0.0
        return RetryInfo(work.attempt - 1, elapsed, error, failed_at)

    # -- outside of the run -----------------------------------------------------------------------

    async def running_steps(self) -> list[str]:
        """The steps that are at work."""
        run = self._outside("running_steps")
        return sorted({work.step for work in run.loop.state.works.values() if work.slot >= 0})

    def stream_events(self) -> Any:
        """What the run shows, with what goes on inside."""
        return self._outside("stream_events").stream(expose_internal=True)

    @property
    def streaming_queue(self) -> asyncio.Queue[Any]:
        """The same in a queue, as it comes. An older way: use the handler's `stream_events` instead."""
        run = self._outside("streaming_queue")
        warnings.warn("streaming_queue is an older way; use handler.stream_events()", DeprecationWarning, stacklevel=2)
        return run.queue()

    def get_result(self) -> Any:
        """The result of a run that has ended. An older way: await the handler instead."""
        event = self._outside("get_result").result.result()
        return event.result if type(event) is StopEvent else event

    def to_dict(self, serializer: Any = None, *, include_state: bool = True) -> dict[str, Any]:
        """The context as JSON values, from which `from_dict` makes one that goes on where this one is."""
        if self._work is not None:
            raise ContextStateError("to_dict() is for the outside of a run, not for its steps")
        state = self._saved if self._run is None else self._run.loop.state
        goes_on = state is not None and state.status in ("running", "cancelled")
        store = self._cell.store if self._run is None else self._run.loop.state.store
        saved: dict[str, Any] = {
            "version": VERSION,
            "state": save_store(store, serializer or self._serializer) if include_state else {},
            "is_running": goes_on,
        }
        if state is not None and goes_on:
            saved["run"] = save_run(state)
        return saved

    @classmethod
    def from_dict(cls, workflow: Workflow, data: dict[str, Any] | None, serializer: Any = None) -> Context[Any]:
        """The context that `to_dict` has saved; give it to `run` and the run goes on."""
        return cls(workflow, previous_context=data, serializer=serializer)

    # -- inner parts ------------------------------------------------------------------------------

    def _write(self, changes: Changes) -> None:
        if self._run is None:
            write_paths(self._cell, changes)
        elif self._work is None:
            write_for_good(self._run.loop.state, changes)
        elif self._writes_to_skip:
            self._writes_to_skip -= 1  # It stands since an earlier life of this step.
        else:
            self._run.note(self._work, Wrote(*changes[0]) if len(changes) == 1 else StateEdited(changes))

    def _let_go(self) -> None:
        if held := self._take_held():
            run, work = self._stepping("send_event")
            run.note(work, EventSent(held))

    def _take_held(self) -> tuple[tuple[Any, str | None], ...]:
        if not self._held:
            return ()
        held, self._held = tuple(self._held), []
        return held

    def _begin_run(self, run_id: str, workflow: Workflow) -> FlowRun:
        """The run that this context is for from now on, with the state that it has."""
        from tidemill.flows.runner.in_memory import FlowRun

        if self._run is not None:
            if self._run.is_running:
                raise ContextStateError("this context belongs to a run that has not ended: make another for this run")
            self._cell.store = self._run.loop.state.store
        state, self._saved = self._saved, None
        self._run = FlowRun(workflow, run_id, self._cell, state)
        return self._run

    def _load(self, data: dict[str, Any]) -> None:
        check_version(data)
        self._cell.store = load_store(data.get("state"), self._cell.kind, self._serializer)
        if not data.get("is_running"):
            return
        if "run" not in data:
            raise ContextSerdeError("this context was saved while its run was under way, but says nothing about it")
        self._saved = load_run(data["run"], declared(self._workflow).topology)

    def _outside(self, what: str) -> FlowRun:
        run = self._running(what)
        if self._work is not None:
            raise ContextStateError(f"{what}() is for the outside of a run, not for its steps")
        return run

    def _running(self, what: str) -> FlowRun:
        if self._run is None:
            raise ContextStateError(f"{what}() needs a run: this context has not been run yet")
        return self._run

    def _stepping(self, what: str) -> tuple[FlowRun, Work]:
        run = self._running(what)
        if self._work is None:
            raise ContextStateError(f"{what}() is for the steps of a run, not for its outside")
        return run, self._work


def enter_step(context: Context[Any]) -> None:
    """Make this the context of the step that the calling code runs in."""
    _step.set(context)
