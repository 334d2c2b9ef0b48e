"""Durable runs of dags: every node is a job, and its end is a tick of the run.

A run carries the definition that it was started with, so that any keeper can drive it, whatever files and programs
say by then. Nothing of a run happens inside of its keeper: between two ticks it may leave memory at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.core.clock import SYSTEM_CLOCK
from tidemill.core.codec import decode, encode, storable
from tidemill.core.errors import TidemillError
from tidemill.core.job import DEFAULT_QUEUE, JobOptions, NewJob, Origin
from tidemill.core.refs import RefResolver
from tidemill.core.ticks import Command, Completed, EndRun, Publish, Resumed, RunWork, Started, Tick
from tidemill.dags.events import InputWanted, NodeEnded, NodeError
from tidemill.dags.journal import decode_tick, encode_tick
from tidemill.dags.model import Dag
from tidemill.dags.plan import task_of
from tidemill.dags.reducer import DagProgram
from tidemill.dags.state import DagState
from tidemill.engine.loop import RunLoop
from tidemill.engine.stored import Begun, StoredRun, WorkEnd
from tidemill.engine.task import Task
from tidemill.store.turns import NewRun, RunTurn

if TYPE_CHECKING:
    from tidemill.engine.keeper import RunKeeper

#: What a keeper must know in order to drive runs of dags: how, and no dag in particular.
DAG_KIND = ":dag"

LONG_REST = 60.0
_PROGRAMS_KEPT = 256


class DagInput(msgspec.Struct, omit_defaults=True):
    """What a run is started with: the definition, the arguments, and for a run that repeats another its first state."""

    dag: msgspec.Raw
    args: dict[str, Any] = {}
    seed: msgspec.Raw = msgspec.Raw()


class DagKind:
    """What a keeper needs to know of dags in order to drive their runs."""

    version = None

    def __init__(self, tasks: Mapping[str, Task[Any, Any]], refs: RefResolver | None = None) -> None:
        self.tasks = tasks
        self._program = lru_cache(_PROGRAMS_KEPT)(lambda dag: DagProgram(Dag.from_json(dag), refs=refs, narrate=False))

    def program(self, dag: bytes) -> DagProgram:
        """The program for a dag as it is stored."""
        return self._program(dag)

    def restore(self, stored: bytes, snapshot: bytes | None, ticks: Sequence[bytes]) -> tuple[DagProgram, DagState]:
        """A run's program, and its state from what is stored of it."""
        given = decode(stored, DagInput)
        program = self.program(bytes(given.dag))
        if snapshot is None and len(given.seed):
            snapshot = bytes(given.seed)
        state = program.begin() if snapshot is None else program.restore(snapshot)
        for data in ticks:
            program.reduce(state, decode_tick(data))
        return program, state

    def open(self, keeper: RunKeeper, row: Any, snapshot: bytes | None, ticks: list[bytes]) -> tuple[DagRun, Tick]:
        """A run from what is stored of it, and the tick with which it goes on."""
        program, state = self.restore(row["input"], snapshot, ticks)
        run = DagRun(self, program, keeper, row["id"], stored=row["seq"], state=state)
        now = SYSTEM_CLOCK.now()
        return run, Resumed(now, queued=True) if row["seq"] else started(now, row["input"])

    def begin(self, keeper: RunKeeper, number: int, new: NewRun) -> DagRun:
        """A run that begins here and now."""
        program, state = self.restore(new.input, None, ())
        run = DagRun(self, program, keeper, number, stored=0, state=state, new=new)
        run.loop.post(started(SYSTEM_CLOCK.now(), new.input))
        return run


def started(at: float, stored: bytes) -> Started:
    """The first tick of a run; one that repeats another keeps its arguments."""
    given = decode(stored, DagInput)
    return Started(at, None if len(given.seed) else given.args)


class DagRun(StoredRun):
    """One run of a dag, owned by this process for as long as its keeper's lease is good."""

    queues_work = True
    works_in_place = False

    def __init__(
        self,
        kind: DagKind,
        program: DagProgram,
        keeper: RunKeeper,
        number: int,
        *,
        stored: int,
        state: DagState,
        new: NewRun | None = None,
    ) -> None:
        self.kind = kind
        self.program = program
        self.loop = RunLoop(program, self, state)
        self.result = asyncio.get_running_loop().create_future()
        self._asks = {name for name, node in state.nodes.items() if node.status == "waiting"} if stored else set()
        self.own(keeper, number, stored=stored, new=new)

    @property
    def patience(self) -> float:
        # A run that waits for people only may do so for long; one with jobs under way is needed again soon.
        return LONG_REST if self.loop.state.works else super().patience

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        super().journal(loop, ticks, commands)
        if self.let_go:
            return
        nodes = self.loop.state.nodes
        answered = {name for name in self._asks if nodes[name].status != "waiting"}
        self._asks -= answered
        turn = self.turn()
        turn.settled += answered
        for command in commands:
            if type(command) is Publish and isinstance(command.event, InputWanted):
                wanted = command.event
                self._asks.add(wanted.node)
                schema = None if wanted.schema is None else encode(wanted.schema)
                turn.asks.append((wanted.node, storable(wanted.prompt), schema, wanted.due))

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

    def job_for(self, command: RunWork) -> NewJob | None:
        state = self.loop.state
        step = self.program.step_of(state, command.work)
        assert step is not None  # noqa: S101 - the program has just begun this work
        spec = task_of(step)
        try:
            return self._job(spec, command)
        except TidemillError as error:  # Nothing can be enqueued: the node has failed before it began.
            ended = NodeEnded("failed", error=NodeError("bad_args", storable(str(error))))
            self.loop.post(Completed(SYSTEM_CLOCK.now(), command.work, ended))
            return None

    def _job(self, spec: Any, command: RunWork) -> NewJob:
        task = self.kind.tasks.get(spec.task)
        declared = JobOptions() if task is None else task.job_options or JobOptions()
        options = msgspec.structs.replace(
            declared,
            retry=spec.retry or declared.retry,
            budget=spec.budget if spec.budget is not None else declared.budget,
            stall=spec.stall if spec.stall is not None else declared.stall,
            required_model=spec.required_model or declared.required_model,
            run=self.number,
            node=command.name,
        )
        wish = {"queue": spec.queue, "priority": spec.priority, "options": options}
        origin = Origin(by=f"run r{self.number} ({command.name})")
        if task is not None:
            args = task.signature.pack(command.input)
            return task.new_job(args, origin=origin, **wish)
        given = {name: value for name, value in wish.items() if value is not None}
        args = msgspec.Raw(encode(command.input))
        return NewJob(**{"queue": DEFAULT_QUEUE, **given}, task=spec.task, args=args, origin=origin).validate()

    def work_ended(self, work: int, end: WorkEnd) -> Sequence[Tick]:
        error = None
        if end.error is not None:
            error = NodeError(*(str(end.error.get(name, "")) for name in ("kind", "message", "traceback")))
        result = None if bytes(end.result) == b"null" else msgspec.Raw(bytes(end.result))
        state: Any = end.state
        return [Completed(SYSTEM_CLOCK.now(), work, NodeEnded(state, end.job, result, error, end.note or ""))]
