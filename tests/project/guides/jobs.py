"""What docs/jobs.md takes for granted: a connection of the program's own, and a table."""

from __future__ import annotations

from typing import Any

import asyncpg

from tests.support.guide import database_url

chunks = ["a", "b"]
pages = [[1, 2], [3]]


async def a_connection(names: dict[str, Any]) -> None:
    names["connection"] = connection = await asyncpg.connect(database_url())
    await connection.execute("CREATE TABLE IF NOT EXISTS orders (id integer)")


async def a_secret(names: dict[str, Any]) -> None:
    names["app"].declarations.configure(webhook_secret="s")


BEFORE = {"On your own transaction": a_connection, "Webhooks": a_secret}
