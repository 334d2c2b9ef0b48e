"""The `monitors` suite: ingest, decoding, recomputing, comparing programs, alerts, restarts and backtests.

Peers: check-then-insert per event (as the source document has it), hmmlearn's full decode, the apted package, and the
document's way of computing everything again for each run. Where there is no peer, its place has the wanted limit.
"""

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from apps.classroom.blocks import read_program, tree_of
from apps.classroom.monitor import classroom
from apps.classroom.score import bucket_of, change_score
from apps.classroom.simulator import Block, Lesson, to_xml
from apps.classroom.student import MODEL, Student
from apps.classroom.tree_kernel import compiled_distance
from benchmarks.monitors import scenarios
from benchmarks.shared import report, venv
from benchmarks.shared.contenders import say
from benchmarks.shared.postgres import Server
from tidemill.monitors.decoders import Hmm, Tree, Viterbi, decode, distance
from tidemill.monitors.decoders.tree_distance import plain_distance
from tidemill.monitors.definition.event import Event, MonitorTick
from tidemill.monitors.reducer.entity_state import EntityState
from tidemill.monitors.reducer.reducer import MonitorRules, TickIndex, advance
from tidemill.monitors.runner.backtest import backtest
from tidemill.sources.base import read_time
from tidemill.store.monitors.monitors import CursorMove, NewEvents, add_entities, declare_monitor, ingest, seal_tick

RUNS = 5000
LIMITS = {
    "straggler_load": 1.5,
    "alert_p99": 300.0,
    "restart_s": 10.0,
    "memory_mb": 500.0,
    "idle_percent": 1.0,
    "backtest_s": 30.0,
}


class Plan(msgspec.Struct, frozen=True):
    """How much of each: pages to ingest, events of the peer, pairs of programs, seconds of alerts, days of a class."""

    pages: int
    peer_events: int
    rounds: int
    pairs: int
    straggler_minutes: int
    alert_s: float
    entities: int
    days: int
    idle: bool


TOY = Plan(pages=1, peer_events=5, rounds=1, pairs=1, straggler_minutes=1, alert_s=1.0, entities=20, days=1, idle=False)
QUICK = Plan(
    pages=10, peer_events=500, rounds=5, pairs=4, straggler_minutes=4, alert_s=6.0, entities=10_000, days=4, idle=False
)
FULL = Plan(
    pages=40,
    peer_events=1500,
    rounds=5,
    pairs=20,
    straggler_minutes=20,
    alert_s=20.0,
    entities=10_000,
    days=20,
    idle=True,
)


