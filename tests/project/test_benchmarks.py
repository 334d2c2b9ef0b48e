"""Suites of the benchmarks still run: ours at toy size, without peers. What the figures are is not tested."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context

import pytest

from benchmarks import __main__ as suites, costs, footprint, growth, ray_cluster
from benchmarks.chaos import culprits, suite as chaos
from benchmarks.dags import suite as dags, warm_models
from benchmarks.flows import suite as flows
from benchmarks.jobs import flow_control, idle, suite as jobs
from benchmarks.monitors import suite as monitors
from benchmarks.pipelines import suite as pipelines
from benchmarks.server import suite as server_api
from benchmarks.shared import contenders, report
from benchmarks.shared.postgres import Server
from tests.support.processes import ROOT
from tests.support.server import TestServer

TIMEOUT = 240.0


class ToyServer(Server):
    """The server of the tests in the place of one of its own."""

    def __init__(self, server: TestServer) -> None:
        self._server = server

    @contextmanager
    def database(self, owner: str) -> Iterator[str]:
        url = self._server.create(migrated=False)
        yield url
        self._server.drop(url)


@pytest.fixture
def toy(server: TestServer) -> ToyServer:
    return ToyServer(server)


def test_the_exponent_of_a_cost_is_that_of_its_growth() -> None:
    for exponent in (0.0, 1.0, 2.0):
        assert growth.fitted_exponent([10, 40, 160], [3 * n**exponent for n in (10, 40, 160)]) == pytest.approx(
            exponent
        )


def test_a_suite_that_fails_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (row,) = suites.run_apart("nonsense", Namespace(quick=True), timeout=60.0)
    assert (row.name, row.peer) == ("nonsense", "failed with status 2")


def test_a_suite_that_takes_too_long_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (row,) = suites.run_apart("chaos", Namespace(quick=True), timeout=0.01)
    assert (row.name, row.peer) == ("chaos", "took longer than 0 s")


@pytest.mark.long
@pytest.mark.parametrize(
    ("entrant", "scenarios"),
    [
        (jobs.OURS, jobs.SCENARIOS),
        (jobs.RAW, jobs.SCENARIOS),
        (flows.OURS, ("durable_steps", "step_p50", "replay", "resume")),
        (flows.RAW, flows.RAW.scenarios),
        (dags.OURS, dags.SCENARIOS),
    ],
    ids=lambda each: each.module if isinstance(each, contenders.Entrant) else "",
)
def test_our_part_of_a_contest_runs(
    entrant: contenders.Entrant, scenarios: tuple[str, ...], empty_database_url: str
) -> None:
    done = contenders.run(
        entrant, empty_database_url, scenarios=scenarios, jobs=20, starts=2, seconds=0.1, timeout=TIMEOUT
    )
    assert done.failure is None
    assert done.figures


@pytest.mark.long
@pytest.mark.parametrize(
    "scenario", ["dispatch", "pglog", "fairness", "live", "live_plain", "limit_shared", "replay_fairness", "microbatch"]
)
def test_our_part_of_the_streams_runs(scenario: str, empty_database_url: str) -> None:
    words = [sys.executable, "-m", "benchmarks.streams.ours", scenario, "--dsn", empty_database_url, "--messages", "20"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_the_cost_of_one_of_each_is_measured(toy: ToyServer) -> None:
    rows = costs.run(toy, costs.TOY)
    assert {row.name for row in rows} == {
        f"{kind}_{field}" for kind in costs.WORK for field in costs.Cost.__struct_fields__
    }
    assert all(row.ours is not None for row in rows)


@pytest.mark.long
def test_costs_are_measured_at_three_sizes(toy: ToyServer) -> None:
    rows = growth.run(toy, growth.TOY)
    assert [row.name for row in rows] == [f"growth_{name}" for name in growth.COSTS]
    assert all(row.ours is not None for row in rows)


@pytest.mark.long
def test_the_demo_and_commands_are_measured() -> None:
    rows = footprint.run(footprint.Plan(settle_s=0.0, starts=1))
    assert complete(rows)


@pytest.mark.long
def test_the_server_is_measured(toy: ToyServer) -> None:
    rows = server_api.run(toy, server_api.TOY)
    assert complete([row for row in rows if row.name.startswith(("list", "deep", "sse"))])  # Others need Chromium.


@pytest.mark.long
def test_monitors_are_measured(toy: ToyServer) -> None:
    assert complete(monitors.Run(toy, monitors.TOY).rows())


@pytest.mark.long
def test_pipelines_are_measured(toy: ToyServer) -> None:
    assert complete(pipelines.Run(toy, pipelines.TOY).rows())


@pytest.mark.long
def test_warm_models_are_measured(toy: ToyServer) -> None:
    assert complete(warm_models.rows(toy, warm_models.Plan(jobs=2)))


@pytest.mark.long
@pytest.mark.parametrize(
    "under", [("history=10", "held_xmin", "delayed=10", "fair=3", "workers=2", "maintenance"), ("batch", "maintenance")]
)
def test_our_drain_goes_through_its_circumstances(under: tuple[str, ...], empty_database_url: str) -> None:
    done = contenders.run(
        jobs.OURS,
        empty_database_url,
        scenarios=("drain",),
        jobs=20,
        starts=2,
        seconds=0.1,
        timeout=TIMEOUT,
        under=under,
    )
    assert done.failure is None
    assert done.figures


@pytest.mark.long
def test_an_idle_worker_and_other_ways_to_enqueue_are_measured(toy: ToyServer) -> None:
    with toy.database("idle") as dsn:
        assert asyncio.run(idle.measure(dsn, 0.5)).queries_per_s >= 0
    with toy.database("control") as dsn:
        assert asyncio.run(flow_control.measure(dsn, 0.1)).fair_wait > 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_jobs_on_ray_are_measured(empty_database_url: str) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: no cluster can be started")
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:  # Ray reads its environment when it is imported.
        rows = apart.submit(ray_cluster.run, Server(empty_database_url), ray_cluster.TOY).result()
    assert complete(rows)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_is_lost_when_processes_die_is_measured() -> None:
    rows = {row.name: row for row in chaos.run(chaos.TOY)}
    assert {"lost", "doubled", "finished_percent", *(f"{fault.name}_kept" for fault in culprits.FAULTS)} <= set(rows)
    assert (rows["lost"].ours, rows["doubled"].ours) == (0, 0)


def complete(rows: list[report.Row]) -> bool:
    return bool(rows) and all(row.ours is not None for row in rows)
