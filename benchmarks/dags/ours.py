"""Tidemill's dags in the contest, deployed as `tidemill up` does: a worker, a run worker and maintenance process.

`python -m benchmarks.dags.ours --dsn URL --jobs 1000 --starts 5` prints one JSON line per scenario and round, the
median so far. Plain jobs in the same deployment take turns with the dags (`jobs_wide`, `jobs_chain`, `jobs_100x100`).
Everything is counted from the first call in this process to the moment the database knows that all has ended.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvloop

from benchmarks.dags.app import app, chain, wide
from benchmarks.peers.flow_contest import analyze
from benchmarks.shared.schema import install_schema
from tidemill.dags import Dag
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.store.database import Database, DatabaseSettings

SCENARIOS = ("nodes_wide", "jobs_wide", "nodes_chain", "jobs_chain", "nodes_100x100", "jobs_100x100")
CONCURRENCY = 200
RUNS_AT_ONCE = 100
NODES_OF_EACH = 100
LOOK_EVERY_S = 0.002
READY_WITHIN_S = 30.0

JOBS_LEFT = "SELECT EXISTS (SELECT FROM tidemill.job) AS left"
RUNS_LEFT = "SELECT EXISTS (SELECT FROM tidemill.run WHERE state = 'running') AS left"
#: A worker serves a queue, a run worker none.
READY = "SELECT count(*) FROM tidemill.worker WHERE ended_at IS NULL"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--jobs", type=int, default=1_000, help="nodes of the wide dag and of the chain")
    parser.add_argument("--starts", type=int, default=3, help="rounds")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--under", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    configure_logs("error")
    # The processes of the deployment and the application in this one find the database in the environment.
    os.environ["TIDEMILL_DATABASE_URL"] = options.dsn
    asyncio.run(install_schema(options.dsn))
    with _deployed():
        uvloop.run(_measure(options))


@contextmanager
def _deployed() -> Iterator[None]:
    roles = (["maintenance"], ["worker", "--only=jobs", f"--max-concurrency={CONCURRENCY}"], ["worker", "--only=runs"])
    environment = {**os.environ, "TIDEMILL_LOG_LEVEL": "error"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tidemill.cli.main", role, "benchmarks.dags.app", *options], env=environment
        )
        for role, *options in roles
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


async def _measure(options: argparse.Namespace) -> None:
    taken: dict[str, list[float]] = defaultdict(list)
    async with Database(DatabaseSettings(url=options.dsn)) as database, app:
        async with asyncio.timeout(READY_WITHIN_S):
            while (await database.fetch(READY))[0][0] < 2:
                await asyncio.sleep(0.05)
        scenarios = _scenarios(database, options.jobs)
        warm_up = _scenarios(database, max(3, options.jobs // 10))
        for name in options.scenario:
            await warm_up[name]()
        await analyze(options.dsn)
        for _ in range(options.starts):
            for name in options.scenario:
                taken[name].append(await scenarios[name]())
                # After every round, so that one which is cut short counts as well.
                print(json.dumps({"scenario": name, "value": statistics.median(taken[name])}), flush=True)


def _scenarios(database: Database, nodes: int) -> dict[str, Callable[[], Awaitable[float]]]:
    """What gives the rate of each scenario once."""

    async def rate(count: int, begin: Callable[[], Awaitable[object]], left: str) -> float:
        began = time.perf_counter()
        await begin()
        while (await database.fetch(left))[0][0]:
            await asyncio.sleep(LOOK_EVERY_S)
        return count / (time.perf_counter() - began)

    def runs(dag: Dag, at_once: int = 1) -> Callable[[], Awaitable[float]]:
        async def begin() -> None:
            await asyncio.gather(*(app.start(dag) for _ in range(at_once)))

        return lambda: rate(len(dag.nodes) * at_once, begin, RUNS_LEFT)

    def jobs(count: int) -> Callable[[], Awaitable[float]]:
        return lambda: rate(count, lambda: app.enqueue_many("noop", ({} for _ in range(count))), JOBS_LEFT)

    return {
        "nodes_wide": runs(wide(nodes)),
        "jobs_wide": jobs(nodes),
        "nodes_chain": runs(chain(nodes)),
        "jobs_chain": lambda: rate(nodes, lambda: app.enqueue("hop", left=nodes), JOBS_LEFT),
        "nodes_100x100": runs(wide(NODES_OF_EACH), RUNS_AT_ONCE),
        "jobs_100x100": jobs(NODES_OF_EACH * RUNS_AT_ONCE),
    }


if __name__ == "__main__":
    main()
