"""Durable runs of dags: every node is a job, and the end of a job is a tick of the run.

A run stores the definition that it was started with, so that any run worker can drive it, even if the file or program
has changed. All work is done by jobs: the run can be released from memory between any two ticks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.core.codec import decode, encode, storable
from tidemill.core.errors import PayloadError, TidemillError
from tidemill.core.expressions.refs import RefResolver
from tidemill.core.ticks import Command, Completed, EndRun, Publish, Received, Resumed, RunWork, Started, Tick
from tidemill.dags.definition.model import Dag
from tidemill.dags.definition.run_args import check_args
from tidemill.dags.reducer.events import InputWanted, NodeEnded, NodeFailure
from tidemill.dags.reducer.journal import decode_tick, encode_tick
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.reducer.reduction import too_large
from tidemill.dags.reducer.state import DagState
from tidemill.dags.runner.node_jobs import NodeJobs
from tidemill.dags.runner.successors import following_works
from tidemill.engine.jobs.task import Task
from tidemill.engine.runs.control_loop import RunLoop
from tidemill.engine.runs.durable_run import Begun, DurableRun, WorkEnd
from tidemill.store.runs.run_turn import JobChain, JobRow, NewRun, RunTurn, with_job_trace

if TYPE_CHECKING:
    from tidemill.engine.runs.run_worker import RunWorker

LONG_REST = 60.0
BYTES_OF_A_NODE = 128  # in a snapshot, about, if it has ended with a small result
_PROGRAMS_KEPT = 256


class DagInput(msgspec.Struct, omit_defaults=True):
    """The input of a run: the definition, the arguments, and for a rerun the initial state."""

    dag: msgspec.Raw
    args: dict[str, Any] = {}
    seed: msgspec.Raw = msgspec.Raw()
    unchecked: bool = False
    """Whether nothing has checked the arguments: SQL has started it."""


class DagKind:
    """Opens, starts and restores dag runs for a run worker."""

    version = None
    definition = None
    max_runs = None
    events = ()

    def __init__(
        self, tasks: Mapping[str, Task[Any, Any]], refs: RefResolver | None = None, *, named: bool = False
    ) -> None:
        self.tasks = tasks
        self._named = named
        self._refs = refs
        self._programs = lru_cache(_PROGRAMS_KEPT)(self._make)

    def check_args(self, dag: Dag[Any], args: Mapping[str, Any]) -> None:
        """Raise a `PayloadError` for arguments of a run that the dag does not take."""
        check_args(dag, args, self._refs)

    def program(self, dag: bytes) -> DagProgram:
        """Return the program of a stored dag."""
        return self._programs(dag)[0]

    def _make(self, dag: bytes) -> tuple[DagProgram, NodeJobs]:
        return DagProgram(Dag.from_json(dag), refs=self._refs, narrate=False), NodeJobs(self.tasks, named=self._named)

    def restore(self, stored: bytes, snapshot: bytes | None, ticks: Sequence[bytes]) -> tuple[DagProgram, DagState]:
        """Restore the program and the state of a stored run."""
        given = decode(stored, DagInput)
        program = self.program(bytes(given.dag))
        if snapshot is None and len(given.seed):
            snapshot = bytes(given.seed)
        state = program.begin() if snapshot is None else program.restore(snapshot)
        for data in ticks:
            program.reduce(state, decode_tick(data))
        return program, state

    def open(
        self, run_worker: RunWorker, row: Any, snapshot: bytes | None, ticks: list[bytes], definition: bytes | None
    ) -> tuple[DagRun, list[Tick]]:
        """Open a stored run, which has its own definition; returns it with the tick that continues it."""
        if row["seq"] == 0:
            self._check_stored(row["input"])
        program, state = self.restore(row["input"], snapshot, ticks)
        run = DagRun(program, self._jobs(row["input"]), run_worker, row["id"], stored=row["seq"], state=state)
        now = run_worker.clock.now()
        return run, [Resumed(now, queued=True) if row["seq"] else started(now, row["input"])]

    def _check_stored(self, stored: bytes) -> None:
        given = decode(stored, DagInput)
        if given.unchecked:
            try:
                self.check_args(Dag.from_json(bytes(given.dag)), given.args)
            except PayloadError as error:
                raise PayloadError(f"{error}; cancel the run, and start another one") from error

    def _jobs(self, stored: bytes) -> NodeJobs:
        return self._programs(bytes(decode(stored, DagInput).dag))[1]

    def begin(self, run_worker: RunWorker, number: int, new: NewRun) -> DagRun:
        """Create a new run in this process."""
        program, state = self.restore(new.input, None, ())
        run = DagRun(program, self._jobs(new.input), run_worker, number, stored=0, state=state, new=new)
        run.loop.post(started(run_worker.clock.now(), new.input))
        return run


def started(at: float, stored: bytes) -> Started:
    """Return the first tick of a run; a rerun keeps the arguments of the old run."""
    given = decode(stored, DagInput)
    return Started(at, None if len(given.seed) else given.args)


class DagRun(DurableRun):
    """A dag run that this process owns while the lease of its run worker is valid."""

    queues_work = True
    works_in_place = False

    def __init__(
        self,
        program: DagProgram,
        jobs: NodeJobs,
        run_worker: RunWorker,
        number: int,
        *,
        stored: int,
        state: DagState,
        new: NewRun | None = None,
    ) -> None:
        self.program = program
        self._jobs = jobs
        self.loop = RunLoop(program, self, state)
        self.result = asyncio.get_running_loop().create_future()
        self._handed: set[int] = set()  # pieces of work whose jobs have been stored by those before them
        self._asks = {name for name, node in state.nodes.items() if node.status == "waiting"} if stored else set()
        self.own(run_worker, number, stored=stored, new=new)
        self.snapshot_size = BYTES_OF_A_NODE * len(state.nodes)

    @property
    def patience(self) -> float:
        # A run that waits only for people may wait for a long time; a run with jobs is needed again soon.
        return LONG_REST if self.loop.state.works else super().patience

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        super().journal(loop, ticks, commands)
        if self.let_go:
            return
        self._note_asks(commands)
        self._note_handed(ticks)

    def _note_handed(self, ticks: Sequence[Tick]) -> None:
        """Say what follows the only piece of work in progress, if its job is stored now; take it back if need be."""
        turn, state = self.turn(), self.loop.state
        if self._handed:  # The reducer has decided otherwise: the node was cancelled.
            turn.stops += self._handed
            self._handed.clear()
        if any(type(tick) is Received for tick in ticks):
            turn.keeps_decisions = True
            turn.jobs = [(work, job._replace(chain=None)) for work, job in turn.jobs]
        elif len(state.works) == 1 and not self._asks and turn.jobs and turn.jobs[-1][0] in state.works:
            work, job = turn.jobs[-1]
            if (following := self._following_jobs()) and job.keys is None:
                turn.jobs[-1] = work, job._replace(chain=JobChain(following, self.program.limits.result))

    def _following_jobs(self) -> list[tuple[int, JobRow]]:
        following: list[tuple[int, JobRow]] = []
        for command in following_works(self.program, self.loop.state):
            try:
                job = self._job(command)
            except TidemillError:  # The node fails with this error when it starts.
                break
            if job.keys is not None or (job.options is not None and b'"required_model"' in job.options):
                break  # Concurrency keys and models decide when such a job runs.
            parent = self.trace_of_job(command)
            following.append((command.work, job if parent is None else with_job_trace(job, parent)))
        return following

    def _note_asks(self, commands: Sequence[Command]) -> None:
        nodes = self.loop.state.nodes
        if self._asks:
            answered = {name for name in self._asks if nodes[name].status != "waiting"}
            self._asks -= answered
            turn = self.turn()
            turn.answered += answered
            turn.asks = [ask for ask in turn.asks if ask[0] not in answered]
        for command in commands:
            if type(command) is Publish and type(command.event) is InputWanted:
                wanted = command.event
                if nodes[wanted.node].status != "waiting":
                    continue  # The input was requested and cancelled in the same turn.
                self._asks.add(wanted.node)
                schema = None if wanted.schema is None else encode(wanted.schema)
                self.turn().asks.append((wanted.node, storable(wanted.prompt), schema, wanted.due))

    def execute(self, loop: RunLoop, command: Command) -> None:
        if isinstance(command, EndRun) and not self.result.done():
            self.result.set_result(command)

    def encode_tick(self, tick: Tick, begun: Begun) -> bytes:
        return encode_tick(tick)

    def decode_tick(self, data: bytes) -> Tick:
        return decode_tick(data)

    def encode_shown(self, event: Any) -> bytes | None:
        return encode(event)

    def write_end(self, turn: RunTurn, end: EndRun) -> None:
        turn.result = None if end.result is None else encode(end.result)
        if end.error is not None:
            turn.error = encode(end.error)
            turn.note = storable(end.error.message)

    def job_for(self, command: RunWork) -> JobRow | None:
        if command.work in self._handed:
            self._handed.remove(command.work)
            return None
        try:
            return self._job(command)
        except TidemillError as error:  # The job cannot be created: the node fails before it starts.
            ended = NodeEnded("failed", error=NodeFailure("bad_args", storable(str(error))))
            self.loop.post(Completed(self._run_worker.clock.now(), command.work, ended))
            return None

    def _job(self, command: RunWork) -> JobRow:
        row = self._jobs.row(self.number, self.program.plan.steps[command.name], command, self.priority)
        fire = self.fire
        return row if fire is None else row._replace(origin=encode(fire))

    def work_ended(self, work: int, end: WorkEnd) -> Sequence[Tick]:
        if end.successor is not None:
            self._handed.add(end.successor)
        error = None
        if end.error is not None:
            error = NodeFailure(*(str(end.error.get(name, "")) for name in ("kind", "message", "traceback")))
        result = None if bytes(end.result) == b"null" else msgspec.Raw(bytes(end.result))
        state: Any = end.state
        # Such a result is too large for the journal as well.
        if result is not None and len(result) > self.program.limits.result:
            state, error = "failed", too_large("the result", len(result), self.program.limits.result)
            result = None
        return [Completed(self._run_worker.clock.now(), work, NodeEnded(state, end.job, result, error, end.note or ""))]
