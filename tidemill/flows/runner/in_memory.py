"""The runner of one run in memory: runs the steps, keeps the timers, and publishes events.

It makes no decisions: the outcome of a step goes to the reducer as a tick, and the reducer returns commands.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic import InstanceOf, TypeAdapter

from tidemill.core.errors import PayloadError
from tidemill.core.ticks import (
    Answer,
    CancelAsked,
    Command,
    Completed,
    DropTimer,
    Elapsed,
    EndRun,
    Noted,
    Publish,
    Received,
    Resumed,
    RunWork,
    SetTimer,
    Started,
    StopWork,
    Tick,
)
from tidemill.engine.runs.control_loop import RunLoop
from tidemill.engine.worker.threads import STEP_THREADS, WorkThreads
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import Event, ReplyEvent, StopEvent
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.errors import (
    StepDiverged,
    WorkflowCancelledByUser,
    WorkflowRuntimeError,
    WorkflowStepDoesNotExistError,
    WorkflowTimeoutError,
)
from tidemill.flows.reducer.record import ANSWERED
from tidemill.flows.reducer.reducer import RULES
from tidemill.flows.reducer.run_end import RUN_TIMEOUT
from tidemill.flows.reducer.state.flow_state import FlowState, Work
from tidemill.flows.reducer.step_ticks import Did, Ended, Note, WaitAsked, Withdrew
from tidemill.flows.reducer.waits import once_question
from tidemill.flows.runner.event_stream import EventStream, verbose_line
from tidemill.flows.runner.instrumentation import spans
from tidemill.flows.runner.replay.local_timers import has_local_timer
from tidemill.flows.runner.replay.observer import StepObserver
from tidemill.flows.runner.replay.record_lanes import RecordLane, current_owner
from tidemill.flows.runner.replay.step_replay import StepReplay
from tidemill.flows.runner.replay.wait import stay_unanswered
from tidemill.flows.runner.steps.attempt import exit_failure, failed_attempt, run_attempt
from tidemill.flows.runner.steps.context import Context
from tidemill.flows.runner.steps.pending_waits import HandOut, PendingWaits

if TYPE_CHECKING:
    from tidemill.engine.jobs.task import Call
    from tidemill.flows.definition.workflow import AnyWorkflow

_AN_EVENT: TypeAdapter[Event] = TypeAdapter(InstanceOf[Event])


class FlowRun:
    """One run of a workflow that exists only in this process."""

    def __init__(self, workflow: AnyWorkflow, run_id: str, cell: Any, state: FlowState | None = None) -> None:
        self.workflow = workflow
        self.declared = declared(workflow)
        self.run_id = run_id
        self.cell = cell
        self.program = self.declared.program(durable=self.is_durable)
        self.loop = RunLoop(self.program, self.declared.around(self), state)
        self.loop.state.store = cell.store
        self._home = asyncio.get_running_loop()
        self.result: asyncio.Future[StopEvent] = self._home.create_future()
        self.opener: asyncio.Task[None] | None = None
        self._variables = copy_context()
        self.weak = weakref.ref(self)
        hash(self.weak)  # It keeps its hash: callbacks of steps may be left when the run is gone.
        self._thread = threading.get_ident()
        self._events = EventStream()
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._contexts: dict[int, Context[Any]] = {}  # of the attempts that run and have used theirs
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._exit_span = spans.no_span
        self.is_traced = spans.are_wanted()
        self._questions = PendingWaits()
        self._fed: tuple[asyncio.Queue[Any], asyncio.Task[None]] | None = None

    #: Whether the events of a step are held until it ends, because the step may run again.
    holds_sends = False

    #: Whether its ticks are journaled: then it has no timeout that the user has not given.
    is_durable = False

    #: What has started it, as it is stored.
    origin: bytes | None = None

    #: What a simulation does at the operations of steps.
    observer: StepObserver | None = None

    def checked(self, spec: StepSpec, work: Work, ended: Ended) -> Ended:
        """Return an outcome that can be stored; in memory every outcome can."""
        return ended

    def exit_of(self, spec: StepSpec, error: BaseException) -> Exception:
        """Return the failure of a step that raises what is no `Exception`; in memory SystemExit ends the process."""
        if isinstance(error, SystemExit | KeyboardInterrupt) and not self.is_durable:
            raise error
        return exit_failure(spec, error)

    @property
    def is_running(self) -> bool:
        return not self.result.done()

    def now(self) -> float:
        return time.time()

    # -- from outside -----------------------------------------------------------------------------

    def start(self, event: Event) -> None:
        if self.declared.verbose:
            self._print(f"[tick] add: {event!r}")
        self.enter_span(event)
        self.loop.post(Started(self.now(), event, RULES, self.program.version if self.is_durable else ""))

    def resume(self) -> None:
        """Continue a saved run. Its timeout and those of its waits start again; retries are due when they were."""
        now = self.now()
        self.enter_span()
        if self.declared.timeout is not None:
            self.execute(self.loop, SetTimer(RUN_TIMEOUT, now + self.declared.timeout))
        state = self.loop.state
        state.idle = False  # Its new stream says so again.
        self.loop.post(Resumed(now, rules=RULES))
        for work in state.works.values():
            for wait in work.waiting.values():
                if wait.timeout is not None:
                    wait.due = now + wait.timeout
                    self.execute(self.loop, SetTimer(f"wait:{work.id}:{wait.question}", wait.due))
        queued = {work.id for step in state.steps.values() for work in step.queue}
        for work in list(state.works.values()):
            if work.slot < 0 and not work.waiting and not work.replies and work.id not in queued:
                self.execute(self.loop, SetTimer(f"retry:{work.id}", work.retry_at or now))

    def enter_span(self, event: Event | None = None) -> None:
        """Open the span of the run, if the process is traced."""
        self._exit_span = spans.enter_run(self.workflow, self.run_id, event, self.result, self._variables)

    def receive(self, event: Event, step: str | None = None) -> None:
        """Send an event to the run; a run that has ended ignores it."""
        if self.is_running:
            self.loop.post(Received(self.now(), event, step))

    def cancel(self) -> None:
        self.loop.post(CancelAsked(self.now(), "cancelled by the user"))

    def stream(self, *, expose_internal: bool) -> AsyncGenerator[Any, None]:
        return self._events.read(expose_internal=expose_internal)

    def queue(self) -> asyncio.Queue[Any]:
        """Return the published events of the run in a queue."""
        if self._fed is None:
            into: asyncio.Queue[Any] = asyncio.Queue()

            async def feed() -> None:
                async for event in self.stream(expose_internal=True):
                    into.put_nowait(event)

            self._fed = into, asyncio.create_task(feed())
        return self._fed[0]

    def check_target(self, event: Event, step: str | None) -> None:
        """Raise if the step does not exist or does not accept the event."""
        if not isinstance(event, Event):
            _AN_EVENT.validate_python(event)
        if step is None:
            return
        spec = self.declared.steps.get(step)
        if spec is None:
            raise WorkflowStepDoesNotExistError(f"Step {step} does not exist: no event can be sent to it")
        if not spec.accepts(type(event)):
            raise WorkflowRuntimeError(f"Step {step} does not accept event of type {type(event)}")
        if spec.collection_param is not None:
            raise WorkflowRuntimeError(
                f"{type(event).__name__} was sent to collect step '{step}' via send_event(step=...), but a collect "
                "step cannot receive targeted events: return a list instead, or use ctx.collect_events"
            )

    # -- from steps -------------------------------------------------------------------------------

    def note(self, work: Work, note: Note) -> None:
        self.loop.post(Noted(self.now(), work.id, note))

    def note_basis(self, paths: Iterable[str]) -> None:
        """Remember what an edit is based on. In the process of the run no other step writes during an edit."""

    def note_here(self, work: Work, note: Note) -> None:
        """Post a note from any thread; returns when it has been posted."""
        if threading.get_ident() == self._thread:
            self.note(work, note)
            return

        async def noting() -> None:
            self.note(work, note)

        asyncio.run_coroutine_threadsafe(noting(), self._home).result()

    def soon(self, call: Callable[..., None], *args: Any) -> None:
        """Call a function in the run's event loop, in the order of the calls."""
        if threading.get_ident() == self._thread:
            self._home.call_soon(call, *args)
        else:
            self._home.call_soon_threadsafe(call, *args)

    def show(self, event: Any) -> None:
        """Publish an event from any thread."""
        if threading.get_ident() == self._thread:
            self.publish(event)
        else:
            self._home.call_soon_threadsafe(self.publish, event)

    def publish(self, event: Any) -> None:
        self._events.put(event)
        if isinstance(event, ReplyEvent) and (asked := self._asked.pop(event.to, None)) is not None:
            asked.set_result(event.value)

    @contextmanager
    def expecting_reply(self, token: str) -> Iterator[asyncio.Future[Any]]:
        """Give a future of the reply with this token."""
        self._asked[token] = asked = self._home.create_future()
        try:
            yield asked
        finally:
            self._asked.pop(token, None)

    def check_may_wait(self, work: Work) -> None:
        """Raise if the step must not wait now."""

    def recall(self, work: Work, question: str) -> tuple[bool, Any]:
        """Return whether the outcome of a wait is known, and the answer: None if it timed out."""
        return self._questions.memory(work.id).recall(question)

    def is_closed(self, work: Work, question: str) -> bool:
        """Return whether a wait has ended without an answer."""
        return self._questions.memory(work.id).is_closed(question)

    async def ask(
        self, replay: StepReplay, lane: RecordLane, note: WaitAsked, begin: Callable[[], Awaitable[None]] | None = None
    ) -> Any:
        """Wait for the answer to a step's question; None if the wait times out.

        `begin` starts what the step waits for, and the step counts as waiting only after it."""
        work, question = replay.work, note.question
        if question in self._questions.memory(work.id).given_up:
            return await stay_unanswered(replay, lane, question)
        waiting = self._questions.wait(work.id, question, self._hand_to(replay, lane))
        is_over = False
        try:
            if self.is_durable:
                lane.timed = await has_local_timer()
            if begin is None:
                lane.rest(question, waiting)
                replay.ask(note)
            else:
                replay.ask(note)
                await begin()
                lane.rest(question, waiting)
                replay.suspend_if_all_wait()
            answer = await waiting
            is_over = True
            if self.is_durable:
                replay.mark(lane, ANSWERED, question)
            return answer
        except PayloadError:
            is_over = True
            raise
        finally:
            lane.go_on()
            if not is_over:
                await self._give_up(replay, lane, question, waiting)

    async def receive_known(self, replay: StepReplay, lane: RecordLane, question: str, after: int) -> None:
        """Go on with an answer that is known, when it is its turn. `after` is where the record goes on, if it does."""
        arrival = self._questions.memory(replay.work.id).arrival(question)
        try:
            await replay.pass_mark(lane, ANSWERED, question, after, arrival)
        except asyncio.CancelledError:
            await self._give_up(replay, lane, question)
            raise

    async def _give_up(
        self, replay: StepReplay, lane: RecordLane, question: str, waiting: asyncio.Future[Any] | None = None
    ) -> None:
        """A task of a step gives up its wait: it must no longer be answered."""
        if self._questions.leave(replay.work.id, question, waiting) and self.is_running:
            self.note(replay.work, Withdrew(question))
        await replay.give_up(lane, question)

    def _hand_to(self, replay: StepReplay, lane: RecordLane) -> HandOut:
        """Return how a task receives its answer. A run in memory keeps no order."""
        return partial(replay.turns.give, lane.name) if self.is_durable else asyncio.Future.set_result

    async def commit_effect(self, replay: StepReplay, lane: RecordLane, name: str, result: Any) -> None:
        """Record the result of a side effect; returns when it is committed."""
        work = replay.work
        committed = self._questions.wait(work.id, once_question(name), self._hand_to(replay, lane))
        self.note(work, Did(name, result))
        await committed

    def diverge(self, work: Work, error: StepDiverged) -> None:
        """Stop the run: one of its steps does not follow its record."""
        if not self.result.done():
            self._fail(WorkflowRuntimeError(str(error)))
            self._events.close()
            for task in self._tasks.values():
                task.cancel()

    async def child(self, replay: StepReplay, workflow: Any, fields: dict[str, Any]) -> Any:
        """Run a child run and return its result."""
        made = workflow() if isinstance(workflow, type) else workflow
        return await made.run(**fields)

    async def gather_jobs(self, replay: StepReplay, calls: Sequence[Call[Any]]) -> list[Any]:
        """Enqueue jobs, wait for their ends and return their results."""
        raise WorkflowRuntimeError(
            "ctx.gather_jobs() is only available in durable runs: start this one with `await app.start(...)`"
        )

    def transaction(self, work: Work) -> AbstractAsyncContextManager[Any]:
        raise WorkflowRuntimeError(
            "ctx.transaction() is only available in durable runs: start this one with `await app.start(...)`"
        )

    # -- the loop's adapter -----------------------------------------------------------------------

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        loop.execute(commands)  # In memory there is no journal to wait for.

    def execute(self, loop: RunLoop, command: Command) -> None:
        kind = type(command)
        if kind is RunWork:
            work = loop.state.works[command.work]  # pyright: ignore[reportAttributeAccessIssue]
            if work.id in self._tasks:
                return  # A step on a queue that has waited in this process: it has received its answer.
            self._questions.begin(work.id, command.known)  # pyright: ignore[reportAttributeAccessIssue]
            # A step gets the context variables of its run's start, not the changes of other steps.
            self._tasks[work.id] = self._home.create_task(
                run_attempt(self, work), name=work.step, context=self._variables.copy()
            )
        elif kind is Publish:
            self._events.put(command.event)  # pyright: ignore[reportAttributeAccessIssue]
            if self.declared.verbose:
                self._print(verbose_line(command.event))  # pyright: ignore[reportAttributeAccessIssue]
        elif isinstance(command, StopWork):
            task = self._tasks.get(command.work)
            if task is not None:
                task.cancel()
        elif isinstance(command, Answer):
            self._questions.answer(command)
        elif isinstance(command, SetTimer):
            self._drop_timer(command.timer)
            self._timers[command.timer] = self._home.call_later(
                max(0.0, command.due - self.now()), self._fire, command.timer
            )
        elif isinstance(command, DropTimer):
            self._drop_timer(command.timer)
        elif isinstance(command, EndRun):
            self._finish(command)

    def _drop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, timer: str) -> None:
        self._timers.pop(timer, None)
        self.loop.post(Elapsed(self.now(), timer))

    def _print(self, line: str | None) -> None:
        if line is not None and self.declared.verbose:
            print(line)

    def _finish(self, end: EndRun) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._events.close()
        if not self.is_durable:
            self.loop.close()
        if self.result.done():
            return
        if end.state == "succeeded":
            self.result.set_result(end.result)
        elif end.state == "failed":
            self._fail(end.error.exception or WorkflowRuntimeError(end.error.message))
        elif end.state == "timed_out":
            self._fail(WorkflowTimeoutError(self._timeout_message()))
        else:
            self._fail(WorkflowCancelledByUser("the run was cancelled"))
        self._exit_span()

    def _fail(self, error: BaseException) -> None:
        self.result.set_exception(error)
        self.result.exception()  # Prevents asyncio's warning about a failed run that is never awaited.

    def _timeout_message(self) -> str:
        active = sorted({work.step for work in self.loop.state.works.values() if work.slot >= 0})
        doing = f"Currently active steps: {', '.join(active)}" if active else "No steps active"
        return f"Operation timed out after {self.program.timeout} seconds. {doing}"

    # -- running steps ----------------------------------------------------------------------------

    def step_context(self, work: Work) -> Context[Any]:
        """Return the context of the running attempt; it is created when it is needed."""
        found = self._contexts.get(work.id)
        if found is None:
            owner = self._tasks.get(work.id) or current_owner()
            found = self._contexts.setdefault(work.id, Context._of_step(self, work, owner))
        return found

    def holds_events_of(self, work: Work) -> bool:
        """Whether the events of a step are sent only when it ends or waits, because the step may run again."""
        if self.holds_sends or work.step in self.program.topology.handler_of:
            return True
        return self.declared.steps[work.step].retry_policy is not None

    def find_context(self, number: int) -> Context[Any] | None:
        """Return the context of a piece of work; None if it does not run."""
        if (found := self._contexts.get(number)) is not None or number not in self._tasks:
            return found
        return self.step_context(self.loop.state.works[number])

    @property
    def threads(self) -> WorkThreads:
        """The threads of plain steps."""
        found = _threads.get(self._home)
        if found is None:
            found = _threads[self._home] = WorkThreads(STEP_THREADS, "tidemill-step")
        return found

    def begun(self, spec: StepSpec, work: Work) -> None:
        """Called in the context of an attempt when it starts."""

    def ended(self, spec: StepSpec, work: Work, ended: Ended) -> None:
        """Called when an attempt has ended."""
        self.loop.post(Completed(self.now(), work.id, self.checked(spec, work, ended)))

    def time_left(self, timeout: float, work: Work) -> float:
        """Return how long this attempt may take; a step that was suspended has what is left of its timeout."""
        if not self.is_durable or work.queue is not None or not work.record:
            return timeout
        return max(0.0, work.since + timeout - self.now())

    def failure(self, spec: StepSpec, work: Work, error: Exception) -> Ended:
        """Return the outcome of an attempt that has failed."""
        return failed_attempt(spec, work, error, elapsed=self.now() - work.began, run_id=self.run_id)


#: The threads of plain steps of runs in memory, by event loop.
_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, WorkThreads] = WeakKeyDictionary()
