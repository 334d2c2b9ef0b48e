"""Operators pause, drain, stop and resume queues on hosts; it takes effect at once and is written down."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.support import eventually, find_live, finished, running, running_worker, value
from tests.support.operate import list_audit, set_control
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import NotFoundError
from tidemill.engine.roles.role import Role
from tidemill.engine.worker.worker import Worker
from tidemill.ops import waiting
from tidemill.ops.jobs.queues import LimitQueue, QueueRef, WeighKey, limit_queue, pause_queue, resume_queue, weigh_key
from tidemill.ops.jobs.workers import ControlWorkers, control_workers
from tidemill.ops.operator.local import Local
from tidemill.store.database import Database
from tidemill.store.jobs.declared import declare
from tidemill.store.jobs.workers import list_workers


class Held:
    """Jobs that run until released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.started: list[int] = []


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture(autouse=True)
def _told_or_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers do not look by themselves."""
    monkeypatch.setattr("tidemill.engine.worker.claimer.SAFETY_POLL", 600.0)


@pytest.fixture
def app(app: App, held: Held) -> App:
    @app.task(queue="mail")
    async def send(n: int = 0) -> int:
        return n

    @app.task(queue="mail")
    async def hold(n: int = 0) -> int:
        held.started.append(n)
        await held.release.wait()
        return n

    return app


async def becomes(worker: Role[Worker], status: str) -> None:
    await eventually(lambda: worker.work.status == status, what=f"{status} (is {worker.work.status})")


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(app: App, database: Database) -> None:
    async with running_worker(app) as worker:
        assert worker.work.status == "running"
        await set_control(database, worker.work.host, "mail", "pause", by="ann")
        await becomes(worker, "paused")
        ref = await app.enqueue("send")
        for _ in range(2):
            seen = await value(database, "SELECT seen_at FROM tidemill.worker")
            await eventually(lambda seen=seen: value(database, "SELECT seen_at > $1 FROM tidemill.worker", seen))
        assert (await find_live(database, ref.id)) is not None
        await set_control(database, worker.work.host, "mail", "run", by="ann")
        await becomes(worker, "running")
        assert (await finished(database, ref.id))["state"] == "succeeded"


async def test_the_other_queues_of_the_worker_go_on(app: App, database: Database) -> None:
    async with running_worker(app, ["mail", "fetch"]) as worker:
        await set_control(database, worker.work.host, "mail", "pause", by="ann")
        await becomes(worker, "partly_paused")
        waiting = await app.enqueue("send")
        for n in range(3):
            await finished(database, (await app.enqueue("send", n, queue="fetch")).id)
        row = await find_live(database, waiting.id)
        assert row is not None
        assert (row["state"], row["attempt"]) == ("ready", 0)


async def test_a_paused_worker_lets_its_running_jobs_finish(app: App, database: Database, held: Held) -> None:
    async with running_worker(app) as worker:
        ref = await app.enqueue("hold")
        await running(database, ref.id)
        await set_control(database, worker.work.host, "mail", "pause", by="ann")
        await becomes(worker, "draining")
        held.release.set()
        assert (await finished(database, ref.id))["attempt"] == 1
        await becomes(worker, "paused")


async def test_a_drained_worker_finishes_what_runs_and_takes_no_more(app: App, database: Database, held: Held) -> None:
    async with running_worker(app, max_concurrency=1) as worker:
        first = await app.enqueue("hold", 1)
        await running(database, first.id)
        second = await app.enqueue("hold", 2)
        await set_control(database, "*", "mail", "drain", by="ann")
        await becomes(worker, "draining")
        held.release.set()
        await finished(database, first.id)
        await becomes(worker, "drained")
        row = await find_live(database, second.id)
        assert row is not None
        assert row["state"] == "ready"
        assert held.started == [1]


async def test_a_drain_is_waited_for_until_no_job_runs(
    app: App, database: Database, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SAFETY_POLL", 3600.0)
    async with running_worker(app) as worker:
        ref = await app.enqueue("hold", 1)
        await running(database, ref.id)
        at = Local(database, Caller("ann", "operator"))
        await at.do(control_workers, ControlWorkers(mode="drain", host=worker.work.host, queue="mail"))
        await waiting.wait_until_drained(at, "elsewhere", "*")
        await waiting.wait_until_drained(at, "*", "fetch")
        drained = asyncio.create_task(waiting.wait_until_drained(at, worker.work.host, "mail"))
        await becomes(worker, "draining")
        assert not drained.done()
        held.release.set()
        await drained
        assert (await finished(database, ref.id))["state"] == "succeeded"


async def test_a_stopped_worker_gives_its_running_jobs_back_and_they_run_after_the_resume(
    app: App, database: Database, held: Held
) -> None:
    async with running_worker(app) as worker:
        ref = await app.enqueue("hold", 1)
        await running(database, ref.id)
        await set_control(database, worker.work.host, "*", "stop", by="ann")
        await becomes(worker, "stopped")
        row = await eventually(lambda: ready(database, ref.id))
        assert (row["note"], row["failures"], row["losses"]) == ("its worker was stopped by an operator", 0, 0)
        held.release.set()
        await set_control(database, worker.work.host, "*", "run", by="ann")
        done = await finished(database, ref.id)
    assert (done["state"], done["attempt"], done["failures"]) == ("succeeded", 2, 0)
    assert held.started == [1, 1]


async def ready(database: Database, job_id: int) -> Any:
    row = await find_live(database, job_id)
    return row if row is not None and row["state"] == "ready" else None


async def test_only_the_named_host_obeys(app: App, database: Database) -> None:
    async with running_worker(app, host="alpha") as alpha, running_worker(app, host="beta") as beta:
        await set_control(database, "alpha", "mail", "pause", by="ann")
        await becomes(alpha, "paused")
        ref = await app.enqueue("send")
        assert (await finished(database, ref.id))["worker_id"] == beta.worker_id
        assert beta.work.status == "running"


async def test_a_star_stands_for_every_host_and_every_queue(app: App, database: Database) -> None:
    async with running_worker(app, host="alpha") as alpha, running_worker(app, ["fetch"], host="beta") as beta:
        await set_control(database, "*", "*", "pause", by="ann")
        await becomes(alpha, "paused")
        await becomes(beta, "paused")
        await set_control(database, "*", "*", "run", by="ann")
        await becomes(alpha, "running")
        await becomes(beta, "running")


@pytest.mark.parametrize(("host", "queue"), [("here", "mail"), ("*", "mail"), ("here", "*")])
async def test_the_most_specific_wish_wins(app: App, database: Database, host: str, queue: str) -> None:
    async with running_worker(app, host="here") as worker:
        await set_control(database, host, queue, "drain", by="ann")
        await becomes(worker, "drained")
        await set_control(database, "*", "*", "pause", by="ann")
        await set_control(database, "*", "elsewhere", "stop", by="ann")
        await set_control(database, host, queue, "stop", by="ann")
        await becomes(worker, "stopped")
        await set_control(database, host, queue, "run", by="ann")
        await becomes(worker, "running")


async def test_a_wide_resume_takes_narrower_wishes_back_as_well(app: App, database: Database) -> None:
    async with running_worker(app, host="here") as worker:
        await set_control(database, "here", "mail", "pause", by="ann")
        await becomes(worker, "paused")
        await set_control(database, "*", "*", "run", by="ann")
        await becomes(worker, "running")
    assert await value(database, "SELECT count(*) FROM tidemill.worker_control") == 0


@pytest.mark.parametrize("mode", ["pause", "drain", "stop"])
async def test_a_worker_that_starts_on_a_held_queue_takes_nothing(app: App, database: Database, mode: Any) -> None:
    await set_control(database, "*", "mail", mode, by="ann")
    refs = [await app.enqueue("send") for _ in range(20)]
    probe = await app.enqueue("send", queue="probe")
    async with running_worker(app, ["mail", "probe"]):
        await finished(database, probe.id)
        for ref in refs:
            row = await find_live(database, ref.id)
            assert row is not None
            assert row["attempt"] == 0


async def test_a_workers_row_tells_its_status_and_what_operators_want(app: App, database: Database) -> None:
    async with running_worker(app, host="here") as worker:
        await set_control(database, "here", "mail", "pause", by="ann")
        await becomes(worker, "paused")

        async def told() -> Any:
            (row,) = await list_workers(database)
            return row if row["status"] == "paused" else None

        row = await eventually(told)
    assert (row["id"], row["host"], row["queues"], row["control"]) == (
        worker.worker_id, "here", ["mail"], ["here/mail=pause"],
    )  # fmt: skip


async def test_every_wish_is_written_down_with_what_was_before(app: App, database: Database) -> None:
    assert await set_control(database, "here", "mail", "pause", by="ann") == "run"
    assert await set_control(database, "here", "mail", "stop", by="bob") == "pause"
    assert await set_control(database, "here", "mail", "run", by="cleo") == "stop"
    trail = [
        (
            row["who"],
            row["action"],
            row["target"],
            msgspec.json.decode(row["before"]),
            msgspec.json.decode(row["after"]),
        )
        for row in await list_audit(database)
    ]
    assert trail == [
        ("cleo", "worker.run", "here/mail", "stop", "run"),
        ("bob", "worker.stop", "here/mail", "pause", "stop"),
        ("ann", "worker.pause", "here/mail", "run", "pause"),
    ]


async def test_a_queue_that_nothing_knows_cannot_be_paused_and_one_of_another_program_can(
    app: App, database: Database, database_url: str
) -> None:
    @app.task(queue="mail")
    async def deliver() -> None: ...

    @app.task(queue="elsewhere")
    async def other() -> None: ...

    job = await app.enqueue("deliver", queue="jobs only")
    reader = App("test", database_url=database_url)  # It declares none of these queues.
    for name in ("mail", "mial"):
        with pytest.raises(NotFoundError, match=f"there is no queue '{name}': no worker serves it, no task names it"):
            await reader.do(pause_queue, QueueRef(name=name))
    assert (await app.do(pause_queue, QueueRef(name="mail"))).now == "pause"  # The application has it,
    assert (await reader.do(pause_queue, QueueRef(name="jobs only"))).now == "pause"  # a job is in it,
    assert (await reader.do(resume_queue, QueueRef(name="mail"))).now == "run"  # or an operator has named it.
    await declare(database, app.declarations.templates())
    with pytest.raises(NotFoundError, match="did you mean 'elsewhere'"):
        await reader.do(pause_queue, QueueRef(name="elswhere"))
    assert (await reader.do(pause_queue, QueueRef(name="elsewhere"))).now == "pause"
    await reader.do(control_workers, ControlWorkers(mode="pause", queue="next year"))
    assert (await reader.do(resume_queue, QueueRef(name="next year"))).before == "pause"
    assert job.created
    await reader.close()


async def test_a_queue_that_nothing_knows_has_no_limit_and_no_weights(app: App, database: Database) -> None:
    app.queue("declared", rate="5/s")
    changes: list[tuple[Any, Any]] = [
        (limit_queue, LimitQueue(name="mial", rate="10/s")),
        (limit_queue, LimitQueue(name="mial", rate="10/s", per_key=True)),
        (limit_queue, LimitQueue(name="mial", rate=None)),
        (weigh_key, WeighKey(name="mial", fair_key="acme", weight=3)),
    ]
    for change, args in changes:
        with pytest.raises(NotFoundError, match=r"there is no queue 'mial': .*did you mean 'mail'.*app.queue\('mial'"):
            await app.do(change, args)
    assert await value(database, "SELECT count(*) FROM tidemill.queue") == 0
    assert (await app.do(limit_queue, LimitQueue(name="mail", rate="10/s"))).rate == 10
    assert (await app.do(weigh_key, WeighKey(name="declared", fair_key="acme", weight=3))).weight == 3
