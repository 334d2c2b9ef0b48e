"""Names with a slash are addressed over HTTP like all others: `workflow/hook` is what a file's schedule is called."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.web import WebServer, web_server
from tests.support.web_app import make_app
from tidemill.store.database import Database


@pytest.fixture
async def web(database_url: str) -> AsyncIterator[WebServer]:
    async with web_server(database_url) as running:
        yield running


@pytest.fixture
async def api(web: WebServer) -> AsyncIterator[httpx.AsyncClient]:
    async with web.client() as client:
        yield client


async def test_a_schedule_with_a_slash_in_its_name_is_made_explained_paused_run_and_deleted(
    api: httpx.AsyncClient,
) -> None:
    of = "/schedules/workflow%2Fhook%20%C3%A4"
    made = await api.put(of, json={"start": "send", "args": {"order": 7}, "every": "1h"})
    assert (made.status_code, made.json()["name"]) == (200, "workflow/hook ä"), made.text
    assert (await api.post(f"{of}/pause", json={})).json() == {"name": "workflow/hook ä", "paused": True}
    assert (await api.get(f"{of}/explain")).json()["schedule"]["paused"] is True
    assert (await api.post(f"{of}/run", json={})).status_code == 201
    assert (await api.post("/schedules/workflow%2fhook/run", json={})).status_code == 404
    assert (await api.delete(of)).status_code == 204
    assert (await api.get("/schedules")).json()["items"] == []


async def test_a_queue_and_a_topic_with_a_slash_in_their_names_are_found(
    api: httpx.AsyncClient, database: Database, database_url: str
) -> None:
    app = make_app(database_url=database_url)
    await app.enqueue("send", order=1, queue="mail/eu")
    await app.close()
    paused = await api.post("/queues/mail%2Feu/pause", json={})
    assert (paused.status_code, "mail/eu" in paused.text) == (200, True), paused.text
    sent = await api.post("/topics/orders%2Feu/messages", json={"messages": ["1"]})
    assert sent.status_code < 300, sent.text
    (row,) = await database.fetch("SELECT topic FROM tidemill.event_log")
    assert row["topic"] == "orders/eu"


async def test_an_encoded_slash_does_not_lead_to_another_route(api: httpx.AsyncClient) -> None:
    assert (await api.get("/schedules%2Fx%2Fexplain")).status_code == 404
    unknown = await api.get("/schedules/x%2Fexplain/explain")
    assert (unknown.status_code, "'x/explain'" in unknown.text) == (404, True), unknown.text
