"""The slots of a worker in a cluster, with processes of this machine in place of Ray's."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.support import eventually
from tidemill.core.codec import decode, encode
from tidemill.core.limits.resources import Resources
from tidemill.engine.worker.isolation import ChildDied, ChildOrder, ChildReport, MachineLost
from tidemill.integrations.ray import slots as slots_module
from tidemill.integrations.ray.lost_nodes import AVOIDED_S, LostNodes
from tidemill.integrations.ray.remote_slot import SlotHello, framed
from tidemill.integrations.ray.slots import ClusterSlots, SlotJob

APP = """
import os
import threading
import time
from pathlib import Path
from tidemill import App, current_job

app = App("slots")
started = threading.Event()


@app.task
def pid(n: int = 0) -> int:
    current_job().report(0.5, f"note {n}")
    return os.getpid()


@app.task
def leave() -> None:
    os._exit(3)


@app.task
def hold() -> None:
    current_job().report(0.1, "begun")
    time.sleep(3600)


@app.task
def report_again(file: str) -> str:
    current_job().report(0.1, "begun")
    while not Path(file).exists():
        time.sleep(0.01)
    for n in range(100):
        current_job().report(n / 100, "again")
    Path(file).write_text("all reported")
    return "done"


@app.task
def leave_a_thread() -> None:
    job = current_job()

    def late() -> None:
        started.wait()
        job.report(0.9, "too late")
        job.report(0.9, "much too late")

    threading.Thread(target=late, daemon=True).start()


@app.task
def let_it_report() -> str:
    started.set()
    [thread.join() for thread in threading.enumerate() if thread.name.endswith("(late)")]
    return "done"
