"""The `jobs` suite: drain, enqueue and start latency, of ours, of the peers and of the raw limit.

Everything runs one after the other on one server. The drains of ours and of the raw limit alternate, and a
full run also alternates the rest and drains ours again beside each peer, so that a slow minute of the machine
hits both; medians are compared. In a quick run only the drain is a median: its other rows can be off by a
busy second.
"""

import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import msgspec

from benchmarks import contenders, ours, report, venv
from benchmarks.contenders import Entrant, Outcome, say
from benchmarks.peers.contest import CONCURRENT_ENQUEUERS, SCENARIOS
from benchmarks.server import Server

MEASURES = {
    "drain": "jobs/s",
    "enqueue_many": "jobs/s",
    "enqueue_one": "jobs/s",
    "enqueue_one_16": "jobs/s",
    "start_p50": "ms",
    "start_p99": "ms",
}
WITHOUT_DRAIN = tuple(scenario for scenario in SCENARIOS if scenario != "drain")
WITHOUT_BULK = tuple(scenario for scenario in SCENARIOS if scenario != "enqueue_many")

RAW = Entrant("raw", "benchmarks.raw", Path(sys.executable), 30_000, SCENARIOS)
PEERS = (
    Entrant("pgqueuer", "benchmarks.peers.pgqueuer_bench", venv.PYTHON, 12_000, SCENARIOS),
    Entrant("awa", "benchmarks.peers.awa_bench", venv.PYTHON, 5_000, SCENARIOS),
    Entrant("procrastinate", "benchmarks.peers.procrastinate_bench", venv.PYTHON, 600, SCENARIOS),
    Entrant("oban", "benchmarks.peers.oban_bench", venv.PYTHON, 2_500, SCENARIOS),
    Entrant("dbos", "benchmarks.peers.dbos_bench", venv.PYTHON, 350, WITHOUT_BULK),
)


class Plan(msgspec.Struct, frozen=True):
    """How long each part may take; the backlogs follow from the rates expected of each."""

    drain_s: float
    raw_drain_s: float
    enqueue_s: float
    starts: int
    drain_rounds: int
    other_rounds: int
    timeout_s: float
    budget_s: float
    ours_beside_each_peer: bool


QUICK = Plan(
    drain_s=2.0,
    raw_drain_s=1.0,
    enqueue_s=0.5,
    starts=100,
    drain_rounds=3,
    other_rounds=1,
    timeout_s=12.0,
    budget_s=46.0,
    ours_beside_each_peer=False,
)
FULL = Plan(
    drain_s=10.0,
    raw_drain_s=5.0,
    enqueue_s=3.0,
    starts=300,
    drain_rounds=3,
    other_rounds=3,
    timeout_s=90.0,
    budget_s=345.0,
    ours_beside_each_peer=True,
)


class Samples:
    """Every sample of every figure, by measure and by contender."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, contender: str, figures: dict[str, float]) -> None:
        for measure, figure in figures.items():
            self._taken[measure, contender].append(figure)

    def median(self, measure: str, contender: str) -> float | None:
        taken = self._taken.get((measure, contender))
        return statistics.median(taken) if taken else None


class Run:
    """One run of the suite on one server; a peer whose turn comes after `deadline` is left out."""

    def __init__(self, server: Server, plan: Plan, *, deadline: float, peers_only: bool) -> None:
        self._server = server
        self._plan = plan
        self._peers_only = peers_only
        self._deadline = deadline
        self._samples = Samples()

    def rows(self) -> list[report.Row]:
        """Measure everybody, then compare ours with each."""
        for _ in range(self._plan.drain_rounds):
            self._measure(RAW, ("drain",), self._plan.raw_drain_s)
            self._measure_our_drain()
        for _ in range(self._plan.other_rounds):
            self._measure(RAW, WITHOUT_DRAIN, 0)
            self._measure_our_enqueue_and_start()
        for peer in PEERS:
            self._measure(peer, peer.scenarios, self._plan.drain_s)
            if self._plan.ours_beside_each_peer:
                self._measure_our_drain()
        return [
            report.compare(
                measure,
                unit,
                self._samples.median(measure, "ours"),
                entrant.name,
                self._samples.median(measure, entrant.name),
                less_is_better=unit == "ms",
            )
            for measure, unit in MEASURES.items()
            for entrant in (RAW, *PEERS)
            if measure not in SCENARIOS or measure in entrant.scenarios
        ]

    def _measure(self, entrant: Entrant, scenarios: tuple[str, ...], drain_s: float) -> None:
        outcome = self._outcome(entrant, scenarios, drain_s)
        if outcome.failure:
            say(f"{entrant.name}: {outcome.failure}")
        self._samples.add(entrant.name, outcome.figures)

    def _outcome(self, entrant: Entrant, scenarios: tuple[str, ...], drain_s: float) -> Outcome:
        left = self._deadline - time.monotonic()
        if left <= 1:
            return Outcome({}, "no time was left for it")
        say(f"measuring {entrant.name}: {', '.join(scenarios)}")
        with self._server.database(entrant.name) as dsn:
            return contenders.run(
                entrant,
                dsn,
                scenarios=scenarios,
                jobs=max(100, int(entrant.rate * drain_s)),
                starts=self._plan.starts,
                seconds=self._plan.enqueue_s,
                timeout=min(self._plan.timeout_s, left),
            )

    def _measure_our_drain(self) -> None:
        if self._peers_only:
            return
        say("measuring ours: drain")
        with self._server.database("ours") as dsn:
            rate = ours.drain(dsn, int(RAW.rate * self._plan.raw_drain_s))
        self._samples.add("ours", {"drain": rate})

    def _measure_our_enqueue_and_start(self) -> None:
        if self._peers_only:
            return
        plan = self._plan
        say("measuring ours: enqueue and start")
        with self._server.database("ours") as dsn:
            self._samples.add("ours", contenders.latency_figures(ours.start_latency(dsn, plan.starts)))
        with self._server.database("ours") as dsn:
            bulk = int(RAW.rate * plan.enqueue_s)
            self._samples.add("ours", {"enqueue_many": ours.enqueue_many(dsn, bulk)})
        with self._server.database("ours") as dsn:
            self._samples.add("ours", {"enqueue_one": ours.enqueue_one(dsn, plan.enqueue_s, 1)})
        with self._server.database("ours") as dsn:
            rate = ours.enqueue_one(dsn, plan.enqueue_s, CONCURRENT_ENQUEUERS)
            self._samples.add("ours", {"enqueue_one_16": rate})
