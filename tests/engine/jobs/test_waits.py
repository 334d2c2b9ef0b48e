"""Waiting is woken by the database or by the server's stream; the safety poll, set to an hour here, is not needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.waiting import PATIENT
from tests.support.web import web_server
from tests.support.web_app import make_app
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.engine.jobs import waits
from tidemill.ops.jobs.jobs import Job, JobSelection, cancel_jobs
from tidemill.ops.operator.http_client import HttpClient
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Operator
from tidemill.ops.operator.remote import Remote
from tidemill.ops.waiting import wait_for_job
from tidemill.store.database import Database

HOUR = 3600.0


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[App]:
    app = make_app(database_url=database_url, **PATIENT)
    yield app
    await app.close()


async def ended_once_cancelled(at: Operator, shop: App, database: Database) -> Job:
    """A job that is cancelled while an operator waits for it."""
    ref = await shop.enqueue("count", delay="1h")
    looked = asyncio.Event()
    waiting = asyncio.create_task(wait_for_job(at, ref.id, each=lambda _: looked.set(), every=HOUR))
    await looked.wait()
    await Local(database, Caller("ann", "operator")).do(cancel_jobs, JobSelection(ids=[ref.id]))
    return await waiting


async def test_many_waits_of_an_application_are_woken(
    shop: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "SAFETY_POLL", HOUR)
    refs = [await shop.enqueue("count", delay="1h") for _ in range(20)]
    waiting = [asyncio.create_task(shop.wait(ref)) for ref in refs]
    with pytest.raises(TimeoutError):
        await shop.wait(refs[0], timeout="200ms")
    await shop.jobs.cancel(*refs[:10])
    assert [(await each).state for each in waiting[:10]] == ["cancelled"] * 10
    await shop.jobs.cancel(*refs[10:])
    assert [(await each).state for each in waiting[10:]] == ["cancelled"] * 10
    late = await shop.enqueue("count", delay="1h")
    last = asyncio.create_task(shop.wait(late))
    await shop.jobs.cancel(late)
    assert (await last).state == "cancelled"


async def test_a_wait_that_begins_while_the_listener_ends_is_woken(shop: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "SAFETY_POLL", HOUR)
    monkeypatch.setattr(waits, "LINGER", 0.05)
    for milliseconds in range(30):
        ref = await shop.enqueue("count", delay="1h")
        waiting = asyncio.create_task(shop.wait(ref, timeout="20s"))
        await asyncio.sleep(0)
        await shop.jobs.cancel(ref)
        assert (await waiting).state == "cancelled"
        await asyncio.sleep(0.045 + milliseconds / 2000)  # At one of these moments the connection is being closed.


async def test_a_wait_on_the_database_is_woken(shop: App, database: Database) -> None:
    assert (await ended_once_cancelled(Local(database, Caller("ann", "viewer")), shop, database)).state == "cancelled"


async def test_a_wait_through_a_server_is_woken(shop: App, database_url: str, database: Database) -> None:
    async with web_server(database_url) as web:
        client = HttpClient(web.url)
        assert (await ended_once_cancelled(Remote(client), shop, database)).state == "cancelled"
        client.close()
