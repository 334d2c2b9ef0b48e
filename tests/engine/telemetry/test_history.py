"""What tasks, queues and hosts did is added up by half hours, and read over a day and a month."""

from __future__ import annotations

import os
import socket
from typing import Literal

from tests.support.waiting import eventually
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.ops.admin.history import GetHistory, ListHistory, get_history, list_history
from tidemill.ops.operator.local import Local
from tidemill.store.database import Database
from tidemill.store.telemetry.history import BOUNDS, forget_work, within, work_of
from tidemill.store.telemetry.hosts import ProcessPlace, report

ALPHA = ProcessPlace("alpha", 17, "worker")
EARLIER = "UPDATE tidemill.work_history SET at = at - make_interval(days => $1)"


def counts(ended: int, failed: int, bound: str, seconds: float) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        ("ended", ("mail", "send", "succeeded")): float(ended),
        ("ended", ("mail", "send", "failed")): float(failed),
        ("run", ("mail", "send", bound)): float(ended + failed),
        ("run_sum", ("mail", "send")): seconds,
        ("wait", ("mail", "0.5")): float(ended + failed),
    }


async def test_reports_of_several_processes_add_up(database: Database) -> None:
    await report(database, ALPHA, {}, counts(4, 1, "0.1", 0.5))
    await report(database, ProcessPlace("beta", 18, "worker"), {}, counts(5, 0, "30.0", 100.0))
    at = Local(database, Caller("ann", "viewer"))
    (task,) = (await at.do(list_history, ListHistory(kind="task"))).items
    assert (task.name, task.ended, task.failed, task.seconds) == ("send", 10, 1, 100.5)
    assert (task.p50, task.p99) == (0.1, 30.0)
    hosts = (await at.do(list_history, ListHistory(kind="host"))).items
    assert {each.name: (each.ended, each.failed) for each in hosts} == {"beta": (5, 0), "alpha": (5, 1)}
    assert hosts[0].name == "beta", "the one that worked longest comes first"
    (period,) = (await at.do(get_history, GetHistory(kind="queue", name="mail"))).items
    assert (period.ended, period.waited_p50, period.lasts) == (10, 0.5, 1800.0)


async def test_a_period_in_which_nothing_was_done_is_zero_and_one_before_the_first_is_unknown(
    database: Database,
) -> None:
    await report(database, ALPHA, {}, counts(4, 0, "0.1", 0.5))
    await database.fetch(EARLIER, 3)
    await report(database, ALPHA, {}, counts(2, 0, "0.1", 0.5))
    at = Local(database, Caller("ann", "viewer"))
    periods = (await at.do(get_history, GetHistory(kind="task", name="send", within="30d"))).items
    assert (periods[0].ended, periods[-1].ended) == (4, 2)
    between = periods[1:-1]
    assert {each.ended for each in between} == {0}
    assert {each.p50 for each in between} == {None}, "no attempt took no time"
    assert sum(each.lasts for each in periods) < 4 * 86_400, "the month before is not there"
    assert (await at.do(get_history, GetHistory(kind="task", name="other"))).items == []
    await database.fetch(EARLIER, 40)
    await forget_work(database)
    assert await database.fetch("SELECT FROM tidemill.work_history") == []


async def test_what_a_worker_does_is_in_the_history(app: App, database: Database) -> None:
    @app.task(retry=2)
    async def send(good: bool) -> None:
        if not good:
            raise ValueError("no address")

    at = Local(database, Caller("ann", "viewer"))
    async with app.running():
        await app.enqueue(send.call(good=True))
        await app.enqueue(send.call(good=False))

        async def told() -> bool:
            found = (await at.do(list_history, ListHistory(kind="task"))).items
            return [(each.name, each.ended, each.failed) for each in found] == [("send", 3, 2)]

        await eventually(told)
        (worker,) = (await at.do(list_history, ListHistory(kind="worker"))).items
        assert (worker.name, worker.ended, worker.failed) == (f"{socket.gethostname()}:{os.getpid()}", 3, 2)
        kinds: dict[Literal["task", "queue", "worker"], str] = {
            "task": "send",
            "queue": "default",
            "worker": worker.name,
        }
        for kind, name in kinds.items():
            (period,) = (await at.do(get_history, GetHistory(kind=kind, name=name))).items
            assert period.waited_p99 is not None, f"how long jobs of this {kind} waited is known"


async def test_two_processes_of_a_host_have_histories_of_their_own(database: Database) -> None:
    await report(database, ALPHA, {}, counts(4, 1, "0.1", 0.5))
    await report(database, ProcessPlace("alpha", 18, "worker"), {}, counts(5, 0, "30.0", 100.0))
    at = Local(database, Caller("ann", "viewer"))
    workers = (await at.do(list_history, ListHistory(kind="worker"))).items
    assert [(each.name, each.ended) for each in workers] == [("alpha:18", 5), (f"alpha:{ALPHA.pid}", 5)]
    (period,) = (await at.do(get_history, GetHistory(kind="worker", name="alpha:18"))).items
    assert (period.ended, period.p50, period.waited_p50) == (5, 30.0, 0.5)


def test_the_parts_of_a_histogram() -> None:
    assert within([], 0.5) is None
    assert within([0] * (len(BOUNDS) + 1), 0.5) is None
    assert within([1, 0, 1], 0.5) == BOUNDS[0]
    assert within([1, 0, 1], 0.99) == BOUNDS[2]
    assert within([0] * len(BOUNDS) + [1], 0.5) is None, "beyond the last bound"
    assert work_of("alpha", 17, {("watchdog_trips", ("budget",)): 1.0}) == []
