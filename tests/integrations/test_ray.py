"""Jobs on a real Ray cluster of two nodes: what jobs have elsewhere holds there, and nodes and workers may be lost."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import eventually, find_live, finished, value
from tests.support.cli import Process, make_folder
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.engine.application.load_app import load_app
from tidemill.store.database import Database

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

APP = """
import asyncio
import logging
import os
import time
from pathlib import Path

import structlog
from tidemill import App, current_job
from tidemill.flows import StartEvent, StopEvent, Workflow, step

app = App("far")


@app.task(retry=2)
def square(n: int) -> dict:
    structlog.get_logger().info("squaring", n=n)
    current_job().report(0.5, "half of it")
    return {"square": n * n, "pid": os.getpid()}


@app.task
async def square_later(n: int) -> int:
    await asyncio.sleep(0)
    return n * n


@app.task(resources={"cpu": 0.5, "second": 1})
def on_the_second_node(seconds: float) -> str:
    import ray
    current_job().report(0.1, "begun")
    time.sleep(seconds)
    return ray.get_runtime_context().get_node_id()


@app.task(resources={"third": 1})
def homeless() -> None: ...


@app.task
def broken() -> None:
    raise ValueError("cannot be squared")


@app.task
def leave() -> None:
    os._exit(3)


@app.task(budget="2s")
def stuck(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(3600)


@app.task
def hold(file: str) -> str:
    Path(f"{file}.{current_job().attempt}").write_text(str(os.getpid()))
    while current_job().attempt == 1:
        time.sleep(0.05)
    return "held"


class Squares(Workflow):
    @step(queue="default", resources={"cpu": 1})
    async def far(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result={"square": ev.n ** 2, "pid": os.getpid()})


app.workflow(Squares)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on loopback; the second has a resource that names it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Else Ray looks for another address than loopback.
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 4, "node_ip_address": "127.0.0.1", "object_store_memory": 100_000_000}
        made: Any = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        made.add_another = lambda: add_node(made, node)
        made.second = made.add_another()
        try:
            yield made
        finally:
            made.shutdown()


def add_node(cluster: Any, node: dict[str, Any]) -> Any:
    """A node that has the resource; Ray waits only 30 s for its own process, which a busy machine exceeds."""
    for attempt in range(4):
        try:
            return cluster.add_node(**node, resources={"second": 4})
        except Exception:
            if attempt == 3:
                raise
    raise AssertionError


@pytest.fixture
def folder(tmp_path: Path, database_url: str, database: Database) -> Path:
    return make_folder(tmp_path / "far", APP, database_url)


