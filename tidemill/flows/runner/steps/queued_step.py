"""Steps on a queue: a step runs as a job that any worker host may claim, and its outcome returns to the run.

The job contains the piece of work and the run's state at its start. The writes, events and result of the step return
together at the end of its job, as the ticks that a step in the run's process would have caused. A step that waits for
an event ends its job; when the answer arrives, a new job is created that has the earlier answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import PayloadError
from tidemill.core.jobs.job import DEFAULT_PRIORITY, NewJob, Origin
from tidemill.core.ticks import Completed, Noted, RunWork, Tick
from tidemill.engine.jobs.task import Task, TaskOptions
from tidemill.engine.runs.durable_run import WorkEnd
from tidemill.engine.worker.context import JobCancelled, find_current_job
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import InternalDispatchEvent
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.definition.validate import find_state_type
from tidemill.flows.encoding.journal import decode_tick, encode_tick
from tidemill.flows.encoding.snapshot import pack_work, unpack_work
from tidemill.flows.encoding.values import pack, unpack
from tidemill.flows.errors import StepDiverged, WorkflowRuntimeError
from tidemill.flows.reducer.state.flow_state import FlowState, Work
from tidemill.flows.reducer.state.paths import read_path
from tidemill.flows.reducer.state.undo import add_draft, write
from tidemill.flows.reducer.step_ticks import (
    Did,
    EditBasis,
    Ended,
    Gathered,
    Note,
    StateEdited,
    StepFailure,
    WaitAsked,
    Wrote,
)
from tidemill.flows.runner.in_memory import FlowRun
from tidemill.flows.runner.replay.observer import StepObserver
from tidemill.flows.runner.replay.record_lanes import RecordLane
from tidemill.flows.runner.replay.step_replay import StepReplay
from tidemill.flows.runner.replay.wait import stay_unanswered
from tidemill.flows.runner.state_store import StateCell
from tidemill.flows.runner.steps.attempt import run_attempt

if TYPE_CHECKING:
    from tidemill.engine.runs.run_store import RunPost
    from tidemill.flows.definition.workflow import AnyWorkflow

Reach = Callable[[], Awaitable["RunPost"]]


def task_name(workflow: str, step: str) -> str:
    """Return the name of the task whose jobs run a step of a workflow."""
    return f"{workflow}.{step}"


def step_tasks(
    name: str, workflow: AnyWorkflow, reach: Reach, observer: StepObserver | None = None
) -> list[Task[Any, Any]]:
    """Create the tasks for the steps of a workflow that are placed on queues."""
    return [
        Task(_runner(workflow, reach, observer), task_name(name, step), _task_options(spec))
        for spec in declared(workflow).steps.values()
        if spec.queue is not None
        for step in (spec.name, *spec.renamed_from)
    ]


def _task_options(spec: StepSpec, priority: int | None = None) -> TaskOptions:
    options = spec.job_options
    usual = DEFAULT_PRIORITY if priority is None else priority
    return TaskOptions(
        spec.queue or "",
        usual if options.priority is None else options.priority,
        budget=options.budget,
        required_model=options.required_model,
        resources=options.resources,
    )


def step_job(
    workflow: str,
    spec: StepSpec,
    run: int,
    state: FlowState,
    command: RunWork,
    priority: int | None,
    origin: Origin | None,
) -> NewJob:
    """Create the job for a piece of work, with the priority of its run unless the step has its own."""
    work, options = state.works[command.work], _task_options(spec, priority)
    args = {"run": run, "work": pack_work(work), "store": pack(state.store)}
    return NewJob(
        queue=command.queue or "",
        task=task_name(workflow, work.step),
        args=msgspec.Raw(encode(args)),
        priority=options.priority,
        options=options.job_options(),
        origin=origin or Origin(by=f"run r{run}"),
    )


def ended_elsewhere(now: float, work: int, end: WorkEnd) -> Sequence[Tick]:
    """Return the ticks of a run that follow from the end of a step's job."""
    if end.state == "succeeded":
        ticks = decode(bytes(end.result), StepJobResult).ticks
        return [msgspec.structs.replace(decode_tick(bytes(tick)), at=now) for tick in ticks]
    why = f"job {end.job} of the step {_ENDS.get(end.state, end.state)}"
    error = end.error or {}
    message = f"{why}: {error.get('message') or end.note or 'the reason is unknown'}"
    kind = "tidemill.flows.errors.WorkflowRuntimeError"
    failure = StepFailure(kind, message, error.get("traceback", ""), WorkflowRuntimeError(message))
    return [Completed(now, work, Ended(error=failure))]


class StepJobResult(msgspec.Struct):
    """The result of a step's job: the ticks for its run, or why the step does not follow its record."""

    ticks: list[msgspec.Raw] = []
    diverged: str | None = None


_ENDS = {"failed": "failed", "cancelled": "was cancelled", "expired": "expired before it ran"}


def _runner(
    workflow: AnyWorkflow, reach: Reach, observer: StepObserver | None
) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def run_step(run: int, work: dict[str, Any], store: Any) -> dict[str, Any]:
        away = QueuedStepRun(workflow, run, unpack(store), await reach(), observer)
        step = work["step"]  # The job may be of an earlier version.
        done = await away.perform(unpack_work({**work, "step": declared(workflow).topology.renamed.get(step, step)}))
        if isinstance(done, StepDiverged):
            return {"ticks": [], "diverged": str(done)}
        return {"ticks": [msgspec.Raw(tick) for tick in done]}

    return run_step


