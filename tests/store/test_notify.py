"""All listeners of a process hear notifications over one connection, whichever comes and goes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.support import eventually
from tidemill import App
from tidemill.engine.jobs.enqueue_options import EnqueueOptions
from tidemill.store.database import Database
from tidemill.store.notify import ANYTHING, Listener, Notifier


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def listening(database: Database, heard: list[str]) -> tuple[Listener, asyncio.Task[None]]:
    listener = Listener(database)
    listener.on("news", heard.append)
    return listener, asyncio.create_task(listener.run())


async def send(database: Database, text: str) -> None:
    await database.fetch("SELECT pg_notify($1, $2)", database.channel("news"), text)


@pytest.mark.parametrize("turns", range(6))
async def test_a_listener_that_comes_while_the_last_one_leaves_hears_everything(database: Database, turns: int) -> None:
    first, running = listening(database, [])
    await first.wait_ready()
    running.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    heard: list[str] = []
    second, other = listening(database, heard)
    await eventually(lambda: second.is_connected or other.done())
    await send(database, "a")
    await eventually(lambda: "a" in heard or other.done())
    assert not other.done()
    assert heard == [ANYTHING, "a"]
    await end(running, other)


async def test_listeners_share_a_connection_and_all_hear_after_it_was_lost(database: Database) -> None:
    heard: list[list[str]] = [[], [], []]
    listeners, tasks = zip(*(listening(database, each) for each in heard), strict=True)
    for listener in listeners:
        await listener.wait_ready()
    await send(database, "a")
    await eventually(lambda: all(each == [ANYTHING, "a"] for each in heard))
    count = await database.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    )
    assert len(count) == 1
    await eventually(lambda: all(each.count(ANYTHING) == 2 for each in heard))
    await send(database, "b")
    await eventually(lambda: all(each[-1] == "b" for each in heard))
    await end(*tasks)


@pytest.mark.parametrize("pauses", [(0, 0, 0), (0, 0.006), (0, 0.001, 0.002, 0.003), (0.006, 0, 0.0055, 0)])
async def test_workers_hear_of_every_job_however_close_to_the_one_before_it_is_stored(
    app: App, database: Database, pauses: tuple[float, ...]
) -> None:
    @app.task(queue="news")
    async def work() -> None: ...

    heard: list[str] = []
    listener = Listener(database)
    listener.on("jobs", heard.append)
    running = asyncio.create_task(listener.run())
    await listener.wait_ready()
    for pause in pauses:
        await asyncio.sleep(pause)
        heard.clear()
        await app.enqueue(work)
    await eventually(lambda: "news" in heard)
    await end(running)


async def test_a_statement_that_notifies_spares_the_pending_notification_of_its_queue(database: Database) -> None:
    heard: list[str] = []
    listener = Listener(database)
    listener.on("jobs", heard.append)
    running = asyncio.create_task(listener.run())
    await listener.wait_ready()
    heard.clear()  # It was told of anything that it may have missed.
    notifier = Notifier(database)
    notifier.notify_soon({"covered", "pending"})
    notifier.notified_inside({"covered"})
    await eventually(lambda: heard == ["pending"])
    notifier.notify_soon({"at the end"})
    await notifier.close()
    await eventually(lambda: heard == ["pending", "at the end"])
    await end(running)


async def test_a_job_that_notifies_nothing_spares_no_pending_notification(app: App, database: Database) -> None:
    @app.task(queue="news")
    async def work() -> None: ...

    heard: list[str] = []
    listener = Listener(database)
    listener.on("jobs", heard.append)
    running = asyncio.create_task(listener.run())
    await listener.wait_ready()
    notifier = (await app.jobs.opened()).enqueuer.notifier
    notifier.quiet = 0.3
    await app.enqueue(work.call(), unique_key="taken", delay="1h")
    notify_nothing: list[EnqueueOptions] = [
        {"delay": "1h"},
        {"unique_key": "taken"},
        {"unique_key": "taken", "debounce": "1h"},
    ]
    for options in notify_nothing:
        await app.enqueue(work)
        await eventually(lambda: "news" in heard)
        heard.clear()
        await app.enqueue(work)  # Its notification is pending.
        notifier.quiet = -1.0
        await app.enqueue(work.call(), **options)
        await eventually(lambda: "news" in heard)
        heard.clear()
        notifier.quiet = 0.3
    await end(running)
