"""Roles that run in this process while a block lasts, each with a database connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.support.waiting import PATIENCE
from tidemill import App
from tidemill.engine.roles.maintenance import Maintenance, maintenance_role
from tidemill.engine.roles.role import Role
from tidemill.engine.roles.scheduler import Scheduler
from tidemill.engine.worker.worker import Worker, worker_role
from tidemill.ops.runs.cancel import cancel_run_within

SWEEP = 0.1


@asynccontextmanager
async def running_worker(
    app: App, queues: Iterable[str] | None = None, max_concurrency: int | None = None, **settings: Any
) -> AsyncIterator[Role[Worker]]:
    """A worker that is ready, and is stopped as SIGTERM would stop it; `settings` are `WorkerSettings`."""
    wanted = tuple(queues if queues is not None else app.declarations.tasks.queues())
    database = app.database(label="test worker")
    work = Worker(
        database,
        app.declarations.tasks,
        msgspec.structs.replace(app.settings.worker(wanted, max_concurrency), **settings),
        limits=app.declarations.limits.values(),
        models=app.declarations.models.values(),
        app_path=app.declarations.source,
    )
    worker = worker_role(work, database)
    worker.lifespan = app.declarations.lifespan
    try:
        async with _living(worker):
            yield worker
    finally:
        await database.close()


@asynccontextmanager
async def running_maintenance(app: App, **settings: Any) -> AsyncIterator[Role[Maintenance]]:
    """Maintenance that walks its rounds often; `settings` are `MaintenanceSettings`.

    It takes the database for one that has been there for long, unless told by `lease` how long to wait after a start.
    """
    database = app.database(label="test maintenance")
    wanted = msgspec.structs.replace(
        app.settings.maintenance(), **{"sweep_seconds": SWEEP, "lease_seconds": 0.0, **settings}
    )
    maintenance = maintenance_role(database, wanted)
    try:
        async with _living(maintenance):
            yield maintenance
    finally:
        await database.close()


@asynccontextmanager
async def running_scheduler(app: App) -> AsyncIterator[Role[Scheduler]]:
    """A scheduler of the application's schedules."""
    database = app.database(label="test scheduler")
    scheduler = Role(Scheduler(database, app.declarations.stored_schedules(), cancel_run=cancel_run_within), database)
    try:
        async with _living(scheduler):
            yield scheduler
    finally:
        await database.close()


@asynccontextmanager
async def _living(role: Role[Any]) -> AsyncIterator[None]:
    """Run a role from when it is ready until the block ends; what it raises, the block raises."""
    task = asyncio.create_task(role.run())
    waiting = asyncio.create_task(role.wait_ready())
    try:
        await asyncio.wait([task, waiting], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        assert waiting.done(), f"not ready within {PATIENCE:g} s"
        yield
        role.stop()
        await task
    finally:
        for each in (waiting, task):
            each.cancel()
        await asyncio.gather(waiting, task, return_exceptions=True)
