"""Durable flow runs: a run in memory whose ticks are journaled and whose steps may run on other hosts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from tidemill.core.codec import decode, encode, storable
from tidemill.core.duration import format_duration
from tidemill.core.errors import BlockedEventLoopError, PayloadError
from tidemill.core.limits.size_limits import check_state_size, is_large_state
from tidemill.core.ticks import Command, Completed, EndRun, Noted, Received, Resumed, RunWork, Started, Tick
from tidemill.engine.containment.blocked_time import BlockedTime
from tidemill.engine.runs.control_loop import RunLoop
from tidemill.engine.runs.durable_run import Begun, DurableRun, StepHere, WorkEnd
from tidemill.engine.telemetry.run_trace import RunTrace
from tidemill.engine.worker.log_capture import listen
from tidemill.engine.worker.threads import WorkThreads
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import ChildEnded, Event, InternalDispatchEvent
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.encoding.events import decode_event, qualified_name
from tidemill.flows.encoding.exceptions import exception_detail
from tidemill.flows.encoding.journal import (
    TickRecord,
    decode_tick,
    encode_record,
    encode_tick,
    record_of,
    record_of_end,
    storable_end,
)
from tidemill.flows.encoding.values import encode_packed, encode_packed_event, pack_state
from tidemill.flows.errors import StepDiverged, WorkflowRuntimeError
from tidemill.flows.reducer.migration import WAYS_OUT
from tidemill.flows.reducer.record import RESULTS
from tidemill.flows.reducer.reducer import RULES
from tidemill.flows.reducer.state.flow_state import FlowState, Work
from tidemill.flows.reducer.step_ticks import Ended, Note, StateEdited, StepFailure, Wrote
from tidemill.flows.runner.children import JobGatherer, Starter, wait_for_child
from tidemill.flows.runner.in_memory import FlowRun
from tidemill.flows.runner.replay.observer import StepObserver
from tidemill.flows.runner.replay.step_replay import StepReplay
from tidemill.flows.runner.restore import blank_cell, definition_of, restore
from tidemill.flows.runner.run_handle import result_of
from tidemill.flows.runner.sending import known_events
from tidemill.flows.runner.steps.current_step import is_task_of_step
from tidemill.flows.runner.steps.human_input import Questionnaire, renamed_questions
from tidemill.flows.runner.steps.queued_step import StepJobResult, ended_elsewhere, step_job
from tidemill.flows.runner.steps.step_log import RunStepLogs, StepLogCapture
from tidemill.store.database import Connection
from tidemill.store.runs.log import NewStepLog
from tidemill.store.runs.run_turn import BufferedEvents, JobRow, NewRun, RunTurn, job_row

if TYPE_CHECKING:
    from tidemill.engine.jobs.task import Call
    from tidemill.engine.runs.run_worker import RunWorker
    from tidemill.flows.definition.workflow import AnyWorkflow


log = structlog.get_logger("tidemill.runs")

DIVERGED_WAYS_OUT = (
    "start the step again as a failed attempt (`tidemill retry`), deploy code that follows the record, fork the run "
    "from an earlier tick, or cancel it"
)


class FlowKind:
    """Opens and starts runs of one workflow for a run worker."""

    def __init__(
        self,
        name: str,
        workflow: AnyWorkflow,
        starter: Starter,
        observer: StepObserver | None = None,
        gatherer: JobGatherer | None = None,
    ) -> None:
        self.name = name
        self.workflow = workflow
        self.starter = starter
        self.gatherer = gatherer
        self.observer = observer

    @property
    def version(self) -> str:
        return declared(self.workflow).topology.version

    @property
    def definition(self) -> bytes:
        return definition_of(self.workflow)

    def takes_start(self, event: Event) -> bool:
        """Whether a run can start with this event."""
        return bool(declared(self.workflow).topology.accepting(type(event)))

    @property
    def events(self) -> Iterable[str]:
        return [qualified_name(each) for each in known_events(self.workflow)]

    @property
    def max_runs(self) -> int | None:
        return declared(self.workflow).num_concurrent_runs

    def open(
        self, run_worker: RunWorker, row: Any, snapshot: bytes | None, ticks: list[bytes], definition: bytes | None
    ) -> tuple[DurableFlowRun, list[Tick]]:
        """Open a stored run; returns it with the ticks that continue it: its migration, if it is of another version."""
        now, version = run_worker.clock.now(), row["version"]
        if row["seq"] == 0:
            started = Started(now, self._start_event(row["input"]), RULES, self.version)
            run = DurableFlowRun(self, run_worker, row["id"], stored=0)
            first: list[Tick] = [started]
            run.enter_span(started.input)
        elif snapshot is None and not ticks:
            raise PayloadError(f"its journal of {row['seq']} ticks is gone; {WAYS_OUT}")
        else:
            restored = restore(self.workflow, snapshot, ticks, version=version, definition=definition, at=now)
            run = DurableFlowRun(self, run_worker, row["id"], stored=row["seq"], state=restored.state)
            first = [Resumed(now, queued=True, rules=RULES)]
            if restored.migrated is not None:
                log.info("run migrated", run=row["id"], before=version, now=self.version)
                first.insert(0, restored.migrated)
            run.enter_span(None)
        return run, first

    def _start_event(self, data: bytes) -> Event:
        try:
            return decode_event(data)
        except PayloadError as error:
            raise PayloadError(f"{error}; {WAYS_OUT} and start another one") from error

    def begin(self, run_worker: RunWorker, number: int, event: Event, new: NewRun) -> DurableFlowRun:
        """Create a new run in this process."""
        run = DurableFlowRun(self, run_worker, number, stored=0, new=new)
        run.start_encoded(event, new.input)
        return run


class DurableFlowRun(DurableRun, FlowRun):
    """A flow run that this process owns while the lease of its run worker is valid."""

    holds_sends = True
    is_durable = True

    def __init__(
        self,
        kind: FlowKind,
        run_worker: RunWorker,
        number: int,
        *,
        stored: int,
        state: FlowState | None = None,
        new: NewRun | None = None,
    ) -> None:
        cell = blank_cell(kind.workflow, None if state is None else state.store)
        FlowRun.__init__(self, kind.workflow, str(number), cell, state)
        self._begun_before: dict[int, str] = {}  # the steps in progress when it was loaded
        self._written = 0  # bytes of state since the state was measured
        self._began_at: dict[int, tuple[float, BlockedTime]] = {}  # of the steps with a timeout that run here
        if state is not None:
            begun = [each for each in state.works.values() if each.slot >= 0 and each.queue is None]
            self._begun_before = {each.id: each.step for each in begun}
        self.loop.state.copies = True
        self.kind = kind
        self.observer = kind.observer
        self._buffered = BufferedEvents()
        self.queues_work = declared(kind.workflow).topology.queues_work
        self.has_slot = kind.max_runs is not None
        self._in_transaction = asyncio.Lock()
        self._transaction: tuple[int, Connection] | None = None
        self._is_inside_transaction = False
        self._records: dict[int, TickRecord] = {}  # of inputs, outcomes and notes that are already encoded
        self._returned: tuple[Any, msgspec.Raw] | None = None  # the event of a step that has just ended, encoded
        self._questionnaire = Questionnaire(self.program.topology, self.loop.state)
        self._has_logged = False
        self._spans: RunTrace | None = None
        self._step_logs = RunStepLogs(number, self._home, self._write_logs)
        self.own(run_worker, number, stored=stored, new=new)

    def now(self) -> float:
        return self._run_worker.clock.now()

    def start_encoded(self, event: Event, data: bytes) -> None:
        """Start with an event that is already encoded."""
        version = self.program.version
        self._records[id(event)] = TickRecord("started", 0.0, event=msgspec.Raw(data), rules=RULES, version=version)
        self.start(event)

    def take_over(self) -> None:
        turn, renamed = self.turn(), self.program.topology.renamed
        turn.version = self.kind.version
        if renamed and self.stored:
            turn.renamed += renamed_questions(self.loop.state, renamed)
            turn.answered += renamed  # The questions of these steps are asked again under their new names.

    @property
    def threads(self) -> WorkThreads:
        return self._run_worker.threads

    # -- journaling -------------------------------------------------------------------------------

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        DurableRun.journal(self, loop, ticks, commands)
        self._returned = None
        if self.let_go:
            return
        turn = self._turn or self.turn()
        if self._has_logged and turn.trim:
            turn.trim_logs, self._has_logged = True, False
        self._questionnaire.follow(loop.state, ticks, turn)
        state = loop.state
        if state.mailbox or self._buffered.events:
            buffered = BufferedEvents(
                dict(Counter(qualified_name(type(each)) for each in state.mailbox)), state.dropped
            )
            if buffered.dropped > self._buffered.dropped:
                log.warning("the mailbox of a run is full: its oldest event was dropped", run=self.number)
            if buffered != self._buffered:
                self._buffered, turn.buffered = buffered, encode(buffered)

    def encode_tick(self, tick: Tick, begun: Begun) -> bytes:
        record, kind = None, type(tick)
        if kind is Completed:
            record = self._records.pop(id(tick.outcome), None)  # pyright: ignore[reportAttributeAccessIssue]
        elif kind is Noted:
            record = self._records.pop(id(tick.note), None)  # pyright: ignore[reportAttributeAccessIssue]
        elif kind is Started:
            record = self._records.pop(id(tick.input), None)  # pyright: ignore[reportAttributeAccessIssue]
        return encode_record(record or record_of(tick), begun, at=tick.at)

    def decode_tick(self, data: bytes) -> Tick:
        return decode_tick(data)

    def encode_shown(self, event: Any) -> bytes | None:
        return None if isinstance(event, InternalDispatchEvent) else self._encode_packed(event)

    def _encode_packed(self, value: Any) -> bytes:
        """Encode a value; the event that a step has just returned was encoded with its tick."""
        if self._returned is not None and self._returned[0] is value:
            return encode_packed_event(bytes(self._returned[1]))
        return encode_packed(value)

    def checked(self, spec: StepSpec, work: Work, ended: Ended) -> Ended:
        try:
            record = self._records[id(ended)] = record_of_end(0.0, work.id, ended)
            if len(ended.events) == 1:
                self._returned = ended.events[0], record.events[0]
        except Exception as error:  # noqa: BLE001 - a user's serializer may raise any exception
            ended = self.failure(spec, work, error)
        if self._transaction is not None and self._transaction[0] == work.id:
            if ended.error is None:
                self.turn().within = self._transaction[1]
                self._transaction, self.committing = None, work
            else:
                self._roll_back(work)
        return ended

    def note(self, work: Work, note: Note) -> None:
        if self.let_go:
            raise asyncio.CancelledError
        try:  # A note that cannot be stored must not take effect.
            record = record_of(Noted(0.0, work.id, note), self.loop.state.store)
            if isinstance(note, Wrote | StateEdited):
                self._check_state(len(record.note))
        except PayloadError as error:
            raise PayloadError(f"step {work.step}: {error}") from error
        self._records[id(note)] = record
        try:
            super().note(work, note)
        finally:
            self._records.pop(id(note), None)

    def _check_state(self, written: int) -> None:
        """Raise if the state is too large after a write. It is measured only when that much has been written."""
        if is_large_state(self._written + written):
            self._written = len(encode(pack_state(self.loop.state.store, "")))
            check_state_size(self._written + written, "the state of the run")
        self._written += written

    def show(self, event: Any) -> None:
        data = self.encode_shown(event)
        if data is None:
            return
        if threading.get_ident() == self._thread:
            self._show_encoded(data)
        else:
            self._home.call_soon_threadsafe(self._show_encoded, data)

    def _show_encoded(self, data: bytes) -> None:
        if not self.let_go:
            turn = self.turn()
            turn.shown.append((turn.last, data))

    def write_end(self, turn: RunTurn, end: EndRun) -> None:
        turn.logs += self._step_logs.take()
        turn.result = None if end.result is None else self._encode_packed(end.result)
        if end.error is not None:
            error = {"kind": end.error.kind, "message": end.error.message, "trace": end.error.traceback}
            if (detail := exception_detail(end.error.exception, end.error.kind)) is not None:
                error["detail"] = detail
            turn.error = encode(error)
            more = f"; {end.why}" if end.why else ""
            turn.note = storable(f"{end.error.kind.rpartition('.')[2]}: {end.error.message}{more}")
        elif end.state == "timed_out":
            turn.note = self._timeout_message()
        elif end.why:
            turn.note = storable(end.why)

    def stop_all(self) -> None:
        if self._spans is not None:
            self._spans.close()
        for task in list(self._tasks.values()):
            task.cancel()
        if self._transaction is not None:
            self._transaction[1].terminate()
        self._step_logs.close()
        self._events.close()

    # -- work elsewhere ---------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        state: FlowState = self.loop.state
        return state.idle or (state.on_queue > 0 and state.on_queue == state.running and state.pending == 0)

    @property
    def is_cleared(self) -> bool:
        return self.is_idle or (not self._tasks and self._begun_before.keys().isdisjoint(self.loop.state.works))

    @property
    def has_steps_here(self) -> bool:
        works = self.loop.state.works.values()
        return any(work.slot >= 0 and not work.suspended and work.id in self._tasks for work in works)

    @property
    def in_progress(self) -> str:
        steps = sorted(set(self._begun_before.values()))
        return f"step {' or '.join(steps)}" if steps else super().in_progress

    def job_for(self, command: RunWork) -> JobRow:
        spec = self.declared.steps[command.name]
        return job_row(step_job(self.kind.name, spec, self.number, self.loop.state, command, self.priority, self.fire))

    def trace_of_job(self, command: RunWork) -> str | None:
        if self._spans is None:
            return self.trace
        return self._spans.parent_of(self.loop.state.works[command.work].input)

    def work_ended(self, work: int, end: WorkEnd) -> Sequence[Tick]:
        now = self.now()
        if (child := end.run or end.batch) is not None:
            result = decode(bytes(end.result))
            event = ChildEnded(
                child=child, key=end.key or "", state=end.state, result=result, error=end.error, note=end.note
            )
            return [Received(now, event)]
        if end.state == "succeeded" and (why := decode(bytes(end.result), StepJobResult).diverged) is not None:
            self.stop_for_attention(why, ways_out=DIVERGED_WAYS_OUT)
            return []
        return ended_elsewhere(now, work, end)

    async def child(self, replay: StepReplay, workflow: Any, fields: dict[str, Any]) -> Any:
        name = workflow if isinstance(workflow, str) else getattr(workflow, "__name__", type(workflow).__name__)
        start = partial(self.kind.starter, workflow, fields)
        ended = await wait_for_child(self, replay, name, repr(sorted(fields.items())), "ctx.child()", start)
        return result_of(ended.state, ended.result, ended.error, ended.note)

    async def gather_jobs(self, replay: StepReplay, calls: Sequence[Call[Any]]) -> list[Any]:
        if self.kind.gatherer is None:
            return await super().gather_jobs(replay, calls)
        content = repr([(call.task.name, call.arguments) for call in calls])
        start = partial(self.kind.gatherer.start, calls)
        ended = await wait_for_child(self, replay, "jobs", content, "ctx.gather_jobs()", start)
        results = await self.kind.gatherer.results(ended.child)
        await replay.pass_mark(replay.lane(), RESULTS, ended.key)
        return results

    def diverge(self, work: Work, error: StepDiverged) -> None:
        if self.observer is not None:
            self.observer.diverged(self.run_id, error)
        self.stop_for_attention(str(error), ways_out=DIVERGED_WAYS_OUT)

    # -- a step's own transaction -----------------------------------------------------------------

    @asynccontextmanager
    async def transaction(self, work: Work) -> AsyncIterator[Connection]:
        if self._transaction is not None and self._transaction[0] == work.id:
            raise WorkflowRuntimeError(f"step {work.step} already has a transaction: a step can have only one")
        await self._in_transaction.acquire()
        try:
            connection = await self._run_worker.lend_connection()
        except BaseException:
            self._in_transaction.release()
            raise
        self._transaction = (work.id, connection)
        try:
            await connection.execute("BEGIN")
            self._is_inside_transaction = True
            yield connection
            self._is_inside_transaction = False
            await connection.execute(
                "SET CONSTRAINTS ALL IMMEDIATE"
            )  # A violation that would fail the commit fails here.
        except BaseException:
            self._roll_back(work)
            raise

    def check_may_wait(self, work: Work) -> None:
        if self._is_inside_transaction and self._transaction is not None and self._transaction[0] == work.id:
            raise WorkflowRuntimeError(
                f"step {work.step} waits inside ctx.transaction(), whose connection and locks would be held as long: "
                "wait before the transaction, or after it"
            )

    def _roll_back(self, work: Work) -> None:
        self._is_inside_transaction = False
        if self._transaction is not None and self._transaction[0] == work.id:
            self._transaction[1].terminate()
            self._transaction = None
            self._in_transaction.release()

    def transaction_over(self) -> None:
        self._in_transaction.release()

    # -- running steps ----------------------------------------------------------------------------

    def begun(self, spec: StepSpec, work: Work) -> None:
        listen(StepLogCapture(self._step_logs, work))
        if self.trace is not None or self._run_worker.is_tracing:
            if self._spans is None:
                self._spans = RunTrace(self.kind.name, self.number, self.trace)
            self._spans.begin(work.id, work.step, work.attempt, work.input)
        if spec.timeout is not None:
            self._began_at[work.id] = time.monotonic(), BlockedTime()

    def steps_here(self) -> Sequence[StepHere]:
        found: list[StepHere] = []
        for number, task in list(self._tasks.items()):
            work = self.loop.state.works.get(number)
            spec = None if work is None else self.declared.steps[work.step]
            if work is None or spec is None or not spec.is_async or task.done():
                continue
            limit_at, limit = None, ""
            if spec.timeout is not None and (begun := self._began_at.get(number)) is not None:
                began_at, blocked = begun
                if work.record:  # It was suspended: it has what is left of its timeout.
                    began_at = time.monotonic() + work.since - self.now()
                limit_at = began_at + spec.timeout + blocked.seconds
                limit = f"its timeout of {format_duration(spec.timeout)}"
            found.append(StepHere(number, work.step, task, limit_at, limit, partial(is_task_of_step, self, number)))
        return found

    def failure_of(self, step: StepHere, why: str) -> bytes:
        error = BlockedEventLoopError(f"step {step.name}: {why}; put blocking code into a plain step (`def`)")
        return self.failed_tick(self.loop.state.works[step.work], error)

    def failed_tick(self, work: Work, error: Exception) -> bytes:
        return encode_tick(Completed(self.now(), work.id, self.failure(self.declared.steps[work.step], work, error)))

    def _write_logs(self, logs: list[NewStepLog]) -> None:
        if logs and not self.let_go and self.loop.state.status == "running":
            self.turn().logs += logs
            self._has_logged = True

    def ended(self, spec: StepSpec, work: Work, ended: Ended) -> None:
        if self._step_logs.has_lines:
            self._write_logs(self._step_logs.ended(work))
        self._began_at.pop(work.id, None)
        if self._spans is not None:
            self._spans.end(work.id, ended.events, None if ended.error is None else ended.error.message)
        try:
            self.loop.post(Completed(self.now(), work.id, self.checked(spec, work, ended)))
        except Exception as error:  # noqa: BLE001 - a defect of one run must not affect other runs
            self.give_up(error)

    def failure(self, spec: StepSpec, work: Work, error: Exception) -> Ended:
        try:
            ended = super().failure(spec, work, error)
        except Exception as worse:  # noqa: BLE001 - a retry policy is user code
            worse.__context__ = error
            kind = f"{type(worse).__module__}.{type(worse).__qualname__}"
            ended = Ended(error=StepFailure(kind, f"the retry policy of step {spec.name} failed: {worse}", "", worse))
        return storable_end(ended)
