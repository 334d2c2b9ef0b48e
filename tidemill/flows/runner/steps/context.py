"""`Context`: the interface of a step to its run, and the interface of the caller to a run.

    await ctx.store.set("n", 1)                        state that the steps share
    ctx.send_event(Draft(text="..."))                  to all steps that accept it; `step="review"` for one step
    ctx.write_event_to_stream(Progress(done=3))        published in the stream of the run
    events = ctx.collect_events(ev, [Draft] * 3)       None until three are there
    answer = await ctx.wait_for_event(Approved, waiter_event=NeedsApproval())
    data = await ctx.once("charge", charge_card)       a side effect that is not repeated when the step runs again
    await ctx.sleep("3d")                              a wait of a durable run outlives its process
    both = await ctx.gather(ask("Ada"), ask("Bob"))    at the same time; all of it may wait
    sizes = await ctx.gather_jobs(*(measure.call(n) for n in range(500)))    jobs of workers, as one batch
    ctx.now(), ctx.random()                            the same when the step runs again
    ctx.schedule, ctx.fire_time, ctx.fire_reason       of a run that a schedule has started

A context is used before its run, inside a step, or outside of a run. A method that is not available there raises a
`ContextStateError`.
"""

from __future__ import annotations

import asyncio
import random
import threading
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, overload

from typing_extensions import TypeVar

from tidemill.core.codec import decode
from tidemill.core.duration import Duration, parse_duration
from tidemill.core.jobs.job import Origin
from tidemill.engine.jobs.calls import use
from tidemill.engine.jobs.task import Call, R
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import (
    CompensationEvent,
    ContinuedEvent,
    Event,
    ReplyEvent,
    SleepEnded,
    StartEvent,
    StopEvent,
    qualified_name,
)
from tidemill.flows.definition.retry_policy import RetryInfo
from tidemill.flows.definition.timeouts import WAIT_TIMEOUT_IN_MEMORY, durable_timeout
from tidemill.flows.definition.validate import find_state_type
from tidemill.flows.encoding.changes import storable_changes
from tidemill.flows.encoding.context_dict import default_serializer, load_context, save_context
from tidemill.flows.encoding.copies import copy_data
from tidemill.flows.encoding.events import reply_token
from tidemill.flows.errors import ContextStateError, WorkflowRuntimeError
from tidemill.flows.reducer.record import ROOT, RecordedOperation
from tidemill.flows.reducer.state.paths import Changes, write_paths
from tidemill.flows.reducer.state.undo import write_for_good
from tidemill.flows.reducer.step_ticks import EventSent, Gathered, StateEdited, WaitAsked, Wrote
from tidemill.flows.runner.replay.gather import run_together
from tidemill.flows.runner.replay.once import Effect, compensation_name, run_once
from tidemill.flows.runner.replay.send import send_by_record, send_key
from tidemill.flows.runner.replay.step_replay import StepReplay
from tidemill.flows.runner.replay.wait import wait_by_record
from tidemill.flows.runner.state_store import StateCell, StateStore
from tidemill.flows.runner.steps.current_step import find_step

if TYPE_CHECKING:
    from tidemill.flows.definition.workflow import AnyWorkflow, ResultT, Workflow
    from tidemill.flows.reducer.state.flow_state import FlowState, Work
    from tidemill.flows.runner.in_memory import FlowRun

S = TypeVar("S", default=Any)
E = TypeVar("E", bound=Event)


