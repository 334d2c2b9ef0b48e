"""A request with an idempotency key acts once, wherever its server is killed, and is never refused for good."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest

from tests.support import value
from tests.support.waiting import eventually
from tests.support.web import WebServer, web_server
from tests.support.wire import Wire
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


@pytest.mark.long
async def test_a_key_whose_server_was_killed_after_any_message_to_the_database_acts_once(
    database_url: str, database: Database
) -> None:
    """One server is killed after its first message, another after its second, until one has answered before that."""
    async with Wire(database_url).open() as wire, web_server(database_url) as other, other.client() as again:
        for count in range(1, 60):
            headers = {"Idempotency-Key": f"order-{count}"}
            async with web_server(wire.url) as server, server.client() as client:
                heard = 0

                def kill(server: WebServer = server, last: int = count) -> None:
                    nonlocal heard
                    heard += 1
                    if heard == last:
                        server.kill()

                wire.heard = kill
                answered = None
                with contextlib.suppress(httpx.HTTPError):
                    answered = await client.post("/jobs", json=JOB, headers=headers)
                wire.heard = None
            repeated = await again.post("/jobs", json=JOB, headers=headers)
            assert repeated.status_code == 201, (count, repeated.text)
            assert await value(database, "SELECT count(*) FROM tidemill.job") == count
            if answered is not None:
                assert repeated.json() == answered.json()
                assert count > 5, "a request has at least these messages: it begins, claims, acts, notes and commits"
                return
    raise AssertionError("no server answered")


PAGE_APP = """
import asyncio
from pathlib import Path
from litestar import post
from tidemill import App
from tidemill.core.web.page import Page
from tidemill.server.server_state import TheServerState

app = App("test")

@post("/act", opt={{"role": "operator"}})
async def act(server_state: TheServerState) -> dict:
    await server_state.database.fetch("INSERT INTO public.acts DEFAULT VALUES")
    acts = (await server_state.database.fetchrow("SELECT count(*) AS n FROM public.acts"))["n"]
    while acts == 1:
        await asyncio.sleep(60)
    return {{"acts": acts}}

app.add_page(Page("acts", "Acts", folder=Path({folder!r}), handlers=[act]))
"""


async def test_a_handler_of_a_page_whose_server_was_killed_runs_again_once_its_lease_has_lapsed(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    await database.fetch("CREATE TABLE public.acts (at timestamptz DEFAULT clock_timestamp())")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("acts")
    app = tmp_path / "acts_app.py"
    app.write_text(PAGE_APP.format(folder=str(tmp_path / "page")))
    headers = {"Idempotency-Key": "act-1"}
    acts = "SELECT count(*) FROM public.acts"
    async with (
        web_server(database_url, app=app) as server,
        httpx.AsyncClient(base_url=server.url, timeout=150) as client,
    ):
        sent = asyncio.create_task(client.post("/pages/acts/api/act", headers=headers))
        await eventually(lambda: value(database, acts), what="the handler has acted")
        meanwhile = await client.post("/pages/acts/api/act", headers=headers)
        assert (meanwhile.status_code, "is still running" in meanwhile.text) == (409, True)
        server.kill()
        with pytest.raises(httpx.HTTPError):
            await sent
    await database.fetch("UPDATE tidemill.idempotency_key SET at = now() + interval '1 hour'")
    async with (
        web_server(database_url, app=app) as server,
        httpx.AsyncClient(base_url=server.url, timeout=150) as client,
    ):
        assert (await client.post("/pages/acts/api/act", headers=headers)).status_code == 409
        await database.fetch("UPDATE tidemill.idempotency_key SET at = now() - interval '1 minute'")
        first = await client.post("/pages/acts/api/act", headers=headers)
        assert (first.status_code, first.json()) == (201, {"acts": 2})
        again = await client.post("/pages/acts/api/act", headers=headers)
        assert (again.json(), again.headers["idempotency-replayed"]) == ({"acts": 2}, "true")
    assert await value(database, acts) == 2


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
