"""The journal of a run is read as of one moment, while its last owner may still write."""

from __future__ import annotations

from typing import Any

from tidemill.store.database import Database
from tidemill.store.runs.versions import load_journals


async def test_a_snapshot_that_is_stored_meanwhile_hides_no_tick(database: Database) -> None:
    (row,) = await database.fetch(
        "INSERT INTO tidemill.run (workflow, kind, version, input, seq) VALUES ('W', 'W', 'v', '{}', 2) RETURNING id"
    )
    await database.fetch("INSERT INTO tidemill.tick (run_id, seq, data) VALUES ($1, 1, '1'), ($1, 2, '2')", row["id"])

    async def fetch(statement: str, *arguments: Any) -> list[Any]:
        found = await database.fetch(statement, *arguments)
        await database.fetch(
            "INSERT INTO tidemill.snapshot (run_id, seq, data) VALUES ($1, 2, '{}') ON CONFLICT DO NOTHING", row["id"]
        )
        return found

    assert await load_journals(fetch, [row["id"]]) == ({}, {row["id"]: [b"1", b"2"]})
    assert await load_journals(fetch, [row["id"]]) == ({row["id"]: b"{}"}, {})