class _Asked(BaseException):
    """Unwinds a step that waits, so that its job ends."""


class _Collector:
    """Replaces the control loop: collects the ticks, which are sent to the run at the end."""

    def __init__(self, state: FlowState) -> None:
        self.state = state
        self.ticks: list[bytes] = []

    def post(self, tick: Tick) -> None:
        self.ticks.append(encode_tick(tick))


class QueuedStepRun(FlowRun):
    """The view of a run for one of its steps in another process."""

    holds_sends = True
    is_durable = True

    def __init__(
        self, workflow: AnyWorkflow, run: int, store: Any, post: RunPost, observer: StepObserver | None
    ) -> None:
        cell = StateCell(find_state_type(declared(workflow).steps))
        cell.store = store
        super().__init__(workflow, str(run), cell)
        self.loop.state.copies = True
        self.observer = observer
        self.number = run
        self.loop: Any = _Collector(self.loop.state)
        self._post = post
        self._unpublished: list[bytes] = []
        self._publishing: asyncio.Task[None] | None = None
        self._given = store
        self._basis: dict[str, Any] = {}
        self.divergence: StepDiverged | None = None

    def now(self) -> float:
        return self._post.clock.now()

    async def perform(self, work: Work) -> list[bytes] | StepDiverged:
        """Run a step and return the ticks for its run, or why it does not follow its record."""
        self.loop.state.works[work.id] = work
        for draft in work.kept_writes:
            draft.work, self.loop.state.drafted = work.id, draft.number
            add_draft(self.loop.state.drafts, draft)
        self._questions.begin(work.id, (dict(work.answers), dict(work.lapsed), work.given_up))
        job = find_current_job()
        self.origin = None if job is None else job.origin_data
        if job is not None and job.attempt > 1:
            await self._recall(work)
        with suppress(_Asked):
            await run_attempt(self, work)
        await asyncio.sleep(0)  # What the step has shown last is published from here on.
        if self._publishing is not None:
            await self._publishing
        if self.divergence is not None:
            return self.divergence
        if job is not None and job.cancel_reason is not None:
            raise JobCancelled(job.cancel_reason)
        if job is not None and job.overrun is not None:
            raise asyncio.CancelledError  # The job says which limit the step has broken.
        if self._basis:
            basis = Noted(self.now(), work.id, EditBasis(tuple(self._basis.items())))
            return [encode_tick(basis), *self.loop.ticks]
        return self.loop.ticks

    def note_basis(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._basis.setdefault(path, read_path(self._given, path))

    def note(self, work: Work, note: Note) -> None:
        state = self.loop.state
        if isinstance(note, Gathered):
            raise WorkflowRuntimeError(
                f"step {work.step} runs on queue {work.queue}, where collect_events() is not available: "
                "use a list of events as its parameter"
            )
        super().note(work, note)
        if isinstance(note, Wrote):
            write(state, work, ((note.path, note.value),), edits=note.edits)
        elif isinstance(note, StateEdited):
            write(state, work, note.changes, edits=note.edits)

    async def commit_effect(self, replay: StepReplay, lane: RecordLane, name: str, result: Any) -> None:
        work = replay.work
        await self._post.send(self.number, encode_tick(Noted(self.now(), work.id, Did(name, result))))
        work.did[name] = result
        await replay.rest(lane)

    async def ask(
        self, replay: StepReplay, lane: RecordLane, note: WaitAsked, begin: Callable[[], Awaitable[None]] | None = None
    ) -> Any:
        if note.question in self._questions.memory(replay.work.id).given_up:
            return await stay_unanswered(replay, lane, note.question)
        self.note(replay.work, msgspec.structs.replace(note, operations=replay.flush(), rests_on=(note.question,)))
        raise _Asked

    async def child(self, replay: StepReplay, workflow: Any, fields: dict[str, Any]) -> Any:
        work = replay.work
        raise WorkflowRuntimeError(
            f"step {work.step} runs on queue {work.queue}, where ctx.child() is unavailable: use a step without a queue"
        )

    def diverge(self, work: Work, error: StepDiverged) -> None:
        self.divergence = error
        if self.observer is not None:
            self.observer.diverged(self.run_id, error)

    def show(self, event: Any) -> None:
        if isinstance(event, InternalDispatchEvent):
            return
        data = encode(pack(event))

        def put() -> None:
            self._unpublished.append(data)
            if self._publishing is None:
                self._publishing = asyncio.create_task(self._publish())

        self.soon(put)

    async def _publish(self) -> None:
        """Publish the events in the order in which the step has shown them."""
        while self._unpublished:
            shown, self._unpublished = self._unpublished, []
            await self._post.publish(self.number, shown)
        self._publishing = None

    def exit_of(self, spec: StepSpec, error: BaseException) -> Exception:
        if isinstance(error, _Asked):
            raise error
        return super().exit_of(spec, error)  # The retry policy is the step's, and not that of its job.

    def checked(self, spec: StepSpec, work: Work, ended: Ended) -> Ended:
        try:
            encode_tick(Completed(0.0, work.id, ended))
        except Exception as error:  # noqa: BLE001 - a user's serializer may raise any exception
            return self.failure(spec, work, error)
        return ended

    async def _recall(self, work: Work) -> None:
        """Load the completed side effects of an earlier attempt of this job whose worker was lost."""
        for data in await self._post.read_notes(self.number, work.id):
            try:
                tick = decode_tick(data)
            except PayloadError:
                continue
            if isinstance(tick, Noted) and isinstance(tick.note, Did):
                work.did[tick.note.name] = tick.note.result
