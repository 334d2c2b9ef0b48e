"""Positions of the PostgreSQL log when its database moves: dump and restore, a promoted standby, a new era."""

from __future__ import annotations

import asyncio
import subprocess
from uuid import uuid4

import psycopg
import pytest

from tests.support import eventually, value
from tests.support.external import (
    External,
    external_server,
    find_binaries,
    standby_of,
)
from tidemill.sources import LogSource, PageReader, SourceError
from tidemill.sources.base import SourceContext
from tidemill.sources.opening import open_reader
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import migrate
from tidemill.store.streams.event_log import (
    Entry,
    PositionAheadError,
    Range,
    append,
    count_behind,
    finish_ranges,
    make_group,
    take_range,
)

OWNER = uuid4()


async def put(database: Database, *payloads: bytes) -> None:
    async with database.transaction() as connection:
        await append(database, connection, [Entry("posts", payload) for payload in payloads])


async def next_range(database: Database) -> Range:
    """The next range of the group; another transaction of the server may hold it up for a moment."""
    return await eventually(
        lambda: take_range(database, "group", "posts", most=1000, rows=1000, owner=OWNER, lease=60.0)
    )


async def read(database: Database) -> list[bytes]:
    """Read and finish the next range."""
    found = await next_range(database)
    async with database.transaction() as connection:
        await finish_ranges(database, connection, [found.number], OWNER)
    return [message.payload for message in found.messages]


def burn_transactions(url: str) -> None:
    """Let a cluster count its transactions on, as one that has been in use for a while has."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DO $$ BEGIN FOR n IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")


def copy_database(source: str, target: str) -> None:
    """Dump one database and restore it into another, empty one."""
    binaries = find_binaries()
    dump = subprocess.run([binaries / "pg_dump", source], check=True, capture_output=True)
    subprocess.run([binaries / "psql", "-qX", "-v", "ON_ERROR_STOP=1", target], input=dump.stdout, check=True)


async def test_messages_are_delivered_after_a_dump_is_restored_into_another_cluster(external: External) -> None:
    burn_transactions(external.url())
    with psycopg.connect(external.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE moved_away")
    async with Database(DatabaseSettings(url=external.url("moved_away"))) as before:
        await migrate(before)
        await make_group(before, "group", "posts", from_now=False)
        await put(before, b"read before")
        assert await read(before) == [b"read before"]
        await put(before, b"waits")
    with external_server() as other:
        await asyncio.to_thread(copy_database, external.url("moved_away"), other.url())
        async with Database(DatabaseSettings(url=other.url())) as after:
            await put(after, b"published there")
            assert await count_behind(after, "group", "posts") == 2
            assert await read(after) == [b"waits", b"published there"]
            await make_group(after, "from now", "posts", from_now=True)
            assert await count_behind(after, "from now", "posts") == 0
        # And back again, into the cluster whose transactions are counted further on.
        with psycopg.connect(external.url(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE moved_back")
        await asyncio.to_thread(copy_database, other.url(), external.url("moved_back"))
    async with Database(DatabaseSettings(url=external.url("moved_back"))) as again:
        await put(again, b"one more")
        assert await read(again) == [b"one more"]
        assert await value(again, "SELECT count(DISTINCT xid::text::bigint >> 48) FROM tidemill.event_log") == 3


async def test_positions_go_on_in_a_standby_that_was_promoted(external: External) -> None:
    with psycopg.connect(external.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE replicated")
    async with Database(DatabaseSettings(url=external.url("replicated"))) as primary:
        await migrate(primary)
        await make_group(primary, "group", "posts", from_now=False)
        await put(primary, b"one")
        assert await read(primary) == [b"one"]
    with standby_of(external) as standby:
        standby.promote()
        async with Database(DatabaseSettings(url=standby.url("replicated"))) as database:
            await put(database, b"two")
            assert await read(database) == [b"two"]
            assert await value(database, "SELECT max(xid::text::bigint) >> 48 FROM tidemill.event_log") == 0


async def test_a_position_ahead_of_the_log_is_an_error_for_streams_and_monitors_until_an_era_begins(
    database: Database,
) -> None:
    await make_group(database, "group", "posts", from_now=False)
    reader = open_reader(LogSource("posts", group="watcher"), SourceContext("monitor", uuid4(), database))
    assert isinstance(reader, PageReader)
    await make_group(database, "watcher", "posts", from_now=False)
    await database.fetch("UPDATE tidemill.log_group SET xid = (7::bigint << 48)::text::xid8, id = 1")
    await put(database, b"not seen")
    with pytest.raises(PositionAheadError, match=r"group group of topic posts is ahead of the log.*begin_log_era"):
        await next_range(database)

    async def monitor_reads() -> None:
        async for _ in reader.pages(None, None, 1000.0):
            pass

    with pytest.raises(SourceError, match="ahead of the log"):
        await monitor_reads()
    await reader.close()
    assert await value(database, "SELECT tidemill.begin_log_era()") == 8
    await put(database, b"seen")
    assert await read(database) == [b"seen"]


async def test_nothing_is_lost_or_read_twice_while_writers_commit_late_and_eras_begin(database: Database) -> None:
    await make_group(database, "group", "posts", from_now=False)
    writers, each = 6, 25

    async def write(writer: int) -> None:
        for number in range(each):
            async with database.transaction() as connection:
                await append(database, connection, [Entry("posts", b"%d.%d" % (writer, number))])
                await asyncio.sleep(0.001 * (writer % 3))

    async def begin_eras() -> None:
        for _ in range(10):
            await database.fetch("SELECT tidemill.begin_log_era()")
            await asyncio.sleep(0.01)

    working = asyncio.gather(begin_eras(), *(write(writer) for writer in range(writers)))
    found: list[bytes] = []
    while len(found) < writers * each:
        found += await read(database)
    await working
    assert len(set(found)) == writers * each
    for writer in range(writers):
        mine = [payload for payload in found if payload.startswith(b"%d." % writer)]
        assert mine == [b"%d.%d" % (writer, number) for number in range(each)]
    assert await count_behind(database, "group", "posts") == 0
