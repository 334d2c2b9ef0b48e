"""The stream of changes tells everything that has changed: over restarts, crashes and transactions that commit late."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import asyncpg

from tests.support.operate import invalidate_states, pause_pipeline
from tests.support.operate_streams import control_stream
from tests.support.server import private_server
from tests.support.waiting import eventually
from tests.support.web import listening, web_server
from tests.support.web_app import make_app
from tidemill.store.change_log import follow_changes, read_changes
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import migrate

INSERT = "INSERT INTO tidemill.job (queue, task, args) VALUES ($1, 'send', '{}')"


async def put(database: Database, queue: str) -> None:
    await database.run(lambda connection: connection.execute(INSERT, queue))


async def old_ones_have_ended(database: Database) -> None:
    """Return when no transaction is open that is older than the log: from then on a stream can be continued.

    Before, the log may lack what such a one has done, and the server says `reset`; on a server that others use as
    well, theirs count too.
    """
    past = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > gone AS past FROM tidemill.change_log"

    async def look() -> bool:
        rows = await database.fetch(past)
        return bool(rows) and rows[0]["past"]

    await eventually(look)


async def test_a_change_is_heard_at_once(database: Database, database_url: str) -> None:
    async with web_server(database_url) as web, web.client() as api, listening(api, "/changes") as heard:
        assert heard.events[0][0] == "hello"
        await put(database, "mail")
        await eventually(lambda: "mail" in heard.names("queues"))
        app = make_app(database_url=database_url)
        run = await app.start("Asking", who="ann")
        await eventually(lambda: run.id in heard.names("runs"))
        await app.close()
        await api.post("/queues/mail/pause")
        await eventually(lambda: {"workers", "audit"} <= heard.names("kinds"))


async def test_a_few_changes_are_each_announced_at_once_and_many_every_few_milliseconds(database: Database) -> None:
    heard: list[object] = []
    connection = await database.connect_to_listen()
    await connection.add_listener(database.channel("changes"), lambda *given: heard.append(given))
    await follow_changes(database)
    writer = await database.connect()
    insert = database.sql(INSERT)
    for _ in range(3):  # as a job is stored, claimed and finished
        await writer.execute(insert, "mail")
    await eventually(lambda: len(heard) == 3)
    heard.clear()
    began = asyncio.get_running_loop().time()
    for _ in range(300):
        await writer.execute(insert, "mail")
    took = asyncio.get_running_loop().time() - began
    assert len(heard) <= took / 0.005 + 5
    await writer.close()
    await connection.close()


async def test_a_stream_resumed_over_a_restart_misses_no_change(database: Database, database_url: str) -> None:
    async with web_server(database_url) as web, web.client() as api:
        await old_ones_have_ended(database)
        async with listening(api, "/changes") as heard:
            await put(database, "before")
            await eventually(lambda: "before" in heard.names("queues"))
        web.kill()
    names = [f"meanwhile-{number}" for number in range(40)]
    for name in names:
        await put(database, name)
    async with (
        web_server(database_url) as web,
        web.client() as api,
        listening(api, "/changes", heard.last_id) as again,
    ):
        await eventually(lambda: set(names) <= again.names("queues"))
        assert "before" not in again.names("queues"), "what was told already is not told again"
        assert "reset" not in [kind for kind, _ in again.events]


async def test_changes_while_nobody_was_connected_are_told_on_return(database: Database, database_url: str) -> None:
    async with web_server(database_url) as web, web.client() as api:
        await old_ones_have_ended(database)
        async with listening(api, "/changes") as heard:
            await put(database, "before")  # Else the server may not have looked since old transactions have ended.
            await eventually(lambda: "before" in heard.names("queues"))
        for number in range(300):
            await put(database, f"q{number}")
        async with listening(api, "/changes", heard.last_id) as again:
            await eventually(lambda: {f"q{number}" for number in range(300)} <= again.names("queues"))


async def test_a_transaction_that_commits_late_is_told_although_later_ones_were(
    database: Database, database_url: str
) -> None:
    late = await asyncpg.connect(database_url)
    async with web_server(database_url) as web, web.client() as api:
        await old_ones_have_ended(database)
        async with listening(api, "/changes") as heard:
            transaction = late.transaction()
            await transaction.start()
            await late.execute(INSERT, "late")
            for number in range(5):
                await put(database, f"early-{number}")
            await eventually(lambda: "early-4" in heard.names("queues"))
            assert "late" not in heard.names("queues")
        await transaction.commit()
        async with listening(api, "/changes", heard.last_id) as again:
            await eventually(lambda: "late" in again.names("queues"))
            assert "early-4" not in again.names("queues")
    await late.close()


async def test_two_servers_continue_each_others_streams(database: Database, database_url: str) -> None:
    async with web_server(database_url) as one, web_server(database_url) as two:
        await old_ones_have_ended(database)
        async with one.client() as api, listening(api, "/changes") as heard:
            await put(database, "first")
            await eventually(lambda: "first" in heard.names("queues"))
        await put(database, "second")
        async with two.client() as api, listening(api, "/changes", heard.last_id) as again:
            await eventually(lambda: "second" in again.names("queues"))
            assert "first" not in again.names("queues")


async def test_a_stream_that_cannot_be_continued_says_so(database: Database, database_url: str) -> None:
    async with web_server(database_url) as web, web.client() as api:
        for last in ("nonsense", "0123.1:2:", "", "x" * 10_000):
            async with listening(api, "/changes", last) as heard:
                assert heard.events[0][0] == "reset", last
        async with listening(api, "/changes") as heard:
            pass
        await database.fetch("UPDATE tidemill.change_log SET gone = 1000000000000")
        async with listening(api, "/changes") as now:
            await put(database, "x")
            await eventually(lambda: "x" in now.names("queues"))
            async with listening(api, "/changes", heard.last_id) as again:
                assert again.events[0][0] == "reset"


async def test_only_what_was_asked_for_is_told(database: Database, database_url: str) -> None:
    async with (
        web_server(database_url) as web,
        web.client() as api,
        listening(api, "/changes?topic=queue:mail") as mail,
        listening(api, "/changes") as everything,
    ):
        await put(database, "other")
        await eventually(lambda: "other" in everything.names("queues"))
        await put(database, "mail")
        await eventually(lambda: "mail" in mail.names("queues"))
        assert mail.names("queues") == {"mail"}


async def test_nothing_is_noted_when_nobody_follows(database: Database) -> None:
    await put(database, "unheard")
    assert (await database.fetch("SELECT count(*) AS n FROM tidemill.change"))[0]["n"] == 0
    await follow_changes(database)
    before = await read_changes(database, None)
    await put(database, "heard")
    look = await read_changes(database, before.seen)
    assert [change.keys for change in look.changes if change.what == "queue"] == [("heard",)]
    assert (await read_changes(database, look.seen)).changes == ()


async def test_every_change_is_read_once_whatever_the_order_of_commits(database: Database) -> None:
    await follow_changes(database)
    read: list[str] = []
    seen = (await read_changes(database, None)).seen
    done = asyncio.Event()

    async def write(number: int) -> None:
        async with database.transaction() as connection:
            await connection.execute(database.sql(INSERT), f"w{number}")
            await asyncio.sleep((number * 37 % 11) / 1000)

    async def follow() -> None:
        nonlocal seen
        while True:
            last = done.is_set()
            look = await read_changes(database, seen)
            seen = look.seen
            read.extend(key for change in look.changes if change.what == "queue" for key in change.keys)
            if last:
                return

    following = asyncio.create_task(follow())
    await asyncio.gather(*(write(number) for number in range(200)))
    done.set()
    await following
    assert sorted(read) == sorted(f"w{number}" for number in range(200))


async def test_a_crash_of_the_database_resets_the_stream() -> None:
    with private_server() as embedded:
        async with Database(DatabaseSettings(url=embedded.dsn)) as database:
            await migrate(database)
            async with web_server(embedded.dsn) as web, web.client() as api, listening(api, "/changes") as heard:
                await put(database, "before")
                await eventually(lambda: "before" in heard.names("queues"))
                await _crash(embedded.dsn)
                await eventually(lambda: "reset" in [kind for kind, _ in heard.events])
                await put(database, "after")
                await eventually(lambda: "after" in heard.names("queues"))


async def _crash(url: str) -> None:
    """Make every backend die as in a crash: unlogged tables are empty afterwards."""
    connection = await asyncpg.connect(url)
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(Exception):
        await connection.fetchval("SELECT 1")
    connection.terminate()


async def test_changes_of_streams_monitors_and_pipelines_are_told_by_the_statements_that_make_them(
    database: Database,
) -> None:
    await follow_changes(database)
    seen = (await read_changes(database, None)).seen

    async def kinds_of(*statements: str) -> set[str]:
        nonlocal seen
        for statement in statements:
            await database.fetch(statement)
        look = await read_changes(database, seen)
        seen = look.seen
        return {change.what for change in look.changes}

    await database.fetch("INSERT INTO tidemill.monitor (name, version) VALUES ('ships', '1'), ('cars', '1')")
    assert await kinds_of("SELECT 1") == {"monitors"}
    told = "UPDATE tidemill.monitor SET status = json_build_object('health', '{}', 'pause', random()), seen_at = now()"
    assert await kinds_of(told.format("healthy")) == {"monitors"}
    assert await kinds_of(told.format("healthy")) == set(), "that it is still healthy is no news"
    assert await kinds_of(told.format("UNHEALTHY")) == {"monitors"}
    alert = (
        "INSERT INTO tidemill.alert (monitor, trigger, entity, kind, severity, started_at, opened_at, tick) "
        "VALUES ('ships', 'deep', 'Ada', 'sustained', 'warning', now(), now(), 1)"
    )
    assert await kinds_of(alert) == {"alerts"}
    assert await kinds_of("UPDATE tidemill.alert SET acked_by = 'me'") == {"alerts"}
    letter = (
        "INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, error, payload) "
        "VALUES ('letters', 'box', '1', 'failed', 3, now(), 'no address', '')"
    )
    assert await kinds_of(letter) == {"dead"}
    assert await kinds_of("DELETE FROM tidemill.dead_letter") == {"dead"}
    await control_stream(database, "letters", "box", weight=2.0, by="me")
    assert {"streams", "audit"} <= await kinds_of("SELECT 1")
    await pause_pipeline(database, "blog", "", paused=True, by="me")
    assert {"pipelines", "audit"} <= await kinds_of("SELECT 1")
    await database.fetch("INSERT INTO tidemill.state (pipeline, stage, entity) VALUES ('blog', 'page', 'a')")
    assert await kinds_of("SELECT 1") == set(), "an intent to build is no news"
    assert await invalidate_states(database, "blog", "page", ["a"], by="me") == 1
    assert {"pipelines", "audit"} <= await kinds_of("SELECT 1")
    assert await kinds_of("UPDATE tidemill.dead_letter SET why = 'lost'") == set()