class Context(Generic[S]):
    """The interface of steps and callers to a run. `Context[State]` declares the type of its state."""

    is_flow_context: ClassVar[bool] = True

    _saved: FlowState | None = None
    _replay_begun: StepReplay | None = None
    _done: list[RecordedOperation] | None = None
    _root: Any = None
    _held: list[tuple[Any, str | None]] | None = None

    def __init__(
        self, workflow: AnyWorkflow, previous_context: dict[str, Any] | None = None, serializer: Any = None
    ) -> None:
        known = declared(workflow)
        self._workflow = workflow
        self._run: FlowRun | None = None
        self._work: Work | None = None
        self._cell: Any = StateCell(find_state_type(known.steps))
        self._serializer = serializer or known.serializer or default_serializer()
        if previous_context:
            kind, topology = self._cell.kind, known.topology
            self._cell.store, self._saved = load_context(previous_context, kind, self._serializer, topology)

    @classmethod
    def _of_step(cls, run: FlowRun, work: Work, owner: Any) -> Context[Any]:
        """Create the context of one attempt that this task or thread runs."""
        made = cls.__new__(cls)
        made._run = run
        made._work = work
        made._cell = run.cell
        made._root = owner
        if work.record or work.spare or work.kept_writes or work.counted_to is not None or run.observer is not None:
            made._replay_begun = StepReplay(run, work, owner)
        else:
            made._done = []
        return made

    # -- everywhere -------------------------------------------------------------------------------

    @property
    def store(self) -> StateStore[S]:
        """The state that the steps of the run share."""
        cell = self._cell
        holder = cell if self._run is None else self._run.loop.state
        return StateStore(holder, cell.kind, cell.lock, self._write, cell.live, self)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._running("run_id").run_id

    @property
    def attempt_key(self) -> str:
        """A key of this attempt of the step: the same when the step runs again, another when it is retried.

        Pass it to another system as its idempotency key."""
        run, work = self._stepping("attempt_key")
        return f"{run.run_id}.{work.id}.{work.attempt}"

    @property
    def schedule(self) -> str | None:
        """The schedule that has started the run."""
        return self._fire("schedule")

    @property
    def fire_time(self) -> datetime | None:
        """The time, in UTC, that the schedule was fired for."""
        fire = self._fire("fire_time", "fire")
        return None if fire is None else datetime.fromtimestamp(fire, UTC)

    @property
    def fire_reason(self) -> str | None:
        """Why the schedule was fired: due, catch-up, backfill or run now."""
        return self._fire("fire_reason", "reason")

    @property
    def is_running(self) -> bool:
        return self._saved is not None or (self._run is not None and self._run.is_running)

    def send_event(self, message: Event, step: str | None = None) -> None:
        """Send an event to the steps that accept it, or to one of them."""
        run = self._running("send_event")
        run.check_target(message, step)
        holds = self._held is None and self._work is not None and run.holds_events_of(self._work)
        if not holds and (done := self._alone()) is not None:
            done.append(RecordedOperation(ROOT, "send", send_key(type(message), step), message))
        elif (replay := self._replay_begun or self._replay) is None:
            run.receive(message, step)
            return
        elif not send_by_record(replay, message, step, holds=holds):
            return
        if self._held is not None:
            self._held.append((message, step))
        else:
            self._held = [(message, step)]
            run.soon(self._send_held)  # Events that a step sends without awaiting in between are sent together.

    @staticmethod
    def get_step_context() -> Context[Any]:
        """Return the context of the step that this code runs in."""
        inside = find_step()
        found = None if inside is None else inside[0].find_context(inside[1])
        if found is None:
            raise WorkflowRuntimeError("Context.get_step_context() may only be called from within a step function")
        return found

    # -- inside a step ----------------------------------------------------------------------------

    def write_event_to_stream(self, ev: Any) -> None:
        """Publish an event in the stream of the run at once."""
        if ev is not None and (done := self._alone()) is not None:
            self._running("write_event_to_stream").show(ev)
            done.append(RecordedOperation(ROOT, "show", qualified_name(type(ev))))
            return
        run, replay = self._stepping_by_record("write_event_to_stream")
        if ev is None:
            return
        key = qualified_name(type(ev))
        lane, operation = replay.at("show", key)
        if operation is None:
            replay.add(lane, "show", key)
            if replay.shows_to_skip:
                replay.shows_to_skip -= 1
            else:
                run.show(ev)

    def collect_events(self, ev: Event, expected: list[type[Event]], buffer_id: str | None = None) -> list[Any] | None:
        """Buffer this event; return one event of each expected class, in that order, or None until all are there."""
        buffer = buffer_id or ""
        if (done := self._alone()) is not None:
            run, work = self._stepping("collect_events")
            run.note(work, Gathered(buffer, ev, expected))
            found = work.collected
            done.append(RecordedOperation(ROOT, "collect", buffer, None if found is None else list(found)))
            return found
        run, replay = self._stepping_by_record("collect_events")
        lane, operation = replay.at("collect", buffer)
        if lane.inside is not None:
            replay.refuse_inside_effect(lane, "collect_events()")
        if operation is not None:
            return None if operation.result is None else list(operation.result)
        run.note_here(replay.work, Gathered(buffer, ev, expected))
        found = replay.work.collected
        replay.add(lane, "collect", buffer, None if found is None else list(found))
        return found

    async def wait_for_event(
        self,
        event_type: type[E],
        waiter_event: Event | None = None,
        waiter_id: str | None = None,
        requirements: dict[str, Any] | None = None,
        timeout: float | None = WAIT_TIMEOUT_IN_MEMORY,
    ) -> E:
        """Wait for an event of this class whose fields fit; `waiter_event` is published to ask for it.

        An event that has arrived before is taken first. Waits without a `waiter_id` get one event each, also in a loop;
        a wait with one gets the same event again. A durable run waits forever unless a `timeout` is given.
        """
        run, replay = self._stepping_by_record("wait_for_event")
        timeout = durable_timeout(timeout) if run.is_durable else timeout and float(timeout)
        needed = requirements or {}
        name = f"{event_type.__module__}.{event_type.__qualname__}"
        base = waiter_id or f"{name} {sorted(needed.items(), key=str)!r}"
        subclasses = run.declared.steps[replay.work.step].accept_event_subclasses
        note = WaitAsked(base, event_type, needed, waiter_event, timeout, subclasses=subclasses)
        answer = await self._wait("wait", note, named=waiter_id is not None)
        if answer is None:
            raise TimeoutError(f"no {event_type.__name__} arrived within {timeout:g} seconds")
        return answer

    async def sleep(self, duration: Duration) -> None:
        """Sleep for this many seconds, or "10m", "3d". A durable run may leave memory while it sleeps."""
        await self._wait("sleep", WaitAsked("sleep", SleepEnded, {}, None, parse_duration(duration)))

    async def gather(self, *parts: Awaitable[Any]) -> list[Any]:
        """Run these awaitables at the same time, and return their results in order.

        If all of them wait, the run may leave memory. The first failure cancels the others and is raised."""
        _, replay = self._stepping_by_record("gather")
        return await run_together(replay, parts)

    async def gather_jobs(self, *calls: Call[R]) -> list[R]:
        """Enqueue these calls as one batch of jobs, wait for all of them, and return their results in order.

        They are enqueued once, even if the step runs again, and the run may leave memory while they run. If a job does
        not succeed, a `BatchFailedError` is raised when all have ended."""
        run, replay = self._stepping_by_record("gather_jobs")
        self._send_held()
        return await run.gather_jobs(replay, [use(call, "gather_jobs") for call in calls])

    async def once(self, name: str, effect: Effect) -> Any:
        """Run a side effect once, even if the step runs again, and return its result when it is committed."""
        _, replay = self._stepping_by_record("once")
        return await run_once(replay, name, effect)

    def now(self) -> datetime:
        """Return the current time in UTC; the same when the step runs again."""
        run, replay = self._stepping_by_record("now")
        return datetime.fromtimestamp(replay.value("now", run.now), UTC)

    def random(self) -> float:
        """Return a random number from 0 to 1; the same when the step runs again."""
        _, replay = self._stepping_by_record("random")
        return replay.value("random", random.random)

    async def compensate(self, step: str | Callable[..., Any], event: CompensationEvent) -> None:
        """Register a step that undoes something, with its event; returns when that is committed.

        If the run fails, times out or is cancelled, its compensations run one after the other, the last registered
        first, before it ends. Register one before you do what it undoes.
        """
        run, replay = self._stepping_by_record("compensate")
        name = step if isinstance(step, str) else step.__name__
        run.check_target(event, name)
        await self.once(compensation_name(replay, name, event), lambda: [name, event])

    def continue_as_new(self, start_event: StartEvent | None = None, /, **fields: Any) -> Any:
        """Return what a step returns to start the run again, with another start event or its fields.

        The state, events that no step has taken yet and compensations stay; other steps are stopped. The journal up to
        here is dropped, so that a run without end costs what its state costs.
        """
        run, _ = self._stepping_by_record("continue_as_new")
        return ContinuedEvent(start=run.declared.start_event(start_event, fields))

    def reply(self, value: Any, *, to: Event | None = None) -> None:
        """Reply to the events that the step runs with, or to another, if sent with `ask`; else do nothing."""
        _, replay = self._stepping_by_record("reply")
        given = replay.work.input if to is None else to
        if isinstance(given, dict):  # The step takes several events together, by the names of its parameters.
            given = list(given.values())
        for event in given if isinstance(given, list) else [given]:
            if (token := reply_token(event)) is not None:
                self.write_event_to_stream(ReplyEvent(to=token, value=value))

    @overload
    async def child(
        self, workflow: type[Workflow[Any, ResultT]] | Workflow[Any, ResultT], /, **fields: Any
    ) -> ResultT: ...

    @overload
    async def child(self, workflow: str, /, **fields: Any) -> Any: ...

    async def child(self, workflow: Any, /, **fields: Any) -> Any:
        """Run another workflow as a child run and return its result.

        The child run is started once, even if the step runs again. The child of a durable run is durable, and the
        parent can be released from memory while it waits."""
        run, replay = self._stepping_by_record("child")
        self._send_held()
        return await run.child(replay, workflow, fields)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a database transaction that is committed together with the step's result: both, or neither.

        It belongs to the step until the step ends. Only one step of a run at a time can have one.
        """
        run, work = self._stepping("transaction")
        return run.transaction(work)

    def retry_info(self) -> RetryInfo:
        """Return information about the earlier attempts of this step."""
        run, replay = self._stepping_by_record("retry_info")
        work = replay.work
        error = None if work.error is None else work.error.exception
        failed_at = None if work.failed_at is None else datetime.fromtimestamp(work.failed_at, UTC)
        elapsed = replay.value("retry_info", lambda: run.now() - work.began) if work.attempt > 1 else 0.0
        return RetryInfo(work.attempt - 1, elapsed, error, failed_at)

    # -- outside of the run -----------------------------------------------------------------------

    async def running_steps(self) -> list[str]:
        """Return the names of the running steps."""
        run = self._outside("running_steps")
        return sorted({work.step for work in run.loop.state.works.values() if work.slot >= 0})

    def stream_events(self) -> Any:
        """Stream the events of the run, including internal events."""
        return self._outside("stream_events").stream(expose_internal=True)

    @property
    def streaming_queue(self) -> asyncio.Queue[Any]:
        """Return the events of the run in a queue. Deprecated: use the handler's `stream_events` instead."""
        run = self._outside("streaming_queue")
        warnings.warn("streaming_queue is deprecated; use handler.stream_events()", DeprecationWarning, stacklevel=2)
        return run.queue()

    def get_result(self) -> Any:
        """Return the result of a run that has ended. Deprecated: await the handler instead."""
        event = self._outside("get_result").result.result()
        return event.result if type(event) is StopEvent else event

    def to_dict(self, serializer: Any = None, *, include_state: bool = True) -> dict[str, Any]:
        """Save the context as JSON values; `from_dict` loads it, and the run continues from there."""
        if self._work is not None:
            raise ContextStateError("to_dict() is not available inside a step: call it outside of the run")
        state = self._saved if self._run is None else self._run.loop.state
        store = self._cell.store if self._run is None else self._run.loop.state.store
        return save_context(state, store, serializer or self._serializer, include_state=include_state)

    @classmethod
    def from_dict(cls, workflow: AnyWorkflow, data: dict[str, Any] | None, serializer: Any = None) -> Context[Any]:
        """Load a context that `to_dict` has saved; pass it to `run` to continue the run."""
        return cls(workflow, previous_context=data, serializer=serializer)

    def _write(self, changes: Changes, *, edits: bool = False) -> None:
        if self._run is None:
            write_paths(self._cell, changes)
            return
        replay = self._replay_begun
        if self._work is None:
            write_for_good(self._run.loop.state, changes, edits=edits)
        elif replay is not None and replay.writes_to_skip:
            replay.writes_to_skip -= 1  # It was written before the step was restarted.
        else:
            if self._run.is_durable:
                changes = storable_changes(self._run.loop.state.store, changes)
            is_one = len(changes) == 1
            self._run.note(self._work, Wrote(*changes[0], edits) if is_one else StateEdited(changes, edits))

    async def _write_changed_in_place(self) -> None:
        """Write what the step has changed in values that it has read."""
        run, replay = self._stepping_by_record("store")
        async with self._cell.lock:
            if found := replay.lent.changes(replay.view(run.loop.state.store), replay.work.step):
                self._write(tuple((path, copy_data(value)) for path, value in found), edits=True)

    def _send_held(self) -> None:
        if held := self._take_held():
            run, work = self._stepping("send_event")
            run.note(work, EventSent(held))

    def _take_held(self) -> tuple[tuple[Any, str | None], ...]:
        held, self._held = self._held, None
        return tuple(held or ())

    @property
    def _replay(self) -> StepReplay | None:
        """The record of the attempt, from its first operation on; None outside of a step."""
        begun = self._replay_begun
        if begun is None and self._work is not None and self._run is not None:
            begun = self._replay_begun = StepReplay(self._run, self._work, self._root, self._done)
            self._done = None
        return begun

    def _alone(self) -> list[RecordedOperation] | None:
        """Return what the step has done, if it follows no record and only its own task has used its context so far.

        Most steps never need more than this list: it begins the record of those that wait or start tasks later."""
        done, run = self._done, self._run
        if done is None or run is None or threading.get_ident() != run._thread:
            return None
        return done if asyncio.current_task(run._home) is self._root else None

    def _set_owner(self, owner: Any) -> None:
        """Set the task or thread that runs the step."""
        self._root = owner
        if self._replay_begun is not None:
            self._replay_begun.root.owner = owner

    def _unsent(self) -> tuple[tuple[Any, str | None], ...]:
        """Return the events that leave when the step ends."""
        if self._held is not None:
            return self._take_held()
        return () if self._replay_begun is None else self._replay_begun.unsent()

    async def _wait(self, kind: str, note: WaitAsked, *, named: bool = False) -> Any:
        _, replay = self._stepping_by_record("wait_for_event")
        return await wait_by_record(replay, kind, note, named=named, before=self._send_held)

    def _begin_run(self, run_id: str, workflow: AnyWorkflow) -> FlowRun:
        """Create the run of this context, with the context's state."""
        from tidemill.flows.runner.in_memory import FlowRun

        if self._run is not None:
            if self._run.is_running:
                raise ContextStateError(
                    "Cannot start a new run while context is already running. Wait for completion or use a new Context."
                )
            self._cell.store = self._run.loop.state.store
        state, self._saved = self._saved, None
        self._run = FlowRun(workflow, run_id, self._cell, state)
        return self._run

    def _outside(self, what: str) -> FlowRun:
        run = self._running(what)
        if self._work is not None:
            raise ContextStateError(f"{what}() is only available from handler code, not from within steps.")
        return run

    def _fire(self, what: str, field: str = "schedule") -> Any:
        origin = self._running(what).origin
        return None if origin is None else getattr(decode(origin, Origin), field)

    def _running(self, what: str) -> FlowRun:
        if self._run is None:
            raise ContextStateError(f"{what}() requires a running workflow. Call workflow.run() first.")
        return self._run

    def _stepping_by_record(self, what: str) -> tuple[FlowRun, StepReplay]:
        replay = self._replay_begun or self._replay
        if self._run is None or replay is None:
            self._stepping(what)
            raise ContextStateError(f"{what}() is only available inside a step")
        return self._run, replay

    def _stepping(self, what: str) -> tuple[FlowRun, Work]:
        run = self._running(what)
        if self._work is None:
            raise ContextStateError(f"{what}() is only available from within step functions.")
        return run, self._work
