"""The `flows` suite: durable and in-memory workflows, of ours, of the peers and of the raw limit.

Everything runs one after the other on one server, each engine in a process of its own, all through
`peers/flow_contest.py`. A peer that is compared takes turns with ours, so that a slow minute of the machine hits both,
and medians are compared; stderr says how busy the machine was at each turn.
"""

import os
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.jobs.suite import Samples
from benchmarks.peers.flow_contest import FANOUTS
from benchmarks.shared import contenders, report, venv
from benchmarks.shared.contenders import Entrant, Outcome, say
from benchmarks.shared.postgres import Server

DURABLE, STEP_P50, WAITING, REPLAY = "durable_steps", "step_p50", "waiting_bytes", "replay"
RESUME = "resume"
TICKS_BYTES, TICKS_RESUME = "ticks_1m_bytes", "ticks_1m_resume"
IN_MEMORY = ("runs", "steps")
FANOUT = tuple(f"fanout_{width}" for width in FANOUTS)
UNITS = {
    DURABLE: "steps/s",
    STEP_P50: "ms",
    "runs": "runs/s",
    "steps": "steps/s",
    **dict.fromkeys(FANOUT, "events/s"),
    RESUME: "runs/s",
    REPLAY: "ticks/s",
    WAITING: "bytes a run",
    TICKS_BYTES: "bytes",
    TICKS_RESUME: "ms",
}
LESS_IS_BETTER = frozenset({STEP_P50, WAITING, TICKS_BYTES, TICKS_RESUME})
LIMITS = {REPLAY: 100_000, RESUME: 2_000, TICKS_BYTES: 1_000_000, TICKS_RESUME: 100}
"""What ours is compared with where no peer can do the same."""
TOO_LONG = "takes too long for a quick run: it is quadratic"

OURS = Entrant("ours", "benchmarks.flows.ours", Path(sys.executable), 0, tuple(UNITS))
RAW = Entrant("raw", "benchmarks.flows.raw", Path(sys.executable), 0, (DURABLE, STEP_P50))
DBOS = Entrant("dbos", "benchmarks.peers.dbos_steps_bench", venv.PYTHON, 0, (DURABLE,))
ABSURD = Entrant("absurd", "benchmarks.peers.absurd_bench", venv.PYTHON, 0, (DURABLE,))
LLAMA = Entrant(
    "llama-index-workflows",
    "benchmarks.peers.llama_workflows_bench",
    venv.PYTHON,
    0,
    (*IN_MEMORY, *FANOUT, WAITING),
)


class Plan(msgspec.Struct, frozen=True):
    """How long and how often: `waiting` are the runs that wait, `widest` is the peer's largest fan-out."""

    rounds: int
    memory_rounds: int
    durable_s: float
    peer_s: float
    memory_s: float
    samples: int
    waiting: int
    widest: int
    timeout_s: float
    budget_s: float


QUICK = Plan(
    rounds=3,
    memory_rounds=2,
    durable_s=1.2,
    peer_s=4.0,
    memory_s=0.8,
    samples=150,
    waiting=2_000,
    widest=1_000,
    timeout_s=20.0,
    budget_s=80.0,
)
FULL = Plan(
    rounds=5,
    memory_rounds=3,
    durable_s=4.0,
    peer_s=10.0,
    memory_s=3.0,
    samples=600,
    waiting=10_000,
    widest=4_000,
    timeout_s=400.0,
    budget_s=900.0,
)


class Run:
    """One run of the suite on one server; a peer whose turn comes after `deadline` is left out."""

    def __init__(self, server: Server, plan: Plan, *, deadline: float) -> None:
        self._server = server
        self._plan = plan
        self._deadline = deadline
        self._samples = Samples()

    def rows(self) -> list[report.Row]:
        """Measure every peer, then compare ours with each."""
        for _ in range(self._plan.rounds):
            self._measure(RAW, (DURABLE, STEP_P50))
            self._measure(OURS, (DURABLE, STEP_P50))
        self._measure(OURS, (RESUME, TICKS_BYTES, TICKS_RESUME))
        for peer in (DBOS, ABSURD):
            self._measure(peer, (DURABLE,))
        for _ in range(self._plan.memory_rounds):
            self._measure(LLAMA, IN_MEMORY)
            self._measure(OURS, (*IN_MEMORY, *FANOUT, REPLAY, "replay_fold"))
        self._measure(LLAMA, (WAITING,))
        self._measure(OURS, (WAITING,))
        for width, scenario in zip(FANOUTS, FANOUT, strict=True):
            if width <= self._plan.widest:
                self._measure(LLAMA, (scenario,))
            else:
                say(f"{LLAMA.name}: {scenario}: {TOO_LONG}")
        for entrant in (OURS, RAW):
            say(f"{DURABLE} of {entrant.name}: {self._samples.spread(DURABLE, entrant.name)} {UNITS[DURABLE]}")
        folded = self._samples.median("replay_fold", OURS.name)
        if folded is not None:
            say(f"{REPLAY} without reading the journal's JSON: {folded:,.0f} {UNITS[REPLAY]}")
        return [self._row(name, peer) for name in UNITS for peer in self._peers(name)]

    # -- measuring --------------------------------------------------------------------------------

    def _measure(self, entrant: Entrant, scenarios: tuple[str, ...]) -> None:
        began = time.monotonic()
        outcome = self._outcome(entrant, scenarios)
        self._samples.add(entrant.name, outcome.figures)
        seen = ", ".join(f"{name} {figure:,.2f}" for name, figure in outcome.figures.items())
        failure = f"{', '.join(scenarios)}: {outcome.failure}" if outcome.failure else ""
        words = "; ".join(part for part in (seen, failure) if part)
        say(f"{entrant.name}: {words} ({time.monotonic() - began:.1f} s, load {os.getloadavg()[0]:.1f})")

    def _outcome(self, entrant: Entrant, scenarios: tuple[str, ...]) -> Outcome:
        left = self._deadline - time.monotonic()
        if left <= 1:
            return Outcome({}, "no time was left for it")
        with self._server.database(entrant.name.replace("-", "_")) as dsn:
            return contenders.run(
                entrant,
                dsn,
                scenarios=scenarios,
                jobs=self._plan.waiting,
                starts=self._plan.samples,
                seconds=self._seconds(entrant, scenarios),
                timeout=min(self._plan.timeout_s, left),
            )

    def _seconds(self, entrant: Entrant, scenarios: tuple[str, ...]) -> float:
        if DURABLE not in scenarios:
            return self._plan.memory_s
        return self._plan.peer_s if entrant in (DBOS, ABSURD) else self._plan.durable_s

    # -- comparing --------------------------------------------------------------------------------

    def _peers(self, name: str) -> list[str]:
        if name in LIMITS:
            return ["limit"]
        return [entrant.name for entrant in (RAW, DBOS, ABSURD, LLAMA) if name in entrant.scenarios]

    def _row(self, name: str, peer: str) -> report.Row:
        theirs = LIMITS[name] if peer == "limit" else self._samples.median(name, peer)
        ours = self._samples.median(name, OURS.name)
        return report.compare(name, UNITS[name], ours, peer, theirs, less_is_better=name in LESS_IS_BETTER)
