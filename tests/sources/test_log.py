"""The PostgreSQL log: messages that lie together in rows, and are read one by one."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.support import eventually, value
from tidemill.sources.base import SourceContext
from tidemill.sources.log import LogSource
from tidemill.store.database import Database
from tidemill.store.streams import event_log
from tidemill.store.streams.event_log import (
    Entry,
    append,
    count_behind,
    make_group,
    note_done,
    release_ranges,
    take_range,
)


async def put(database: Database, *entries: Entry) -> None:
    async with database.transaction() as connection:
        await append(database, connection, entries)


async def take(database: Database, **options: Any) -> event_log.Range:
    """The next range; another transaction of the server may hold it up for a moment."""
    more = {"most": 1000, "rows": 1000, "owner": uuid4(), "lease": 60.0, **options}
    return await eventually(lambda: take_range(database, "group", "posts", **more))


async def test_what_is_appended_together_is_read_as_it_was(database: Database) -> None:
    await make_group(database, "group", "posts", from_now=False)
    entries = [
        Entry("posts", b"one"),
        Entry("other", b"elsewhere", "k"),
        Entry("posts", b"two", "key"),
        Entry("posts", b"", None, b'{"h": "v"}'),
    ]
    await put(database, *entries)
    found = await take(database)
    told = [(message.payload, message.key, message.headers) for message in found.messages]
    assert told == [(b"one", None, None), (b"two", "key", None), (b"", None, '{"h": "v"}')]
    shown = await database.fetch(
        "SELECT position, key, payload FROM tidemill.log_message WHERE topic = 'posts' ORDER BY position"
    )
    assert [(row["position"], row["key"], row["payload"]) for row in shown] == [
        (message.position, message.key, message.payload) for message in found.messages
    ]


async def test_rows_are_neither_too_many_nor_too_large(database: Database) -> None:
    await put(database, *[Entry("posts", b"x")] * 1000)
    await put(database, *[Entry("posts", bytes(event_log.MOST_BYTES // 3))] * 4, Entry("posts", bytes(200_000)))
    rows = await database.fetch("SELECT messages FROM tidemill.event_log ORDER BY id")
    assert [row["messages"] for row in rows] == [256, 256, 256, 232, 3, 1, 1]


async def test_a_reader_takes_whole_rows_until_it_has_enough(database: Database) -> None:
    await make_group(database, "group", "posts", from_now=False)
    await put(database, *[Entry("posts", b"%d" % number) for number in range(600)])
    for number in range(600, 605):
        await put(database, Entry("posts", b"%d" % number))
    assert await count_behind(database, "group", "posts") == 605
    # Once no other transaction of the server is older than what was put last, all of it can be taken.
    committed = "SELECT bool_and(xid < pg_snapshot_xmin(pg_current_snapshot())) FROM tidemill.event_log"
    await eventually(lambda: value(database, committed))
    sizes, read = [], []
    while len(read) < 605:
        found = await take(database, most=300)
        sizes.append(len(found.messages))
        read += [int(message.payload) for message in found.messages]
    assert sizes == [512, 93]
    assert read == list(range(605))
    assert await count_behind(database, "group", "posts") == 0


async def test_a_reader_that_takes_a_range_over_is_told_what_is_done_of_it(database: Database) -> None:
    await make_group(database, "group", "posts", from_now=False)
    await put(database, *[Entry("posts", b"%d" % number) for number in range(10)])
    first = uuid4()
    found = await take(database, owner=first)
    done = [message.position for message in found.messages[:4]]
    async with database.acquire() as connection:
        assert await note_done(database, connection, [(found.number, done)], first) == {found.number}
    await release_ranges(database, first)
    again = await take(database)
    assert (again.number, again.done) == (found.number, frozenset(done))
    assert [message.position for message in again.messages] == [message.position for message in found.messages]


async def test_large_payloads_are_kept_as_they_are(database: Database) -> None:
    """Compressing them would cost more time than storing them."""
    kept = """
    SELECT array_agg(DISTINCT attstorage::text) FROM pg_attribute WHERE attname = 'payloads' AND attrelid IN (
        SELECT inhrelid FROM pg_inherits WHERE inhparent = 'tidemill.event_log'::regclass)
    """
    assert await value(database, kept) == ["e"]


async def test_a_reader_takes_large_messages_until_it_has_enough_bytes(database: Database) -> None:
    await make_group(database, "group", "posts", from_now=False)
    count = event_log.MOST_IN_RANGE // 2**20 + 4
    await put(database, *[Entry("posts", bytes(2**20))] * count)
    first, second = await take(database), await take(database)
    assert (len(first.messages), len(second.messages)) == (count - 4, 4)


async def test_a_reader_in_order_takes_first_what_it_has_taken_without_hearing_of_it(database: Database) -> None:
    """The response to its statement was lost with its connection: the range is there, and its messages are not."""
    source = LogSource("posts", ordered=True, lease=2.0)
    consumer = source.consumer(SourceContext("s", uuid4(), database))
    await consumer.start()
    try:
        await put(database, Entry("posts", b"0", "k"))
        assert [each.payload for each in await eventually(lambda: consumer.poll(10))] == [b"0"]
        await put(database, Entry("posts", b"1", "k"))
        options: dict[str, Any] = {"most": 10, "rows": 10, "owner": consumer._owner, "lease": 2.0}
        assert await eventually(lambda: take_range(database, "s.posts", "posts", **options))
        await put(database, Entry("posts", b"2", "k"))
        assert [each.payload for each in await eventually(lambda: consumer.poll(10))] == [b"1"]
        assert [each.payload for each in await eventually(lambda: consumer.poll(10))] == [b"2"]
    finally:
        await consumer.stop()
