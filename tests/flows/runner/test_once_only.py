"""What is asked for once happens once, also when the answer of the database is lost on its way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.durable import Ask, Go, running_run_worker
from tests.support.wire import Wire
from tidemill import App
from tidemill.store.database import Database


@pytest.fixture
async def wire(database_url: str) -> AsyncIterator[Wire]:
    async with Wire(database_url).open() as wire:
        yield wire


@pytest.fixture
async def far(wire: Wire, database: Database) -> AsyncIterator[App]:
    """An application that reaches the database over the wire, and drives no runs itself."""
    app = App("test", database_url=wire.url)
    app.workflow(Ask, timeout=None)
    yield app
    await app.close()


async def test_a_start_whose_answer_is_lost_is_one_run(far: App, wire: Wire, database: Database) -> None:
    await far.start(Ask)
    wire.cut_after("the marked one")
    handle = await far.start(Ask, tag="the marked one")
    assert wire.cuts == 1
    assert handle.created
    assert await value(database, "SELECT count(*) FROM tidemill.run WHERE input::text LIKE '%the marked one%'") == 1


async def test_a_start_with_a_key_whose_answer_is_lost_is_one_run(far: App, wire: Wire, database: Database) -> None:
    wire.cut_after("the marked one")
    handle = await far.start(Ask, tag="the marked one", unique_key="k")
    assert wire.cuts == 1
    assert (await far.start(Ask, tag="another", unique_key="k")).id == handle.id
    assert await value(database, "SELECT count(*) FROM tidemill.run") == 1


@pytest.mark.parametrize("text", ["COMMIT", "the marked one"])
async def test_an_event_whose_sending_has_no_answer_arrives_once(
    far: App, wire: Wire, database: Database, text: str
) -> None:
    handle = await far.start(Ask)
    wire.cut_after(text)
    await handle.send_event(Go(word="the marked one"))
    assert wire.cuts == 1
    assert await value(database, "SELECT count(*) FROM tidemill.inbox WHERE run_id = $1", handle.id) == 1


async def test_an_event_that_was_taken_before_its_sender_could_ask_again_is_not_sent_twice(
    far: App, app: App, wire: Wire, database: Database
) -> None:
    app.workflow(Ask, timeout=None)
    async with running_run_worker(app):
        handle = await far.start(Ask)
        await eventually(lambda: has_asked(database, handle.id))
        wire.cut_after("COMMIT")
        await handle.send_event(Go(word="first"))
        assert wire.cuts == 1
        assert await handle.result(timeout=120) is not None
    sent = await database.fetch(
        "SELECT FROM tidemill.tick WHERE run_id = $1 AND data ->> 'kind' = 'received'", handle.id
    )
    assert len(sent) == 1


async def has_asked(database: Database, run: int) -> Any:
    return await database.fetch("SELECT FROM tidemill.tick WHERE run_id = $1 AND data::text LIKE '%asked%'", run)
