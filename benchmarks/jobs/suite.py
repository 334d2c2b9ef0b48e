"""The `jobs` suite: drain, enqueue and start latency, of ours, of the peers and of the raw limit.

Everything runs in turn on one server, every engine through `peers/contest.py`. Ours and the raw limit
take turns, and a full run also drains ours again beside each peer and each circumstance, so that a slow minute
of the machine hits both; medians are compared. A quick run drains ours again beside the rows with goals of their own,
and only the drain is a median: its other rows can be off by a busy second. Maintenance process runs beside our worker
throughout, as it would for a user.
"""

import asyncio
import statistics
import sys
import time
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from benchmarks.jobs import flow_control, idle
from benchmarks.peers.contest import SCENARIOS
from benchmarks.shared import contenders, report, venv
from benchmarks.shared.contenders import Entrant, Outcome, say
from benchmarks.shared.postgres import Server

MEASURES = {
    "drain": "jobs/s",
    "enqueue_many": "jobs/s",
    "enqueue_one": "jobs/s",
    "enqueue_one_16": "jobs/s",
    "start_p50": "ms",
    "start_p99": "ms",
}
WITHOUT_BULK = tuple(scenario for scenario in SCENARIOS if scenario != "enqueue_many")

OURS = Entrant("ours", "benchmarks.jobs.ours", Path(sys.executable), 40_000, SCENARIOS)
RAW = Entrant("raw", "benchmarks.jobs.raw", Path(sys.executable), 40_000, SCENARIOS)
OBAN = Entrant("oban", "benchmarks.peers.oban_bench", venv.PYTHON, 2_500, SCENARIOS)
PEERS = (
    Entrant("pgqueuer", "benchmarks.peers.pgqueuer_bench", venv.PYTHON, 20_000, SCENARIOS),
    Entrant("awa", "benchmarks.peers.awa_bench", venv.PYTHON, 8_000, SCENARIOS),
    *((OBAN,) if sys.version_info >= (3, 12) else ()),
    Entrant("procrastinate", "benchmarks.peers.procrastinate_bench", venv.PYTHON, 800, SCENARIOS),
    Entrant("dbos", "benchmarks.peers.dbos_bench", venv.PYTHON, 350, WITHOUT_BULK),
)
IDLE_CPU_PERCENT, IDLE_QUERIES_PER_S = 1.0, 2.0
FAIR_WAIT = 3.0
BATCH = "batch_1m"
SEVERAL_WORKERS = (2, 4, 8)
WITH_A_DRAIN = ("fair_drain_10", "fair_drain_10k", BATCH)  # A quick run measures the plain drain beside these too.


class Plan(msgspec.Struct, frozen=True):
    """How long each part may take; the backlogs follow from the rates expected of each."""

    drain_s: float
    our_drain_s: float
    enqueue_s: float
    starts: int
    drain_rounds: int
    other_rounds: int
    circumstance_rounds: int
    finished: int
    delayed: int
    batch: int
    idle_s: float
    timeout_s: float
    budget_s: float
    ours_beside_each: bool

    def circumstances(self) -> dict[str, tuple[str, str]]:
        """By the name of the row: what our drain goes through, and how the row says it."""
        return {
            "drain_with_history": (f"history={self.finished}", f"jobs/s, {self.finished:,} done"),
            "drain_held_xmin": ("held_xmin", "jobs/s"),
            "drain_with_delayed": (f"delayed={self.delayed}", f"jobs/s, {self.delayed:,} delayed"),
            "fair_drain_10": ("fair=10", "jobs/s, 10 fair keys"),
            "fair_drain_10k": ("fair=10000", "jobs/s, 10,000 fair keys"),
            **{
                f"drain_{count}_workers": (f"workers={count}", f"jobs/s, {count} worker processes")
                for count in SEVERAL_WORKERS
            },
            BATCH: ("batch", f"jobs/s, a batch of {self.batch:,}"),
        }


