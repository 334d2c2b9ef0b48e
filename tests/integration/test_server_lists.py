"""Long lists other than jobs and runs: page by page, everything once, in its order, also while more comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.web import web_server
from tidemill.store.database import Database

FILL = (
    """
    INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, error, payload)
    SELECT CASE WHEN n % 3 = 0 THEN 'other' ELSE 'posts' END, 'a', n::text, 'failed', 1, now(), 'x', ''
    FROM generate_series(1, 30) AS n
    """,
    # Opened in another order than they were noted, some at the same moment.
    """
    INSERT INTO tidemill.alert (monitor, trigger, entity, kind, severity, started_at, opened_at, tick, resolved_at)
    SELECT 'class', 'stuck', 'e' || n, 'sustained', 'warning', now(), now() - make_interval(hours => n % 7), 1, now()
    FROM generate_series(1, 30) AS n
    """,
    "INSERT INTO tidemill.monitor (name, version) VALUES ('class', 'v')",
    """
    INSERT INTO tidemill.monitor_entity (monitor, entity, shard)
    SELECT 'class', 'Zoë ' || n, 0 FROM generate_series(1, 30) AS n
    """,
)


@pytest.fixture
async def api(database: Database, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    for statement in FILL:
        await database.fetch(statement)
    async with web_server(database_url) as web, web.client() as client:
        yield client


async def pages(api: httpx.AsyncClient, address: str, **params: Any) -> list[list[dict[str, Any]]]:
    found, cursor = [], None
    while True:
        response = await api.get(address, params={**params, **({"cursor": cursor} if cursor else {})})
        assert response.status_code == 200, response.text
        page = response.json()
        found.append(page["items"])
        cursor = page["next"]
        if cursor is None:
            return found


@pytest.mark.parametrize(
    ("address", "params", "total", "order"),
    [
        ("/dead-letters", {"stream": "posts"}, 20, lambda each: -each["id"]),
        ("/alerts", {"monitor": "class"}, 30, lambda each: (each["opened_at"], each["id"])),
        ("/monitors/class/entities", {}, 30, lambda each: each["entity"]),
    ],
    ids=["dead letters", "alerts", "entities"],
)
async def test_a_long_list_comes_in_pages_and_nothing_twice(
    api: httpx.AsyncClient, address: str, params: dict[str, Any], total: int, order: Any
) -> None:
    found = await pages(api, address, limit=7, **params)
    assert {len(page) for page in found[:-1]} == {7}
    rows = [each for page in found for each in page]
    assert len(rows) == total
    assert rows == sorted(rows, key=order, reverse=address == "/alerts")
    assert rows == [each for page in await pages(api, address, limit=200, **params) for each in page]
    refused = await api.get(address, params={**params, "cursor": "nonsense"})
    assert (refused.status_code, "not a cursor" in refused.text) == (422, True)
