"""A request with an idempotency key acts once, wherever its server is killed, and is never refused for good."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.support import value
from tests.support.waiting import eventually
from tests.support.web import web_server
from tidemill.store.database import Database

WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'tidemill server%'
"""
JOB = {"task": "send", "args": {"order": 7}}
KEY = {"Idempotency-Key": "order-7"}


async def test_a_key_whose_server_was_killed_at_any_statement_can_be_sent_again_and_acts_once(
    database_url: str, database: Database
) -> None:
    """The server stops at a lock: before it claims the key, before it acts, and before it stores the answer."""
    for round, table in enumerate(("idempotency_key", "job", "audit"), start=1):
        headers = {"Idempotency-Key": f"order-{round}"}
        async with (
            web_server(database_url) as server,
            server.client() as client,
            database.transaction() as connection,
        ):
            await connection.execute(database.sql(f"LOCK TABLE tidemill.{table} IN EXCLUSIVE MODE"))
            sent = asyncio.create_task(client.post("/jobs", json=JOB, headers=headers))
            await eventually(lambda: value(database, WAITING), what=f"the server waits for {table}")
            server.kill()
            with pytest.raises(httpx.HTTPError):
                await sent
        async with web_server(database_url) as server, server.client() as client:
            answers = [await client.post("/jobs", json=JOB, headers=headers) for _ in range(2)]
        assert [each.status_code for each in answers] == [201, 201], answers[0].text
        assert answers[0].json() == answers[1].json()
        assert answers[1].headers["idempotency-replayed"] == "true"
        assert await value(database, "SELECT count(*) FROM tidemill.job") == round


async def test_a_key_with_another_request_is_refused_and_requests_at_once_act_once(
    database_url: str, database: Database
) -> None:
    async with web_server(database_url) as server, server.client() as client:
        at_once = await asyncio.gather(*(client.post("/jobs", json=JOB, headers=KEY) for _ in range(8)))
        assert {each.status_code for each in at_once} == {201}
        assert len({each.json()["id"] for each in at_once}) == 1
        other = await client.post("/jobs", json={**JOB, "args": {"order": 8}}, headers=KEY)
        assert other.status_code == 422
        assert "another request" in other.json()["detail"]
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 1


async def test_a_refused_request_leaves_its_key_free(database_url: str) -> None:
    async with web_server(database_url) as server, server.client() as client:
        refused = await client.post("/jobs", json={"task": "no such task"}, headers=KEY)
        assert 400 <= refused.status_code < 500
        assert (await client.post("/jobs", json=JOB, headers=KEY)).status_code == 201


async def test_a_bulk_operation_is_repeated_with_its_answer(database_url: str, database: Database) -> None:
    async with web_server(database_url) as server, server.client() as client:
        for _ in range(3):
            await client.post("/jobs", json={**JOB, "delay": "1h"})
        chosen = {"filter": {"task": "send"}}
        first = await client.post("/jobs/cancel", json=chosen, headers=KEY)
        again = await client.post("/jobs/cancel", json=chosen, headers=KEY)
        assert first.status_code == 200, first.text
        assert again.json() == first.json()
        assert again.headers["idempotency-replayed"] == "true"
