"""PostgreSQL's own array types are known without asking, and are what the server says they are."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tidemill.store.connection.known_types import ARRAY_TYPES, KnownTypesConnection
from tidemill.store.database import Database

VALUES: dict[str, Any] = {
    "bool": True,
    "bytea": b"\x00\x01",
    "int8": 2**40,
    "int2": 3,
    "int4": 70_000,
    "json": b'{"a": 1}',
    "float4": 0.5,
    "float8": 0.1,
    "varchar": "tide",
    "date": date(2026, 11, 16),
    "timestamptz": datetime(2026, 11, 16, 12, 30, tzinfo=UTC),
    "numeric": Decimal("1.20"),
    "uuid": UUID(int=7),
    "jsonb": '{"a": 1}',
    "xid8": 12,
}


async def test_the_server_says_the_same_of_every_known_type(database_url: str) -> None:
    connection: Any = await asyncpg.connect(database_url)
    rows, _ = await connection._introspect_types(list(ARRAY_TYPES), 60)
    await connection.close()
    told = {row["oid"]: dict(row) for row in rows if row["elemtype"]}
    for oid, known in ARRAY_TYPES.items():
        assert told[oid].items() >= {name: value for name, value in known.items() if name != "elemtype_name"}.items()


async def test_arrays_are_sent_and_read_without_a_question(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: Any) -> None:
        raise AssertionError("the server was asked for a type")

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", ask)
    assert set(VALUES) == {row["elemtype_name"] for row in ARRAY_TYPES.values()}
    async with database.acquire() as connection:
        for name, value in VALUES.items():
            assert await connection.fetchval(f"SELECT $1::{name}[]", [value, None]) == [value, None], name


async def test_other_types_are_asked_for(database: Database) -> None:
    async with database.acquire() as connection:
        await connection.execute("CREATE TYPE tide AS ENUM ('low', 'high')")
        assert await connection.fetchval("SELECT ARRAY['low', 'high']::tide[]") == ["low", "high"]
    connection = await asyncpg.connect(database.dsn, connection_class=KnownTypesConnection)
    assert await connection.fetchval("SELECT ARRAY[$1::tide] || $2::tide[]", "low", ["high"]) == ["low", "high"]
    await connection.close()
