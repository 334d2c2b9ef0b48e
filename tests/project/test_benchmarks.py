"""Suites of the benchmarks still run: ours at toy size, without peers. What the figures are is not tested."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import (
    __main__ as suites,
    contenders,
    costs,
    dags,
    flows,
    footprint,
    growth,
    jobs,
    monitors_ours,
    report,
    server_api,
)
from benchmarks.server import Server
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
@pytest.mark.parametrize("scenario", ["dispatch", "pglog", "fairness", "live", "microbatch"])
def test_our_part_of_the_streams_runs(scenario: str, empty_database_url: str) -> None:
    words = [sys.executable, "-m", "benchmarks.streams_ours", scenario, "--dsn", empty_database_url, "--messages", "20"]
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
def test_ingest_of_monitors_is_measured(empty_database_url: str) -> None:
    assert asyncio.run(monitors_ours.measure_ingest(empty_database_url, 1)) > 0


def complete(rows: list[report.Row]) -> bool:
    return bool(rows) and all(row.ours is not None for row in rows)