QUICK = Plan(
    drain_s=0.8,
    our_drain_s=1.5,
    enqueue_s=0.35,
    starts=60,
    drain_rounds=2,
    other_rounds=1,
    circumstance_rounds=1,
    finished=200_000,
    delayed=100_000,
    batch=50_000,
    idle_s=10.0,
    timeout_s=12.0,
    budget_s=120.0,
    ours_beside_each=False,
)
FULL = Plan(
    drain_s=8.0,
    our_drain_s=5.0,
    enqueue_s=3.0,
    starts=300,
    drain_rounds=3,
    other_rounds=3,
    circumstance_rounds=2,
    finished=5_000_000,
    delayed=100_000,
    batch=1_000_000,
    idle_s=20.0,
    timeout_s=180.0,
    budget_s=560.0,
    ours_beside_each=True,
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

    def spread(self, measure: str, contender: str) -> str:
        """How far the samples of a figure lie apart, in words."""
        taken = self._taken.get((measure, contender), [])
        return f"{len(taken)} samples, {min(taken):,.0f} to {max(taken):,.0f}" if taken else "no sample"


class Run:
    """One run of the suite on one server; a peer whose turn comes after `deadline` is left out."""

    def __init__(self, server: Server, plan: Plan, *, deadline: float, peers_only: bool) -> None:
        self._server = server
        self._plan = plan
        self._peers_only = peers_only
        self._deadline = deadline
        self._samples = Samples()
        self._idle: Future[idle.Idle] | None = None

    def rows(self) -> list[report.Row]:
        """Measure every peer, then compare ours with each."""
        with ThreadPoolExecutor(1) as beside:
            self._measure_the_limit_and_ours()
            if not self._peers_only:
                # It hardly costs anything; what it does cost is at the expense of ours.
                self._idle = beside.submit(self._watch_idle)
            self._measure_circumstances()
            for peer in PEERS:
                self._measure(peer, peer.scenarios, self._plan.drain_s)
                if self._plan.ours_beside_each:
                    self._measure_our_drain()
        for entrant in (OURS, RAW):
            say(f"drain of {entrant.name}: {self._samples.spread('drain', entrant.name)} jobs/s")
        return [*self._peer_rows(), *self._circumstance_rows(), *self._control_rows(), *self._idle_rows()]

    # -- measuring --------------------------------------------------------------------------------

    def _measure_the_limit_and_ours(self) -> None:
        for number in range(self._plan.drain_rounds):
            scenarios = SCENARIOS if number < self._plan.other_rounds else ("drain",)
            self._measure(RAW, scenarios, self._plan.our_drain_s)
            self._measure_ours(scenarios)

    def _measure_circumstances(self) -> None:
        for number in range(self._plan.circumstance_rounds):
            for row, (circumstance, _unit) in self._plan.circumstances().items():
                if row == BATCH and number > 0:
                    continue  # It is large enough to be measured once.
                self._measure_ours(("drain",), circumstance, row=row)
                if self._plan.ours_beside_each or row in WITH_A_DRAIN:
                    self._measure_our_drain()

    def _measure_our_drain(self) -> None:
        self._measure_ours(("drain",))

    def _measure_ours(self, scenarios: tuple[str, ...], *under: str, row: str = "drain") -> None:
        if not self._peers_only:
            drain_s = self._plan.batch / OURS.rate if row == BATCH else self._plan.our_drain_s
            self._measure(OURS, scenarios, drain_s, under=(*under, "maintenance"), row=row)

    def _measure(
        self,
        entrant: Entrant,
        scenarios: tuple[str, ...],
        drain_s: float,
        *,
        under: tuple[str, ...] = (),
        row: str = "drain",
    ) -> None:
        began = time.monotonic()
        outcome = self._outcome(entrant, scenarios, drain_s, under)
        what = f"{entrant.name}: {', '.join(scenarios)}{' with ' if under else ''}{', '.join(under)}"
        say(f"{what}: {outcome.failure or 'measured'} ({time.monotonic() - began:.1f} s)")
        figures = {row if name == "drain" else name: figure for name, figure in outcome.figures.items()}
        self._samples.add(entrant.name, figures)

    def _outcome(self, entrant: Entrant, scenarios: tuple[str, ...], drain_s: float, under: tuple[str, ...]) -> Outcome:
        left = self._deadline - time.monotonic()
        if left <= 1:
            return Outcome({}, "no time was left for it")
        with self._server.database(entrant.name) as dsn:
            return contenders.run(
                entrant,
                dsn,
                scenarios=scenarios,
                jobs=max(100, int(entrant.rate * drain_s)),
                starts=self._plan.starts,
                seconds=self._plan.enqueue_s,
                timeout=min(self._plan.timeout_s, left),
                under=under,
            )

    def _watch_idle(self) -> idle.Idle:
        with self._server.database("idle") as dsn:
            return asyncio.run(idle.measure(dsn, self._plan.idle_s))

    # -- comparing --------------------------------------------------------------------------------

    def _peer_rows(self) -> list[report.Row]:
        return [
            report.compare(
                measure,
                unit,
                self._samples.median(measure, OURS.name),
                entrant.name,
                self._samples.median(measure, entrant.name),
                less_is_better=unit == "ms",
            )
            for measure, unit in MEASURES.items()
            for entrant in (RAW, *PEERS)
            if measure not in SCENARIOS or measure in entrant.scenarios
        ]

    def _circumstance_rows(self) -> list[report.Row]:
        plain = self._samples.median("drain", OURS.name)
        return [
            report.compare(row, unit, self._samples.median(row, OURS.name), "drain", plain)
            for row, (_circumstance, unit) in self._plan.circumstances().items()
        ]

    def _control_rows(self) -> list[report.Row]:
        if self._peers_only:
            return []
        with self._server.database("control") as dsn:
            seen = asyncio.run(flow_control.measure(dsn, self._plan.enqueue_s))
        return [
            report.compare("fair_wait", "job lengths", seen.fair_wait, "limit", FAIR_WAIT, less_is_better=True),
            report.compare("enqueue_sql", "calls/s", seen.enqueue_sql, "enqueue_one", seen.enqueue_one),
            report.compare("debounced", "calls/s", seen.debounced, "enqueue_one", seen.enqueue_one),
        ]

    def _idle_rows(self) -> list[report.Row]:
        if self._idle is None:
            return []
        seen = self._idle.result()
        return [
            report.compare(name, unit, ours, "limit", limit, less_is_better=True)
            for name, unit, ours, limit in (
                ("idle_cpu", "% of a core", seen.cpu_percent, IDLE_CPU_PERCENT),
                ("idle_queries", "queries/s", seen.queries_per_s, IDLE_QUERIES_PER_S),
            )
        ]
