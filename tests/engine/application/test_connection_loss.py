"""A lost connection is a normal day: everything goes on, nothing is lost, nothing is stuck."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from tests.support import (
    eventually,
    find_live,
    finished,
    locked_out,
    running,
    running_maintenance,
    running_scheduler,
    running_worker,
    value,
)
from tests.support.operate import cancel_jobs, set_control
from tests.support.wire import Wire
from tidemill import App
from tidemill.core.errors import StoreError
from tidemill.store.database import Database, DatabaseSettings

CUT_ALL = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'the cutter'
"""


@pytest.fixture
async def cutter(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that survives what it does to all others."""
    connection = await asyncpg.connect(database_url, server_settings={"application_name": "the cutter"})
    yield connection
    await connection.close()


async def test_all_jobs_finish_although_every_connection_is_cut_again_and_again(app: App, database, cutter) -> None:
    runs: list[int] = []

    @app.task
    async def work(n: int) -> None:
        await asyncio.sleep(0.01)
        runs.append(n)

    await app.enqueue_many(work, ({"n": n} for n in range(600)))
    async with running_maintenance(app), running_worker(app) as worker:
        for done in (50, 150, 300, 450):
            await eventually(lambda done=done: len(runs) >= done)
            await cutter.fetchval(CUT_ALL)
        await eventually(lambda: no_job_left(cutter))
        assert worker.work.status == "running"
        states = await cutter.fetch("SELECT state, count(*) FROM tidemill.job_history GROUP BY 1")
        assert [tuple(row) for row in states] == [("succeeded", 600)]
        assert await cutter.fetchval("SELECT count(DISTINCT id) FROM tidemill.job_history") == 600
    assert set(runs) == set(range(600))


async def test_a_connection_cut_while_idle_costs_the_next_enqueue_nothing(app: App, cutter, database_url: str) -> None:
    @app.task
    async def work() -> None: ...

    async def cut_for_good() -> None:
        connection = await asyncpg.connect(database_url, server_settings={"application_name": "the cutter"})
        while await connection.fetchval(CUT_ALL):
            pass
        await connection.close()

    def hold_the_loop() -> None:
        thread = threading.Thread(target=lambda: asyncio.run(cut_for_good()))
        thread.start()
        thread.join()

    refs = [await app.enqueue(work)]
    for moment in ("now", "a turn later", "unheard") * 10:
        if moment == "unheard":
            hold_the_loop()  # The server's end is closed, and nobody here has had time to notice.
        else:
            await cutter.fetchval(CUT_ALL)
        if moment == "a turn later":
            await asyncio.sleep(0)  # The server's last words may or may not have been read.
        refs.append(await app.enqueue(work))
    stored = await cutter.fetch("SELECT id FROM tidemill.job")
    assert sorted(row["id"] for row in stored) == sorted(ref.id for ref in refs)


async def no_job_left(cutter: asyncpg.Connection) -> Any:
    return await cutter.fetchval("SELECT NOT EXISTS (SELECT FROM tidemill.job)")


async def test_a_job_that_ran_through_the_loss_is_finished_once(app: App, database: Database, cutter) -> None:
    release = asyncio.Event()
    runs: list[int] = []

    @app.task
    async def hold() -> str:
        runs.append(1)
        await release.wait()
        return "held"

    async with running_maintenance(app), running_worker(app):
        ref = await app.enqueue(hold)
        await running(database, ref.id)
        await cutter.fetchval(CUT_ALL)
        release.set()
        row = await finished(database, ref.id)
    assert (row["result"], row["attempt"], runs) == (b'"held"', 1, [1])


async def test_what_was_claimed_in_an_answer_that_never_came_is_given_back(app: App, database, cutter) -> None:
    @app.task
    async def quick() -> str:
        return "done"

    async with running_worker(app) as worker:
        ref = await app.enqueue(quick.call(), delay="1h")
        # As if the worker had claimed it, and the answer had been lost with the connection.
        await cutter.execute(
            "UPDATE tidemill.job SET state = 'running', attempt = 1, worker_id = $1, due_at = now()", worker.worker_id
        )
        await cutter.fetchval(CUT_ALL)
        row = await finished(database, ref.id)
    assert (row["state"], row["attempt"], row["failures"], row["losses"]) == ("succeeded", 2, 0, 0)


async def test_news_are_heard_again_after_the_listening_connection_was_cut(
    app: App, database, cutter, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def quick() -> None: ...

    async with running_worker(app) as worker:
        await finished(database, (await app.enqueue(quick)).id)
        await cutter.fetchval(CUT_ALL)
        await eventually(lambda: listens(cutter))
        monkeypatch.setattr(
            "tidemill.engine.worker.claimer.SAFETY_POLL", 600.0
        )  # From its next turn on it is told, or waits.
        for _ in range(2):
            await finished(database, (await app.enqueue(quick)).id)
        await set_control(database, worker.work.host, "*", "pause", by="ann")
        await eventually(lambda: worker.work.status == "paused")


async def listens(cutter: asyncpg.Connection) -> Any:
    return await cutter.fetchval(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%'"
    )


async def test_a_cancel_request_survives_the_loss(app: App, database: Database, cutter) -> None:
    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    async with running_worker(app):
        ref = await app.enqueue(endless)
        await running(database, ref.id)
        await cutter.fetchval(CUT_ALL)
        await find_live(database, ref.id)
        await cancel_jobs(database, [ref.id], by="ann")
        assert (await finished(database, ref.id))["state"] == "cancelled"


async def test_what_an_operator_does_right_after_the_loss_is_done(app: App, database: Database, cutter) -> None:
    for turn in range(10):
        await value(database, "SELECT 1")
        await cutter.fetchval(CUT_ALL)
        await set_control(database, "here", "mail", "pause" if turn % 2 else "drain", by="ann")


async def test_a_schedule_goes_on_after_the_loss(app: App, database: Database, cutter) -> None:
    @app.task(every=0.1)
    async def tick() -> None: ...

    async with running_scheduler(app):
        await eventually(lambda: value(database, "SELECT fired >= 1 FROM tidemill.schedule"))
        await cutter.fetchval(CUT_ALL)
        before = await value(database, "SELECT fired FROM tidemill.schedule")
        await eventually(lambda: value(database, "SELECT fired >= $1 FROM tidemill.schedule", before + 2))
    fires = await database.fetch(
        "SELECT origin->>'fire' AS fire, count(*) FROM tidemill.job GROUP BY 1 HAVING count(*) > 1"
    )
    assert fires == []


async def test_an_enqueue_right_after_the_loss_succeeds_or_says_so(app: App, database: Database, cutter) -> None:
    @app.task
    async def quick() -> None: ...

    async def enqueue() -> int | str:
        try:
            return (await app.enqueue(quick)).id
        except StoreError as error:
            return str(error)

    stored = [await enqueue()]
    for _ in range(5):
        await cutter.fetchval(CUT_ALL)
        answers = [await enqueue() for _ in range(app.settings.pool_size)]
        assert all("may or may not be there" in answer for answer in answers if isinstance(answer, str))
        stored += [answer for answer in answers if isinstance(answer, int)][:1]
    assert len(stored) == 6
    for job_id in stored:
        assert isinstance(job_id, int)
        assert await find_live(database, job_id) is not None


async def test_an_enqueue_whose_answer_was_lost_is_not_stored_twice_behind_the_callers_back(
    app: App, database: Database, database_url: str
) -> None:
    @app.task
    async def quick(n: int) -> None: ...

    async with MuteServer(database_url) as mute:
        through = App("test", database_url=mute.url, pool_size=2)
        through.task(name="quick")(quick.function)
        await through.enqueue("quick", 0)
        mute.swallow_answers_with(b'{"n":7}')
        answers = await asyncio.gather(*(through.enqueue("quick", n) for n in range(1, 20)), return_exceptions=True)
        await through.close()
    stored = await database.fetch("SELECT args->>'n' AS n, count(*) FROM tidemill.job GROUP BY 1 HAVING count(*) > 1")
    assert stored == []
    assert any(isinstance(answer, StoreError) for answer in answers)


class MuteServer:
    """Stands between a client and the server, and can cut a connection once a statement has been done."""

    def __init__(self, url: str) -> None:
        self._behind = urlsplit(url)
        self._options = {name: values[0] for name, values in parse_qs(self._behind.query).items()}
        self._marked: list[bytes] = []

    @property
    def url(self) -> str:
        host, port = self._server.sockets[0].getsockname()[:2]
        user = self._behind.username or self._options.get("user", "postgres")
        password = f":{self._behind.password}" if self._behind.password else ""
        return f"postgresql://{user}{password}@{host}:{port}{self._behind.path}?sslmode=disable"

    def swallow_answers_with(self, *statements: bytes) -> None:
        """Cut the next connections that send these statements, instead of handing their answers on."""
        self._marked = list(statements)

    async def __aenter__(self) -> MuteServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _reach_server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._behind.hostname:
            return await asyncio.open_connection(self._behind.hostname, self._behind.port or 5432)
        return await asyncio.open_unix_connection(
            f"{self._options['host']}/.s.PGSQL.{self._options.get('port', '5432')}"
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await self._reach_server()
        doomed = False

        async def ask() -> None:
            nonlocal doomed
            while data := await reader.read(65536):
                doomed = doomed or self._is_marked(data)
                to_server.write(data)
            to_server.close()

        async def answer() -> None:
            while data := await from_server.read(65536):
                if doomed and data.endswith(READY):
                    break
                writer.write(data)
            writer.close()
            to_server.close()

        await asyncio.gather(ask(), answer(), return_exceptions=True)

    def _is_marked(self, data: bytes) -> bool:
        found = next((mark for mark in self._marked if mark in data), None)
        if found is not None:
            self._marked.remove(found)
        return found is not None


READY = b"Z\x00\x00\x00\x05I"


async def test_a_claim_that_succeeds_after_its_connection_was_lost_is_given_back(
    app: App, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on with the last claim when its worker has long connected again."""
    monkeypatch.setattr("tidemill.engine.worker.claimer.UNHELD_CHECK_DELAYS", (0.2, 1.0, 10.0, 60.0))

    @app.task
    async def work() -> str:
        return "done"

    async with Wire(database_url).open() as wire:
        app.declarations.configure(database_url=wire.url)
        async with running_maintenance(app), running_worker(app) as worker:
            for _ in range(3):  # A claim that the server knows by heart, and has only to carry out.
                await finished(database, (await app.enqueue(work)).id)
            attempts: list[int] = []
            while 2 not in attempts:  # Of the two claims either may get the job.
                assert len(attempts) < 20, "the claim whose connection was lost was never the first"
                async with database.transaction() as held:
                    await held.execute("LOCK TABLE tidemill.worker IN ACCESS EXCLUSIVE MODE")
                    ref = await app.enqueue(work)
                    await eventually(lambda: claims_waiting(database, 1))
                    wire.cut()
                    await eventually(lambda: claims_waiting(database, 2))
                row = await finished(database, ref.id)
                assert (row["state"], worker.work.status) == ("succeeded", "running")
                attempts.append(row["attempt"])
            assert set(attempts) <= {1, 2}


async def claims_waiting(database: Database, count: int) -> bool:
    return await locked_out(database, "%UPDATE tidemill.job%") >= count


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net/tcp")
async def test_a_server_that_vanishes_without_a_word_is_missed(database_url: str) -> None:
    """Every connection is watched by the system: else the answer of a host that is gone is awaited for ever."""
    async with Wire(database_url).open() as wire:
        database = Database(DatabaseSettings(url=wire.url))
        kept = [await database.connect(), await database.connect_to_listen()]
        port = f":{urlsplit(wire.url).port:04X}"
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        timers = [line[5][:2] for line in lines if line[2].endswith(port) and line[3] == "01"]
        assert timers == ["02", "02"], "both have their keepalive timer set"
        for connection in kept:
            await connection.close()
