"""Processes that have nothing to do leave the database alone: wake-ups instead of polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.shared.counting import CountingProxy
from tests.support.durable import Ask, Go
from tests.support.waiting import eventually
from tidemill import App
from tidemill.engine.roles.role import Runnable, run_roles
from tidemill.roles import jobs_role, maintenance_roles, runs_role

SECONDS = 10.0


@asynccontextmanager
async def counted(url: str, folder: Path) -> AsyncIterator[tuple[CountingProxy, App]]:
    """An application whose statements are counted on their way to the server, with the settings of a deployment."""
    proxy = CountingProxy(url, folder)
    async with proxy.listening():
        app = App("test", database_url=proxy.dsn)

        @app.task
        async def nothing() -> None: ...

        yield proxy, app


async def settled(proxy: CountingProxy) -> int:
    """The number of statements so far, when nearly none has been made for two seconds."""

    async def is_quiet() -> bool:
        before = proxy.queries
        await asyncio.sleep(2.0)
        return proxy.queries - before <= 4

    await eventually(is_quiet)
    return proxy.queries


async def statements_a_minute(proxy: CountingProxy, *roles: Runnable) -> float:
    async with run_roles(*roles):
        before = await settled(proxy)
        await asyncio.sleep(SECONDS)
        return (proxy.queries - before) * 60 / SECONDS


async def test_an_idle_worker_makes_fewer_than_60_statements_a_minute(database_url: str, tmp_path: Path) -> None:
    async with counted(database_url, tmp_path) as (proxy, app):
        made = await statements_a_minute(proxy, jobs_role(app.declarations), runs_role(app.declarations))
        assert 0 < made < 60, "its leases are renewed, and hardly anything else happens"


async def test_idle_maintenance_makes_fewer_than_120_statements_a_minute(database_url: str, tmp_path: Path) -> None:
    async with counted(database_url, tmp_path) as (proxy, app), app.database() as database:
        made = await statements_a_minute(proxy, maintenance_roles(database, app.settings, app.declarations))
        assert 0 < made < 120


async def test_a_client_that_waits_makes_no_statements_while_nothing_happens(database_url: str, tmp_path: Path) -> None:
    async with counted(database_url, tmp_path) as (proxy, app), app:
        job: Any = await app.enqueue("nothing", delay="1h")
        waiting = asyncio.create_task(app.wait(job))
        before = await settled(proxy)
        await asyncio.sleep(3.0)  # A safety poll comes every 5 s.
        assert proxy.queries - before <= 1
        await app.jobs.cancel(job)
        assert (await waiting).state == "cancelled"


async def test_a_handle_of_a_run_makes_no_statements_while_nothing_happens(database_url: str, tmp_path: Path) -> None:
    async with counted(database_url, tmp_path) as (proxy, app), app:
        app.workflow(Ask, timeout=None)
        run = await app.start(Ask)
        waiting = asyncio.create_task(run.result())
        before = await settled(proxy)
        await asyncio.sleep(2.0)  # A safety poll comes every 5 s.
        assert proxy.queries - before <= 1
        async with run_roles(runs_role(app.declarations)):
            await run.send_event(Go(word="on"))
            assert await waiting == "on"
