"""Jobs on a Ray cluster beside bare Ray tasks: how many, how fast, and how long the loss of a node takes.

The cluster is real, with 64 logical processors on this machine; the tasks sleep, so that they need few of its real
ones. Rounds of both kinds alternate, because other work on the machine slows either; the processes of both are started
before, and stay. `tasks_cpu` has the same in processor time of all processes together, which depends less on other
work. `overhead_ms` is from the enqueuing of one job to its stored end, by the clock of the database.
"""

import asyncio
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.shared import contenders, report
from benchmarks.shared.postgres import Server
from benchmarks.shared.venv import ROOT
from tidemill import App
from tidemill.engine.application.load_app import load_app
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import migrate

WARM_UP_S = 5.0

APP = f"""
import time
from tidemill import App

WARM_UP_S = {WARM_UP_S}
app = App("ray_bench")


@app.task
def nap() -> None:
    time.sleep(0.01)


@app.task
def wait() -> None:
    time.sleep(WARM_UP_S)


@app.task
def noop() -> None: ...


@app.task(resources={{"cpu": 1, "second": 1}}, retry=5)
def hold(seconds: float) -> None:
    from tidemill import current_job
    current_job().report(0.1, "begun")
    time.sleep(seconds)
"""

FINISHED = "SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM tidemill.job_history"


class Plan(msgspec.Struct, frozen=True):
    """How much is measured."""

    processors: int
    tasks: int
    rounds: int
    calls: int


TOY = Plan(processors=2, tasks=4, rounds=1, calls=1)
QUICK = Plan(processors=16, tasks=300, rounds=1, calls=20)
FULL = Plan(processors=64, tasks=2000, rounds=3, calls=100)


def run(server: Server, plan: Plan) -> list[report.Row]:
    """The rows of the suite."""
    with server.database("ray") as dsn, tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(dsn, Path(folder), plan))


async def _measure(dsn: str, folder: Path, plan: Plan) -> list[report.Row]:
    (folder / "app.py").write_text(APP)
    async with Database(DatabaseSettings(url=dsn, application="ray_bench")) as database:
        await migrate(database)
        with _cluster(plan.processors) as cluster:
            bare = BareRay(cluster.address)
            os.environ["TIDEMILL_DATABASE_URL"] = dsn
            command = [sys.executable, "-m", "tidemill.cli.main", "worker", "app.py", "--only", "jobs"]
            worker = subprocess.Popen([*command, "--ray", cluster.address], cwd=folder)
            try:
                app: App = load_app(str(folder / "app.py"))
                async with app:
                    return await _rows(app, database, bare, cluster, plan)
            finally:
                worker.terminate()
                worker.wait()


async def _rows(app: App, database: Database, bare: "BareRay", cluster: Any, plan: Plan) -> list[report.Row]:
    # The cluster starts its processes: as many tasks as it has processors run at once.
    await _run_all(app, database, "wait", plan.processors)
    await asyncio.to_thread(bare.wait, plan.processors)
    ours, theirs = [], []
    for number in range(plan.rounds):
        load = os.getloadavg()[0]
        for kind, measured in (("ours", ours), ("ray", theirs)):
            spent = _processor_time()
            if kind == "ours":
                seconds = await _run_all(app, database, "nap", plan.tasks)
            else:
                seconds = await asyncio.to_thread(bare.naps, plan.tasks)
            measured.append((plan.tasks / seconds, plan.tasks / (_processor_time() - spent)))
        contenders.say(
            f"round {number + 1}: ours {ours[-1][0]:,.0f}, ray {theirs[-1][0]:,.0f} tasks/s, load {load:.1f}"
        )
    rows = [
        report.compare(name, unit, _median(ours, at), "ray", _median(theirs, at))
        for at, (name, unit) in enumerate([("tasks", "tasks/s"), ("tasks_cpu", "tasks per processor second")])
    ]
    latency = await _latency(app, database, plan.calls), await asyncio.to_thread(bare.latency, plan.calls)
    rows.append(report.compare("overhead_ms", "ms", latency[0], "ray", latency[1], less_is_better=True))
    # Not in a thread: Ray starts nodes only from the main one.
    lost = await _node_loss(app, database, cluster), bare.node_loss(cluster)
    rows.append(report.compare("node_loss_s", "s", lost[0], "ray", lost[1], less_is_better=True))
    return rows


def _median(measured: list[tuple[float, float]], at: int) -> float:
    return statistics.median(each[at] for each in measured)


