"""A run of a dag by hand: ticks go in, and what the run wants is seen at once. No database, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tidemill.core.retry import retry
from tidemill.core.ticks import (
    CancelAsked,
    Command,
    Completed,
    DropTimer,
    Elapsed,
    EndRun,
    Publish,
    Received,
    RunWork,
    SetTimer,
    Started,
    StopWork,
    Tick,
)
from tidemill.dags import input_node, node, ref, sub_dag
from tidemill.dags.definition.model import Dag
from tidemill.dags.reducer.events import NodeEnded, NodeFailure, Submission
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.reducer.state import DagState


def whole() -> Dag:
    """A dag with everything that one can have."""
    inner = Dag("inner", [node("a", "t.a", args={"x": ref("run.x")}), input_node("b", prompt="?", deps=["a"])])
    return Dag(
        "whole",
        nodes=[
            node(
                "extract",
                "etl.extract",
                args={"day": ref("$.run.day"), "n": [1, 2.5, None, "x", {"deep": True}]},
                queue="fetch",
                priority=7,
                budget="10m",
                stall=30,
                required_model="minilm",
                retry=retry(3, backoff="10s", no_retry=(ValueError,)),
                on_failure="continue",
                about="gets it",
            ),
            input_node(
                "approve",
                prompt="Load {{$.extract.rows}} rows?",
                schema={"type": "object", "required": ["answer"]},
                timeout="2h",
                default={"answer": "yes"},
            ),
            input_node("any", prompt="?", timeout=5, default=None),
            node(
                "each",
                "etl.one",
                map=ref("extract.files"),
                args={"file": ref("item.name")},
                max_concurrency=5,
                tolerate=2,
            ),
            sub_dag(
                "report", inner, args={"x": ref("each[0]")}, skip_if="approve.answer == 'no'", deps=["each", "approve"]
            ),
        ],
        result={"n": ref("report.b")},
        about="all of it",
    )


class Walk:
    """A run that a test walks through; everything that it was told and wanted is kept."""

    def __init__(self, dag: Dag, state: DagState | None = None, **options: Any) -> None:
        self.program = DagProgram(dag, **options)
        self.state = self.program.begin() if state is None else state
        self.now = 100.0
        self.journal: list[Tick] = []
        self.commands: list[Command] = []
        self.works: dict[int, RunWork] = {}
        self.timers: dict[str, float] = {}
        self.ends: list[EndRun] = []
        self.begun: list[str] = []

    def post(self, tick: Tick) -> list[Command]:
        self.journal.append(tick)
        commands = self.program.reduce(self.state, tick)
        for command in commands:
            if isinstance(command, RunWork):
                assert command.work not in self.works, "one work is begun twice"
                self.works[command.work] = command
                self.begun.append(command.name)
            elif isinstance(command, StopWork):
                del self.works[command.work]
            elif isinstance(command, SetTimer):
                self.timers[command.timer] = command.due
            elif isinstance(command, DropTimer):
                del self.timers[command.timer]
            elif isinstance(command, EndRun):
                self.ends.append(command)
        self.commands += commands
        return commands

    def start(self, **run: Any) -> Walk:
        self.post(Started(self.now, run))
        return self

    def end(self, work: int, ended: NodeEnded) -> Walk:
        self.works.pop(work, None)
        self.now += 1
        self.post(Completed(self.now, work, ended))
        return self

    def done(self, name: str, result: Any = None, **more: Any) -> Walk:
        """The oldest work of a node succeeds."""
        raw = None if result is None else msgspec.Raw(msgspec.json.encode(result))
        return self.end(self.work(name), NodeEnded("succeeded", result=raw, **more))

    def fail(self, name: str, message: str = "no luck", kind: str = "ValueError") -> Walk:
        return self.end(self.work(name), NodeEnded("failed", error=NodeFailure(kind, message)))

    def submit(self, node: str, value: Any, by: str = "ann", key: str | None = None) -> list[Command]:
        self.now += 1
        return self.post(Received(self.now, Submission(node, value, by, key), node))

    def elapse(self, timer: str) -> Walk:
        self.now = max(self.now, self.timers.pop(timer, self.now))
        self.post(Elapsed(self.now, timer))
        return self

    def cancel(self, reason: str = "enough") -> Walk:
        self.post(CancelAsked(self.now, reason))
        return self

    def work(self, name: str) -> int:
        return min(number for number, work in self.works.items() if work.name == name)

    @property
    def running(self) -> list[str]:
        """The nodes that have work under way, by the order in which it began."""
        return [self.works[number].name for number in sorted(self.works)]

    @property
    def statuses(self) -> dict[str, str]:
        return {name: node.status for name, node in self.state.nodes.items()}

    def given(self, name: str) -> Any:
        """The arguments of the oldest work of a node that is under way."""
        return self.works[self.work(name)].input


def shown(commands: Iterable[Command], kind: Any) -> list[Any]:
    """The events of a kind among what is published."""
    return [c.event for c in commands if isinstance(c, Publish) and isinstance(c.event, kind)]