@pytest.fixture
def app(folder: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.chdir(folder)
    return load_app(str(folder / "app.py"))


@pytest.fixture
def worker(cluster: Any, folder: Path) -> Iterator[Process]:
    started = start_worker(cluster, folder)
    try:
        yield started
    finally:
        started.close()


def start_worker(cluster: Any, folder: Path) -> Process:
    return Process(folder, "worker", "app.py", "--only", "jobs", "--ray", cluster.address)


def pid_in(file: Path) -> int:
    return int(file.read_text()) if file.exists() and file.read_text() else 0


async def test_what_jobs_have_elsewhere_holds_on_a_cluster(
    cluster: Any, app: App, worker: Process, database: Database, tmp_path: Path
) -> None:
    async with app:
        result = await (await app.enqueue("square", n=7)).result()
        assert result["square"] == 49
        assert result["pid"] not in [each.pid for each in worker.tree()]
        assert await (await app.enqueue("square_later", n=8)).result() == 64
        job = await app.enqueue("on_the_second_node", seconds=0)
        assert await job.result() == cluster.second.node_id
        lines = await value(database, "SELECT string_agg(lines::text, '') FROM tidemill.job_log")
        assert "squaring" in lines

        ended = await finished(database, (await app.enqueue("broken")).id)
        assert (ended["state"], "ValueError: cannot be squared" in ended["note"]) == ("failed", True)
        ended = await finished(database, (await app.enqueue("leave")).id)
        assert (ended["state"], "the process of the Ray cluster that ran it died" in ended["note"]) == ("failed", True)

        ended = await finished(database, (await app.enqueue("stuck", file=str(tmp_path / "stuck"))).id)
        assert "ran longer than its budget of 2s" in ended["note"]
        await eventually(lambda: not psutil.pid_exists(pid_in(tmp_path / "stuck")), what="its process is gone")

        held = await app.enqueue("hold", file=str(tmp_path / "held"))
        pid = await eventually(lambda: pid_in(tmp_path / "held.1"))
        await app.jobs.cancel(held)
        assert (await finished(database, held.id))["state"] == "cancelled"
        await eventually(lambda: not psutil.pid_exists(pid), what="its process is gone")

        homeless = await app.enqueue("homeless")

        async def note() -> str:
            row = await find_live(database, homeless.id)
            return (row["note"] or "") if row is not None else ""

        await eventually(note)
        assert await note() == "waits for room in the Ray cluster: it needs cpu 1, third 1"
        await app.jobs.cancel(homeless)


async def test_steps_on_a_queue_run_on_a_cluster(
    cluster: Any, app: App, worker: Process, folder: Path, database: Database
) -> None:
    runs = Process(folder, "worker", "app.py", "--only", "runs")
    try:
        async with app:
            run = await app.start("Squares", n=9)
            result = await run.result()
        assert result["square"] == 81
        assert result["pid"] not in [each.pid for each in (*worker.tree(), *runs.tree())]
    finally:
        runs.close()


async def test_a_lost_node_is_a_lost_attempt_and_every_job_ends(
    cluster: Any, app: App, worker: Process, database: Database
) -> None:
    async with app:
        jobs = await app.enqueue_many("on_the_second_node", [{"seconds": 3.0}] * 8)

        begun = "SELECT count(*) FROM tidemill.job WHERE note = 'begun'"
        await eventually(lambda: value(database, begun), what="a job runs on the node")
        cluster.remove_node(cluster.second, allow_graceful=False)
        cluster.second = cluster.add_another()
        for job in jobs:
            assert await job.result() == cluster.second.node_id
        views = [await job.view() for job in jobs]
        assert sum(view.losses for view in views) >= 1
        assert [view.failures for view in views] == [0] * 8


async def test_the_tasks_of_a_killed_worker_end_and_another_worker_runs_their_jobs(
    cluster: Any, app: App, folder: Path, database: Database, tmp_path: Path
) -> None:
    maintenance = Process(folder, "maintenance", "app.py", TIDEMILL_LEASE_SECONDS="5s")
    first = start_worker(cluster, folder)
    second = None
    try:
        async with app:
            held = await app.enqueue("hold", file=str(tmp_path / "held"))
            pid = await eventually(lambda: pid_in(tmp_path / "held.1"))
            os.kill(first.pid, 9)
            await eventually(lambda: not psutil.pid_exists(pid), what="Ray has ended the task of the dead worker")
            second = start_worker(cluster, folder)
            assert await held.result() == "held"
    finally:
        for each in (first, second, maintenance):
            if each is not None:
                each.close()


async def test_short_jobs_share_the_processes_of_the_cluster(
    cluster: Any, app: App, worker: Process, database: Database
) -> None:
    async with app:
        jobs = await app.enqueue_many("square", [{"n": n} for n in range(200)])
        results = [await job.result() for job in jobs]
        assert [each["square"] for each in results] == [n * n for n in range(200)]
        assert len({each["pid"] for each in results}) <= 16  # of 8 processors, and each slot is placed once or twice
        # A slot without a job is given back: the whole cluster is free again.
        import ray

        ray.init(address=cluster.address, logging_level=logging.ERROR, ignore_reinit_error=True)
        try:
            whole = ray.cluster_resources()["CPU"]
            await eventually(lambda: ray.available_resources().get("CPU") == whole, what="all processors are free")
        finally:
            ray.shutdown()


async def test_no_job_is_placed_on_a_node_that_was_lost(cluster: Any) -> None:
    import ray
    from ray.exceptions import NodeDiedError

    from tidemill.engine.worker.isolation import MachineLost
    from tidemill.integrations.ray.lost_nodes import LostNodes

    ray.init(address=cluster.address, logging_level=logging.ERROR, ignore_reinit_error=True)
    try:
        where: Any = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(
            lambda: ray.get_runtime_context().get_node_id()
        )
        lost, node = LostNodes(), cluster.second.node_id

        def nodes() -> set[str]:
            return set(ray.get([where.options(**lost.elsewhere()).remote() for _ in range(8)]))

        assert node in nodes()
        try:
            raise MachineLost("lost") from NodeDiedError(f"Task failed: node ID: {node}, is dead")
        except MachineLost as error:
            lost.note(error)
        assert nodes() == {each["NodeID"] for each in ray.nodes() if each["Alive"]} - {node}
    finally:
        ray.shutdown()


async def test_a_node_that_cannot_connect_to_the_worker_is_a_lost_attempt_that_says_so(
    cluster: Any, folder: Path
) -> None:
    import ray

    from tidemill.engine.worker.isolation import MachineLost
    from tidemill.integrations.ray.cluster import RaySlot
    from tidemill.integrations.ray.lost_nodes import LostNodes
    from tidemill.integrations.ray.remote_slot import run_slot

    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    ray.init(address=cluster.address, logging_level=logging.ERROR, ignore_reinit_error=True)
    try:
        run: Any = ray.remote(max_retries=0)(run_slot)
        with pytest.raises(MachineLost, match=f"cannot connect to the worker at 127.0.0.1:{address[1]}: .*refused"):
            await RaySlot(run.remote(str(folder / "app.py"), address, b""), LostNodes()).ended()
    finally:
        ray.shutdown()


@pytest.mark.parametrize("address", ["ray://head:10001", "auto"])
def test_an_address_of_rays_client_is_refused(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill.integrations.ray.cluster import connect

    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(ConfigError, match="ray://head:10001 is an address for Ray's client"):
        connect(address, str(folder / "app.py"))