"""

RUN = "import sys; from tidemill.integrations.ray.remote_slot import run_slot; a = sys.argv; "
RUN += "run_slot(a[1], (a[2], int(a[3])), bytes.fromhex(a[4]))"


class ProcessSlot:
    """A slot in a process of this machine."""

    def __init__(self, app: Path, address: tuple[str, int], hello: bytes) -> None:
        command = [sys.executable, "-c", RUN, str(app), address[0], str(address[1]), hello.hex()]
        self._starting = asyncio.create_task(asyncio.create_subprocess_exec(*command))

    async def ended(self) -> None:
        process = await self._starting
        try:
            if await process.wait() != 0:
                raise ChildDied("it died")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def kill(self) -> None:
        if self._starting.done():
            psutil.Process(self._starting.result().pid).kill()


class Cluster:
    """Slots, and the processes that were started for them."""

    def __init__(self, app: Path) -> None:
        self._app = app
        self.started: list[ProcessSlot] = []
        self.slots = ClusterSlots(self._start, socket.create_server(("127.0.0.1", 0)))
        self.notes: list[str | None] = []

    def _start(self, _needs: Resources, address: tuple[str, int], hello: bytes) -> ProcessSlot:
        self.started.append(ProcessSlot(self._app, address, hello))
        return self.started[-1]

    async def submit(self, task: str, needs: Resources | None = None, **args: Any) -> SlotJob:
        order = ChildOrder(task, msgspec.Raw(encode(args)), 1, 1, "default")
        job = SlotJob(encode(order), lambda report: self.notes.append(report.note))
        await self.slots.open()
        self.slots.submit(needs or Resources(), job)
        return job

    async def run(self, task: str, needs: Resources | None = None, **args: Any) -> Any:
        return result(await (await self.submit(task, needs, **args)).outcome)


def result(report: ChildReport) -> Any:
    assert report.ok, report
    return decode(bytes(report.result)) if bytes(report.result) else None


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    (tmp_path / "app.py").write_text(APP)
    made = Cluster(tmp_path / "app.py")
    try:
        yield made
    finally:
        await made.slots.close()


async def test_jobs_go_through_one_slot_one_after_the_other_and_report_while_they_run(cluster: Cluster) -> None:
    pids = {await cluster.run("pid", n=n) for n in range(20)}
    assert (len(pids), len(cluster.started)) == (1, 1)
    assert [note for note in cluster.notes if note is not None] == [f"note {n}" for n in range(20)]


async def test_jobs_of_one_moment_have_a_slot_each(cluster: Cluster) -> None:
    jobs = [await cluster.submit("pid", n=n) for n in range(3)]
    assert len(cluster.started) == 3
    await asyncio.gather(*(job.outcome for job in jobs))


async def test_no_more_slots_are_started_than_jobs_wait(cluster: Cluster) -> None:
    ended = 0

    async def keep_two_going() -> None:
        nonlocal ended
        while ended < 100:
            await cluster.run("pid")
            ended += 1

    await asyncio.gather(keep_two_going(), keep_two_going())
    assert len(cluster.started) == 2


async def test_a_process_that_dies_takes_only_its_own_job(cluster: Cluster) -> None:
    await cluster.run("pid")
    dying, waiting = await cluster.submit("leave"), await cluster.submit("pid")
    with pytest.raises(ChildDied):
        await dying.outcome
    assert result(await waiting.outcome) > 0


async def test_what_a_thread_reports_after_its_job_is_not_told_to_the_next_job(cluster: Cluster) -> None:
    await cluster.run("leave_a_thread")
    assert await cluster.run("let_it_report") == "done"
    assert len(cluster.started) == 1
    assert not any("too late" in (note or "") for note in cluster.notes)


async def test_a_cancelled_job_ends_with_its_process_and_one_that_waits_is_never_started(cluster: Cluster) -> None:
    held = await cluster.submit("hold")
    await eventually(lambda: "begun" in cluster.notes)
    cluster.slots.cancel(Resources(), held)
    with pytest.raises(ChildDied):
        await cluster.started[0].ended()
    waiting = await cluster.submit("hold")
    cluster.slots.cancel(Resources(), waiting)
    assert waiting.slot is None
    assert await cluster.run("pid") > 0


async def test_an_idle_slot_is_given_back_and_one_with_other_resources_at_once(cluster: Cluster) -> None:
    await cluster.run("pid")
    await cluster.run("pid", Resources(gpu=1.0))
    async with asyncio.timeout(20):
        for each in cluster.started:
            await each.ended()


async def test_no_slot_is_kept_for_long_while_jobs_go_on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "SLOT_SECONDS", 0.0)
    pids = {await cluster.run("pid") for _ in range(3)}
    assert (len(pids), len(cluster.started)) == (3, 3)


async def test_a_job_whose_connection_is_lost_is_lost_with_its_machine(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "LOST_AFTER", 0.1)
    held = await cluster.submit("hold")
    await eventually(lambda: "begun" in cluster.notes)
    assert held.slot is not None
    held.slot.close()
    with pytest.raises(MachineLost, match="connection"):
        await held.outcome


async def test_reports_that_cannot_be_sent_are_no_error_of_the_task(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "go on"
    job = await cluster.submit("report_again", file=str(file))
    await eventually(lambda: "begun" in cluster.notes)
    assert job.slot is not None
    job.slot.close()
    file.touch()
    with pytest.raises(MachineLost, match="connection"):  # Not ChildDied: the slot ends as usual.
        await job.outcome
    assert file.read_text() == "all reported"


async def test_a_connection_that_says_nothing_is_closed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "HELLO_SECONDS", 0.1)
    await cluster.slots.open()
    reader, writer = await asyncio.open_connection(*cluster.slots._address)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_only_slots_of_this_worker_may_connect(cluster: Cluster) -> None:
    job = await cluster.submit("pid")
    address = cluster.slots._address
    for greeting in (encode(SlotHello("wrong", 1)), b"nonsense", b"x" * 2000, os.urandom(40)):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(framed(greeting))
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
    assert result(await job.outcome) > 0


def test_a_lost_node_is_avoided_for_two_minutes() -> None:
    now = 100.0
    lost = LostNodes(lambda: now)
    assert lost.elsewhere() == {}
    nodes = ["a" * 56, "b" * 56]
    for node in nodes:
        try:
            raise MachineLost("the machine was lost") from OSError(f"the task died: its node ID: {node} is dead")
        except MachineLost as error:
            lost.note(error)
        now += 30.0
    assert lost.elsewhere() == {"label_selector": {"ray.io/node-id": f"!in({','.join(nodes)})"}}
    lost.note(ChildDied("no node is named here"))
    now = 100.0 + AVOIDED_S
    assert lost.elsewhere() == {"label_selector": {"ray.io/node-id": f"!in({nodes[1]})"}}
    now += 30.0
    assert lost.elsewhere() == {}
