"""Long lists other than jobs and runs: page by page, everything once, in its order, also while more comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec
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
    # Three at each moment, of the same run or of others.
    """
    INSERT INTO tidemill.run (workflow, kind, version, input, state)
    SELECT 'order', 'dag', 'v', '{}', 'running' FROM generate_series(1, 10)
    """,
    """
    INSERT INTO tidemill.run_input (run_id, node, prompt, asked_at)
    SELECT r.id, node, 'Really?', now() + make_interval(mins => (n / 3)::int)
    FROM (SELECT id, node, row_number() OVER (ORDER BY node, id) AS n
          FROM tidemill.run CROSS JOIN unnest(ARRAY['agree', 'a/b', 'é']) AS node) AS r
    """,
    """
    INSERT INTO tidemill.state_build (at, pipeline, stage, entity, outcome, code)
    SELECT now() - make_interval(hours => n / 8), 'notes', CASE WHEN n % 3 = 0 THEN 'shout' ELSE 'old' END,
           'e' || n % 2, 'built', n::text
    FROM generate_series(1, 36) AS n
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


#: Of each list, how many it has and what it is in order of.
LISTS: tuple[tuple[str, dict[str, Any], int, Callable[[Any], Any]], ...] = (
    ("/dead-letters", {"stream": "posts"}, 20, lambda each: -each["id"]),
    ("/alerts", {"monitor": "class"}, 30, lambda each: (each["opened_at"], each["id"])),
    ("/monitors/class/entities", {}, 30, lambda each: each["entity"]),
    ("/monitors/class/roster", {}, 30, lambda each: each["entity"]),
    ("/inputs", {}, 30, lambda each: (each["asked_at"], each["run_id"])),
    ("/pipelines/notes/builds", {}, 36, lambda each: each["at"]),
    ("/pipelines/notes/builds", {"stage": "shout", "entity": "e1"}, 6, lambda each: each["at"]),
)


async def test_a_long_list_comes_in_pages_and_nothing_twice(api: httpx.AsyncClient) -> None:
    for address, params, total, order in LISTS:
        most = min(7, total // 2)
        found = await pages(api, address, limit=most, **params)
        assert {len(page) for page in found[:-1]} == {most}, address
        rows = [each for page in found for each in page]
        assert len({msgspec.json.encode(each) for each in rows}) == len(rows) == total, address
        assert rows == sorted(rows, key=order, reverse=address.endswith(("/alerts", "/builds"))), address
        assert rows == [each for page in await pages(api, address, limit=200, **params) for each in page]
        for wrong in ("nonsense", "YXQ6WzEsMiwzXQ"):  # the second is `at:[1,2,3]`
            refused = await api.get(address, params={**params, "cursor": wrong})
            assert (refused.status_code, "not a cursor" in refused.text) == (422, True), (address, refused.text)


OPEN = """
INSERT INTO tidemill.alert (monitor, trigger, entity, kind, severity, started_at, opened_at, tick)
SELECT 'class', $1, 'e' || n, 'sustained', 'critical', now(), now(), 2 FROM generate_series($2::int, $3) AS n
"""


async def test_an_acknowledgement_reaches_what_its_preview_said_and_nothing_else(
    api: httpx.AsyncClient, database: Database
) -> None:
    await database.fetch(OPEN, "lost", 1, 1200)
    await database.fetch(OPEN, "other", 1, 3)
    meant = {"monitor": "class", "trigger": "lost", "severity": "critical"}
    seen = (await api.post("/alerts/ack/preview", json=meant)).json()
    assert (seen["count"], seen["more"], len(seen["sample"])) == (1200, False, 10)
    await database.fetch(OPEN, "lost", 1201, 1201)

    done = await api.post("/alerts/ack", json={"filter": {**meant, "up_to": seen["up_to"]}, "note": "all of them"})
    assert (done.json()["count"], len(done.json()["ids"])) == (1200, 1000)
    left = "SELECT trigger, count(*) AS n FROM tidemill.alert WHERE acked_at IS NULL AND tick = 2 GROUP BY 1 ORDER BY 1"
    assert [(row["trigger"], row["n"]) for row in await database.fetch(left)] == [("lost", 1), ("other", 3)]
    noted = "SELECT count(*) AS n, sum(json_array_length(after->'ids')) AS ids FROM tidemill.audit WHERE who = 'local'"
    assert (await database.fetch(noted))[0]["ids"] == 1200

    rest = (await api.post("/alerts/ack", json={"filter": {"monitor": "class"}})).json()
    assert rest["count"] == 4, "those that were resolved before anybody looked need nobody"
    assert (await api.post("/alerts/ack", json={"filter": {"monitor": "class"}})).json() == {"count": 0, "ids": []}
    for wrong in ({}, {"ids": [1], "filter": {}}, {"filter": {"colour": "red"}}, {"ids": []}):
        assert (await api.post("/alerts/ack", json=wrong)).status_code == 422, wrong


async def test_dead_letters_are_chosen_by_everything_that_is_known_of_them(
    api: httpx.AsyncClient, database: Database
) -> None:
    await database.fetch(
        "UPDATE tidemill.dead_letter SET plans = '{Spam,Rank}', error = 'Spam: too long', buried_at = '2026-01-02Z',"
        " payload = convert_to(repeat('é', 3000), 'UTF8'), key = 'k', headers = '{\"a\": \"b\"}' WHERE id IN (5, 6)"
    )
    for params, ids in (
        ({"plan": "Rank"}, [6, 5]),
        ({"error": "TOO LONG", "stream": "posts"}, [5]),
        ({"id": [5, 7, 99]}, [7, 5]),
        ({"since": "2026-01-03T00:00:00+00:00", "id": [5, 7]}, [7]),
    ):
        found = (await api.get("/dead-letters", params=params)).json()
        assert ([each["id"] for each in found["items"]], found["total"]) == (ids, len(ids)), params
    listed = (await api.get("/dead-letters", params={"id": 5})).json()["items"][0]
    whole = (await api.get("/dead-letters/5")).json()
    assert (listed["truncated"], len(listed["payload"]), whole["payload"]) == (True, 2000, "é" * 3000)
    assert (whole["truncated"], whole["key"], whole["headers"]) == (False, "k", {"a": "b"})
    assert (await api.get("/dead-letters/99")).status_code == 404
    assert (await api.get("/dead-letters", params={"since": "2026-01-03T00:00:00"})).status_code == 422
    some = {"stream": None, "error": "too long", "since": "2026-01-01T00:00:00Z", "plan": "Spam"}
    assert (await api.post("/dead-letters/replay", json=some)).json() == {"count": 2}
    assert (await api.post("/dead-letters/replay", json={})).status_code == 422, "nobody means all by saying nothing"
    assert (await api.post("/dead-letters/replay", json={"stream": None})).json() == {"count": 28}