async def _run_all(app: App, database: Database, task: str, count: int) -> float:
    """Seconds from the start of the first job to the end of the last one."""
    await database.fetch("DELETE FROM tidemill.job_history")
    await app.enqueue_many(task, [{}] * count)
    while True:
        row = await database.fetchrow(FINISHED)
        if row is not None and row[0] == count:
            return row[1]
        await asyncio.sleep(0.2)


async def _latency(app: App, database: Database, calls: int) -> float:
    """The median time of a job from its enqueuing to its stored end, in ms."""
    await database.fetch("DELETE FROM tidemill.job_history")
    for _ in range(calls):
        await (await app.enqueue("noop")).result()
    rows = await database.fetch("SELECT extract(epoch FROM finished_at - created_at) * 1000 FROM tidemill.job_history")
    return float(statistics.median(row[0] for row in rows))


async def _node_loss(app: App, database: Database, cluster: Any) -> float:
    """Seconds from the death of a node until its job ends on another one."""
    job = await app.enqueue("hold", seconds=2.0)
    while not await database.fetch("SELECT FROM tidemill.job WHERE id = $1 AND note = 'begun'", job.id):
        await asyncio.sleep(0.05)
    began = time.perf_counter()
    cluster.replace_second()
    await job.result()
    return time.perf_counter() - began - 2.0


class BareRay:
    """The same tasks without Tidemill, from this process."""

    def __init__(self, address: str) -> None:
        import ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address=address, logging_level=logging.ERROR, namespace="bare")
        self._ray: Any = ray

        def nap() -> None:
            time.sleep(0.01)

        def noop() -> None: ...

        def hold(seconds: float, file: str) -> None:
            Path(file).touch()
            time.sleep(seconds)

        def wait() -> None:
            time.sleep(WARM_UP_S)

        self._wait: Any = ray.remote(num_cpus=1)(wait)
        self._nap: Any = ray.remote(num_cpus=1)(nap)
        self._noop: Any = ray.remote(num_cpus=1)(noop)
        self._hold: Any = ray.remote(num_cpus=1, resources={"second": 1}, max_retries=5)(hold)

    def naps(self, count: int) -> float:
        began = time.perf_counter()
        self._ray.get([self._nap.remote() for _ in range(count)])
        return time.perf_counter() - began

    def wait(self, count: int) -> None:
        self._ray.get([self._wait.remote() for _ in range(count)])

    def latency(self, calls: int) -> float:
        took = []
        for _ in range(calls):
            began = time.perf_counter()
            self._ray.get(self._noop.remote())
            took.append(1000 * (time.perf_counter() - began))
        return statistics.median(took)

    def node_loss(self, cluster: Any) -> float:
        with tempfile.TemporaryDirectory() as folder:
            begun = Path(folder) / "begun"
            held = self._hold.remote(2.0, str(begun))
            while not begun.exists():
                time.sleep(0.05)
            began = time.perf_counter()
            cluster.replace_second()
            self._ray.get(held)
            return time.perf_counter() - began - 2.0


@contextmanager
def _cluster(processors: int) -> Iterator[Any]:
    """A head with these logical processors, and a second node to be lost."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Else Ray looks for another address than loopback.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = str(ROOT)
    from ray.cluster_utils import Cluster

    node = {"node_ip_address": "127.0.0.1", "object_store_memory": 100_000_000}
    # Idle processes stay: those of both kinds take turns.
    system = {"num_workers_soft_limit": 3 * processors, "idle_worker_killing_time_threshold_ms": 1_000_000}
    head = {**node, "num_cpus": processors, "include_dashboard": False, "_system_config": system}
    made: Any = Cluster(initialize_head=True, head_node_args=head)

    def add_second() -> Any:
        return made.add_node(**node, num_cpus=1, resources={"second": 1})

    def replace_second() -> None:
        made.remove_node(made.second, allow_graceful=False)
        made.second = add_second()

    made.second, made.replace_second = add_second(), replace_second
    try:
        yield made
    finally:
        import ray

        ray.shutdown()
        made.shutdown()


def _processor_time() -> float:
    """Processor seconds of this process, of all that it has started, and of PostgreSQL's processes."""
    mine = psutil.Process()
    spent = 0.0
    for each in [mine, *mine.children(recursive=True)]:
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        spent += times.user + times.system
    return spent


if __name__ == "__main__":
    sys.exit("run `python -m benchmarks ray`")
