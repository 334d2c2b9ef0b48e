"""What docs/sources.md takes for granted: readings of meters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


class Reading:
    id, at = "r1", datetime(2026, 1, 15, tzinfo=UTC)

    def json(self) -> bytes:
        return b'{"kwh": 3}'


async def fetch_readings(after: str | None) -> list[Reading]:
    return [] if after else [Reading()]


async def after(names: dict[str, Any]) -> None:
    pages = [page async for page in names["Meters"]().pages(None, None, datetime.now(UTC))]
    assert [page.token for page in pages] == ["r1"]
