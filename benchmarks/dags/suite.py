"""The `dags` suite: nodes/s of dags beside plain jobs in the same deployment and beside Prefect; loads of models.

Ours is deployed as `tidemill up` does (`ours.py`), and plain jobs take turns with dags there; medians are
compared. Prefect goes through `peers/prefect_bench.py`, with fewer nodes, since it takes long.
"""

import os
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.dags import warm_models
from benchmarks.dags.ours import SCENARIOS
from benchmarks.shared import contenders, report, venv
from benchmarks.shared.contenders import Entrant, Outcome, say
from benchmarks.shared.postgres import Server

ROWS = ("nodes_wide", "nodes_chain", "nodes_100x100")
UNIT = "nodes/s"

OURS = Entrant("ours", "benchmarks.dags.ours", Path(sys.executable), 0, SCENARIOS)
PREFECT = Entrant("prefect", "benchmarks.peers.prefect_bench", venv.PYTHON, 0, ROWS)


class Plan(msgspec.Struct, frozen=True):
    """How many nodes the wide dag and the chain have, how often ours is measured, and how much of it Prefect gets.

    `model_jobs` are those that need a model.
    """

    nodes: int
    rounds: int
    peer_nodes: int
    peer_runs: int
    model_jobs: int
    timeout_s: float
    budget_s: float


QUICK = Plan(nodes=1_000, rounds=3, peer_nodes=100, peer_runs=5, model_jobs=90, timeout_s=45.0, budget_s=80.0)
FULL = Plan(nodes=1_000, rounds=9, peer_nodes=1_000, peer_runs=20, model_jobs=300, timeout_s=240.0, budget_s=600.0)


class Run:
    """One run of the suite on one server; a peer whose turn comes after `deadline` is left out."""

    def __init__(self, server: Server, plan: Plan, *, deadline: float) -> None:
        self._server = server
        self._plan = plan
        self._deadline = deadline

    def rows(self) -> list[report.Row]:
        """Measure every peer, then compare ours with each."""
        ours = self._measure(OURS, jobs=self._plan.nodes, starts=self._plan.rounds)
        prefect = self._measure(PREFECT, jobs=self._plan.peer_nodes, starts=self._plan.peer_runs)
        models = warm_models.rows(self._server, warm_models.Plan(jobs=self._plan.model_jobs))
        rows: list[report.Row] = []
        for name in ROWS:
            mine, jobs = ours.get(name), ours.get(name.replace("nodes", "jobs"))
            rows.append(report.compare(name, UNIT, mine, "jobs", jobs))
            rows.append(report.compare(name, UNIT, mine, PREFECT.name, prefect.get(name)))
        return [*rows, *models]

    def _measure(self, entrant: Entrant, *, jobs: int, starts: int) -> dict[str, float]:
        began = time.monotonic()
        outcome = self._outcome(entrant, jobs, starts)
        seen = ", ".join(f"{name} {figure:,.0f}" for name, figure in outcome.figures.items())
        words = "; ".join(part for part in (seen, outcome.failure) if part)
        say(f"{entrant.name}: {words} ({time.monotonic() - began:.1f} s, load {os.getloadavg()[0]:.1f})")
        return outcome.figures

    def _outcome(self, entrant: Entrant, jobs: int, starts: int) -> Outcome:
        left = self._deadline - time.monotonic()
        if left <= 1:
            return Outcome({}, "no time was left for it")
        with self._server.database(f"dags_{entrant.name}") as dsn:
            return contenders.run(
                entrant,
                dsn,
                scenarios=entrant.scenarios,
                jobs=jobs,
                starts=starts,
                seconds=0.0,
                timeout=min(self._plan.timeout_s, left),
            )