class Run:
    """One run of the suite on one server."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server = server
        self._plan = plan
        self._draw = random.Random(1)

    def rows(self) -> list[report.Row]:
        rows = [self._ingest(), self._ingest_copy()]
        pairs = [(self._program(100), self._program(100)) for _ in range(self._plan.pairs)]
        observations = self._draw.choices([0, 1, 1, 1, 2], k=RUNS)
        theirs = self._peers(pairs, observations)
        rows += [self._decode(observations, theirs), self._recompute(theirs), self._tree_edit(pairs, theirs)]
        rows += [self._limit("straggler_load", "requests after ÷ before", self._straggler())]
        rows += [self._limit("alert_p99", "ms", self._alerts())]
        restart = self._restart()
        rows += [self._limit("restart_s", "s", restart["restart_s"])]
        rows += [self._limit("memory_mb", "MB", restart["memory_mb"])]
        if "idle_percent" in restart:
            rows += [self._limit("idle_percent", "% of a core", restart["idle_percent"])]
        rows += [self._limit("backtest_s", f"s for {self._plan.days} days", self._backtest())]
        return rows

    def _ingest(self) -> report.Row:
        """The round in the middle: the disk is not the same from one to the next, and both depend on it."""
        rounds: list[tuple[float, float]] = []
        for _ in range(self._plan.rounds):
            with self._server.database("per_event") as dsn:
                theirs = asyncio.run(scenarios.measure_per_event(dsn, self._plan.peer_events))
            with self._server.database("monitors") as dsn:
                ours = asyncio.run(scenarios.measure_ingest(dsn, self._plan.pages))
            say(f"ingest: ours {ours:,.0f}/s, per event {theirs:,.0f}/s")
            rounds.append((ours, theirs))
        ours, theirs = sorted(rounds, key=lambda round: round[0] / round[1])[len(rounds) // 2]
        return report.compare("ingest", "events/s", ours, "per_event", theirs)

    def _ingest_copy(self) -> report.Row:
        """The same beside a COPY, which neither looks for what is there nor moves a cursor."""
        rounds: list[tuple[float, float]] = []
        for _ in range(self._plan.rounds):
            with self._server.database("copy") as dsn:
                theirs = asyncio.run(scenarios.measure_copy(dsn, self._plan.pages))
            with self._server.database("monitors") as dsn:
                ours = asyncio.run(scenarios.measure_ingest(dsn, self._plan.pages))
            say(f"ingest: ours {ours:,.0f}/s, COPY {theirs:,.0f}/s")
            rounds.append((ours, theirs))
        ours, theirs = sorted(rounds, key=lambda round: round[0] / round[1])[len(rounds) // 2]
        return report.compare("ingest_copy", "events/s", ours, "COPY", theirs)

    def _decode(self, observations: list[int], theirs: dict[str, Any]) -> report.Row:
        model = Hmm.read(MODEL)
        path = Viterbi(model)
        for observation in observations:
            path.step(observation)
        assert path.path == decode(model, observations)
        if "path" in theirs:
            same = sum(a == b for a, b in zip(path.path, theirs["path"], strict=True))
            say(f"decode: {same} of {RUNS} states are hmmlearn's")
        more = self._draw.choices(observations, k=1000)
        began = time.perf_counter()
        for observation in more:
            path.step(observation)
        ours = time.perf_counter() - began
        return report.compare("decode", "ms a run", ours, "hmmlearn", theirs.get("hmmlearn_ms"), less_is_better=True)

    def _recompute(self, theirs: dict[str, Any]) -> report.Row:
        """A new run of a student with 5 000: parse, score, decode, triggers, and the state as it is stored."""
        watch = classroom(scenarios.Still())
        rules = MonitorRules(watch.name, watch.fold, watch.triggers)
        stack = self._blocks(60)
        texts: list[str] = []
        entity_state = EntityState("s")
        for number in range(RUNS):
            self._mutate(stack)
            texts.append(to_xml(stack))
            self._one_run(rules, entity_state, number, texts[-1])
        took = []
        for number in range(RUNS, RUNS + 50):
            self._mutate(stack)
            xml = to_xml(stack)
            began = time.perf_counter()
            entity_state.state = watch.fold.read(entity_state.raw or b"")
            self._one_run(rules, entity_state, number, xml)
            took.append((time.perf_counter() - began) * 1000)
        ours = statistics.median(took)
        # The document's way: every program of the window is read again and scored from the cache, and all is decoded.
        known = {pair: change_score(*pair) for pair in pairwise(texts)}
        began = time.perf_counter()
        buckets = []
        for pair in pairwise(texts):
            tree_of(read_program(pair[1]), "document").digest  # noqa: B018
            buckets.append(bucket_of(known[pair]))
        full = (time.perf_counter() - began) * 1000 + (theirs.get("hmmlearn_ms") or 0.0)
        return report.compare("recompute", "ms a run", ours, "full", full, less_is_better=True)

    def _one_run(self, rules: MonitorRules, entity_state: EntityState, number: int, xml: str) -> None:
        message = json.dumps({"project": json.dumps({"workspace": xml})})
        event = Event(str(number), 1e9 + number, "s", {"eventType": "runProject", "raw_message": message}, number + 1)
        advance(rules, entity_state, {number + 1: [event]}, TickIndex([MonitorTick(number + 1, event.at)]))

    def _tree_edit(self, pairs: list[tuple[Any, Any]], theirs: dict[str, Any]) -> report.Row:
        took, found = [], []
        kernel = compiled_distance() or plain_distance
        for one, other in pairs:
            began = time.perf_counter()
            found.append(distance(Tree.of(one), Tree.of(other), kernel=kernel))
            took.append((time.perf_counter() - began) * 1000)
        for ours, peers in zip(found, theirs.get("distances", found), strict=True):
            assert abs(ours - peers) < 1e-6, f"distances differ: {ours} and {peers}"
        return report.compare(
            "tree_edit", "ms a pair", statistics.median(took), "apted", theirs.get("apted_ms"), less_is_better=True
        )

    def _alerts(self) -> float:
        with self._server.database("monitors") as dsn, tempfile.TemporaryDirectory() as folder:
            return asyncio.run(scenarios.measure_alerts(dsn, Path(folder), seconds=self._plan.alert_s))

    def _straggler(self) -> float:
        with self._server.database("monitors") as dsn:
            return asyncio.run(scenarios.measure_straggler(dsn, self._plan.straggler_minutes))

    def _restart(self) -> dict[str, float]:
        with self._server.database("monitors") as dsn:
            asyncio.run(scenarios.fill(dsn, self._plan.entities))
            found = self._process("restart", dsn)
            return found | (self._process("idle", dsn) if self._plan.idle else {})

    def _process(self, scenario: str, dsn: str) -> dict[str, float]:
        command = [sys.executable, "-m", "benchmarks.monitors.scenarios", scenario, dsn]
        done = subprocess.run(command, cwd=venv.ROOT, capture_output=True, text=True, timeout=180, check=False)
        if done.returncode:
            say(f"{scenario}: {done.stderr[-500:]}")
            return {}
        return json.loads(done.stdout.splitlines()[-1])

    def _backtest(self) -> float:
        """A class of thirty, a lesson of 45 minutes a day."""
        with self._server.database("monitors") as dsn:
            return asyncio.run(self._measure_backtest(dsn))

    async def _measure_backtest(self, dsn: str) -> float:
        database = await scenarios.open_database(dsn)
        await declare_monitor(database, "classroom", "1", keep=1e9)
        names = [f"s{number:03d}" for number in range(1, 31)]
        await add_entities(database, "classroom", names, [scenarios.shard_of(name) for name in names])
        total = 0
        for day in range(self._plan.days):
            start = 1_767_600_000.0 + day * 86_400
            lesson = Lesson(30, start=start, seed=day, now=lambda end=start + 2700: end)
            log = lesson.upto_now()
            total += len(log)
            async with database.acquire() as connection:
                for begin in range(0, len(log), 500):
                    some = log[begin : begin + 500]
                    page = NewEvents(
                        [f"{day}-{entry['id']}" for entry in some],
                        [read_time(entry["recieved_at"]) for entry in some],
                        [entry["studentID"] for entry in some],
                        [json.dumps(entry).encode() for entry in some],
                    )
                    await ingest(database, connection, "classroom", page, CursorMove())
        await seal_tick(database, "classroom", 1.8e9)
        began = time.monotonic()
        found = await backtest(database, classroom(scenarios.Still(), fold=Student()), 0.0, 2e9)
        took = time.monotonic() - began
        say(f"backtest: {found.events:,} events of {found.entities} students, {found.counts()}")
        assert found.events == total
        await database.close()
        return took

    def _peers(self, pairs: list[tuple[Any, Any]], observations: list[int]) -> dict[str, Any]:
        given = {
            "pairs": pairs,
            "observations": observations,
            "model": msgspec.to_builtins(Hmm.read(MODEL)),
            "repeats": 20,
        }
        command = [str(venv.PYTHON), "-m", "benchmarks.peers.monitor_bench"]
        if not venv.PYTHON.exists():
            say("peers: not installed")
            return {}
        done = subprocess.run(
            command, cwd=venv.ROOT, input=json.dumps(given), capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            say(f"peers: {done.stderr[-500:]}")
            return {}
        found = json.loads(done.stdout)
        for name, why in found.items():
            if name.endswith("_missing"):
                say(f"{name}: {why}")
        return found

    def _limit(self, name: str, unit: str, ours: float | None) -> report.Row:
        return report.compare(name, unit, ours, "limit", LIMITS[name], less_is_better=True)

    # -- programs ---------------------------------------------------------------------------------

    def _program(self, size: int) -> tuple[str, str, list[Any]]:
        """The tree of a program with so many blocks, with a node for every connection."""
        xml = to_xml(self._blocks(size))
        root = read_program(xml).stacks[0]

        def node(block: Any) -> tuple[str, str, list[Any]]:
            fields = " ".join(f"{name}={value}" for name, value in block.fields)
            kept = [(kind, slot, child) for kind, slot, child in block.inputs if not child.shadow]
            return (block.type, fields, [(f"{kind}:{slot}", "", [node(child)]) for kind, slot, child in kept])

        return node(root)

    def _blocks(self, size: int) -> list[Block]:
        stack: list[Block] = []
        left = size
        while left > 0:
            inner = min(left - 1, self._draw.randint(1, 6)) if self._draw.random() < 0.25 and left > 2 else 0
            kind = self._draw.choice(["repeat", "forever"] if inner else ["drive_for", "turn_for", "wait", "print"])
            body = [Block(self._draw.choice(["drive_for", "spin"]), 90) for _ in range(inner)] if inner else None
            stack.append(Block(kind, self._draw.choice([90, 180]), body))
            left -= 1 + inner
        return stack

    def _mutate(self, stack: list[Block]) -> None:
        place = self._draw.randrange(len(stack))
        if self._draw.random() < 0.5:
            stack[place] = Block(self._draw.choice(["drive_for", "turn_for", "wait", "print"]), 90)
        else:
            stack[place].number = self._draw.randint(1, 999)
