"""Items for sinks: stored with the outcome of their message, deleted when the sink has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from tidemill.store.database import Database, Executor

#: Stores items, and tells the dispatchers that send them.
ADD_ITEMS = """
WITH added AS (
    INSERT INTO tidemill.stream_outbox (stream, sink, item, source, place, plan, key, headers, payload)
    SELECT stream, sink, item, source, place, plan, key, headers::json, payload
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                $9::bytea[]) WITH ORDINALITY
         AS new (stream, sink, item, source, place, plan, key, headers, payload, number) ORDER BY number
    RETURNING stream, sink)
SELECT pg_notify('tidemill_streams', 'outbox ' || stream || '/' || sink)
FROM (SELECT DISTINCT stream, sink FROM added) AS notified
"""

#: The next items of a sink, except those of keys that wait, up to a number and about a size. How long a key waits is
#: the sender's to say: by two clocks, an item could pass the one of its key that is refused.
TAKE_ITEMS = """
SELECT id, item, key, headers, payload, attempts FROM (
    SELECT *, sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before FROM (
        SELECT id, item, key, headers, payload, attempts FROM tidemill.stream_outbox
        WHERE stream = $1 AND sink = $2 AND CASE WHEN key IS NULL THEN due_at IS NULL OR due_at <= now()
                                                 ELSE key <> ALL ($3::text[]) END
        ORDER BY id LIMIT $4) AS due) AS counted
WHERE before < $5 ORDER BY id
"""

#: The keys whose first item waits for another attempt, and for how many seconds.
WAITING_KEYS = """
SELECT key, extract(epoch FROM max(due_at) - now())::float8 AS wait FROM tidemill.stream_outbox
WHERE stream = $1 AND sink = $2 AND due_at > now() GROUP BY key
"""

DROP_ITEMS = "DELETE FROM tidemill.stream_outbox WHERE id = ANY ($1::bigint[])"

#: Notes that the receiver has refused items.
REFUSE_ITEMS = """
UPDATE tidemill.stream_outbox AS o SET attempts = new.attempts, due_at = now() + make_interval(secs => new.delay),
    error = new.error
FROM unnest($1::bigint[], $2::int[], $3::float8[], $4::text[]) AS new (id, attempts, delay, error) WHERE o.id = new.id
"""

#: Makes dead letters of items.
BURY_ITEMS = """
WITH gone AS (
    DELETE FROM tidemill.stream_outbox AS o USING unnest($1::bigint[], $2::int[], $3::text[]) AS new (id, tries, why)
    WHERE o.id = new.id RETURNING o.*, new.tries, new.why)
INSERT INTO tidemill.dead_letter (stream, source, sink, place, why, attempts, at, message_id, key, headers, plans,
                                  kind, error, payload)
SELECT stream, source, sink, place, 'undelivered', tries, at, item, convert_to(key, 'UTF8'), headers, ARRAY[plan],
       'Refused', why, payload
FROM gone ORDER BY id
"""

COUNT_ITEMS = """
SELECT sink, count(*) AS waiting, extract(epoch FROM now() - min(at))::float8 AS oldest FROM tidemill.stream_outbox
WHERE stream = $1 GROUP BY sink
"""

#: What a message has handed over and its sinks do not have yet.
ITEMS_OF_MESSAGE = """
SELECT sink, plan, attempts, due_at, error, at FROM tidemill.stream_outbox
WHERE stream = $1 AND source = $2 AND place = $3 ORDER BY id LIMIT 100
"""


def outbox_topic(stream: str, sink: str) -> str:
    """What is notified when there are new items for a sink."""
    return f"outbox {stream}/{sink}"


async def add_items(database: Database, connection: Executor, rows: Sequence[tuple[Any, ...]]) -> None:
    """Store items for sinks; the columns are those of the statement."""
    *rest, payloads = zip(*rows, strict=True)
    await connection.fetch(database.sql(ADD_ITEMS), *rest, [database.seal_bytes(each) for each in payloads])


async def take_items(
    database: Database, stream: str, sink: str, waiting_keys: Sequence[str], *, most: int, size: int
) -> list[asyncpg.Record]:
    """The next items of a sink that may be sent, in order."""
    return await database.fetch(TAKE_ITEMS, stream, sink, list(waiting_keys), most, size, patience=None)


async def waiting_keys(database: Database, stream: str, sink: str) -> dict[str | None, float]:
    """The keys whose first item waits for another attempt, and for how many seconds."""
    rows = await database.fetch(WAITING_KEYS, stream, sink, patience=None)
    return {row["key"]: row["wait"] for row in rows}


async def settle_items(
    database: Database,
    sent: Sequence[int],
    refused: Sequence[tuple[int, int, float, str]],
    dead: Sequence[tuple[int, int, str]],
) -> None:
    """Store what became of items: those sent are deleted, others wait or become dead letters."""

    async def store(connection: Executor) -> None:
        if sent:
            await connection.execute(database.sql(DROP_ITEMS), list(sent))
        if refused:
            *rest, errors = map(list, zip(*refused, strict=True))
            await connection.execute(database.sql(REFUSE_ITEMS), *rest, [database.seal_text(each) for each in errors])
        if dead:
            *rest, errors = map(list, zip(*dead, strict=True))
            await connection.execute(database.sql(BURY_ITEMS), *rest, [database.seal_text(each) for each in errors])

    await database.run(store, patience=None)  # Each statement may be repeated.


async def count_items(database: Database, stream: str) -> dict[str, tuple[int, float]]:
    """How many items wait for each sink, and how old the oldest is."""
    rows = await database.fetch(COUNT_ITEMS, stream, patience=1.0)
    return {row["sink"]: (row["waiting"], row["oldest"]) for row in rows}


async def items_of_message(database: Database, stream: str, source: str, place: str) -> list[asyncpg.Record]:
    """What a message has handed over and its sinks do not have yet."""
    return await database.fetch(ITEMS_OF_MESSAGE, stream, source, place)
