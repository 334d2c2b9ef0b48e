"""Slots of the concurrency keys of builds: advisory locks of the connection that holds them."""

from __future__ import annotations

import random

import asyncpg

from tidemill.store.database import Connection

#: Takes any free slot of a key; returns its number, or nothing. In FROM, all numbers would be stored first.
TAKE_ANY = """
SELECT number FROM (SELECT generate_series(1, $2::int) AS number) AS slot
WHERE pg_try_advisory_lock(hashtextextended($1 || number::text, 7)) LIMIT 1
"""
#: Waits for one slot of a key.
WAIT_FOR = "SELECT pg_advisory_lock(hashtextextended($1 || $2::int::text, 7))"


async def take_slot(connection: Connection, key: str, most: int) -> None:
    """Take a slot of a key until this connection closes; waits until one is free."""
    while await connection.fetchval(TAKE_ANY, f"{key}:", most) is None:
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL lock_timeout = '2s'")  # After that, try another slot.
                await connection.execute(WAIT_FOR, f"{key}:", random.randint(1, most))
            return
        except asyncpg.LockNotAvailableError:
            continue
