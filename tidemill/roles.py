"""The roles of an application, made from what it declares: jobs, runs, maintenance with schedules, monitors.

Each loads what it runs when it is made: every process loads this module, and most play one role.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from tidemill.declarations import DECLARERS, Declarations
from tidemill.engine.application.load_app import refuse_while_loading
from tidemill.engine.application.workflow_access import granting_access
from tidemill.engine.models.spec import gpu_max_concurrency, require_model
from tidemill.engine.roles.role import Role, RoleGroup, Runnable, run_roles
from tidemill.engine.roles.supervisor import ChildSpec
from tidemill.engine.settings import Settings
from tidemill.store.database import Database
from tidemill.store.migrate import Chain

if TYPE_CHECKING:
    from tidemill.engine.runs.run_worker import RunWorker
    from tidemill.engine.worker.isolation import ClusterProcesses
    from tidemill.engine.worker.worker import Worker
    from tidemill.monitors.runner.runner import MonitorRunner
    from tidemill.streams.runner.dispatcher import ServeStream


def jobs_role(
    declared: Declarations,
    queues: Iterable[str] | None = None,
    *,
    max_concurrency: int | None = None,
    database: Database | None = None,
    cluster: ClusterProcesses | None = None,
    quarantine: ChildSpec | None = None,
    is_quarantine: bool = False,
) -> Role[Worker]:
    """A worker for these queues, or for all that the tasks name.

    Its jobs run in the `cluster`, if there is one; `quarantine` is its process for suspects.
    """
    from tidemill.engine.worker.worker import Worker, worker_role

    wanted = tuple(dict.fromkeys(queues if queues is not None else declared.served_queues()))
    for task in declared.tasks.values():
        require_model(task.options.required_model, declared.models, where=f"task {task.name}: ")
    if max_concurrency is None and cluster is not None:
        max_concurrency = cluster.capacity()
    if max_concurrency is None:
        served = [task.options for task in declared.tasks.values() if task.options.queue in wanted]
        max_concurrency = gpu_max_concurrency(declared.models, [options.required_model for options in served])
    declared.hash_stages()
    reached = database or declared.database(label=f"tidemill worker {declared.name}")
    with granting_access(declared.settings, reached):  # Its jobs run in the context that it is made in.
        worker = Worker(
            reached,
            declared.tasks,
            declared.settings.worker(wanted, max_concurrency),
            limits=declared.limits.values(),
            templates=declared.templates,
            models=declared.models.values(),
            invoke_context=declared.hooks.invoke_context,
            app_path=declared.source,
            cluster=cluster,
            quarantine=quarantine,
            is_quarantine=is_quarantine,
        )
    role = worker_role(worker, reached)
    role.lifespan = declared.lifespan
    return role


def runs_role(
    declared: Declarations,
    *,
    database: Database | None = None,
    quarantine: ChildSpec | None = None,
    is_quarantine: bool = False,
) -> Role[RunWorker]:
    """A worker for the durable runs of the workflows, and for runs of dags."""
    from tidemill.engine.runs.run_store import PostgresRunStore
    from tidemill.engine.runs.run_worker import RunWorker, run_worker_role

    reached = database or declared.database(label=f"tidemill run worker {declared.name}")
    store, settings = PostgresRunStore(reached), declared.settings
    role = run_worker_role(
        RunWorker(store, declared.runs.kinds, is_quarantine=is_quarantine, max_losses=settings.max_losses),
        store,
        reached,
        lease_seconds=settings.lease_seconds,
        heartbeat_seconds=settings.heartbeat_seconds,
        quarantine=quarantine,
        grace_seconds=settings.grace_seconds,
        stall_limit=settings.stall_limit,
    )
    role.lifespan = declared.lifespan
    return role


def maintenance_roles(database: Database, settings: Settings, declared: Declarations | None) -> RoleGroup:
    """Migrations, sweeps and schedules, in one process; of an application, its own migrations and schedules too."""
    from tidemill.engine.roles.maintenance import maintenance_role
    from tidemill.engine.roles.scheduler import Scheduler
    from tidemill.ops.runs.cancel import cancel_run_within

    chains: Sequence[Chain] = () if declared is None else declared.chains
    schedules = None if declared is None else declared.stored_schedules()
    templates = None if declared is None else declared.templates
    renew = None if declared is None else declared.renewed
    scheduler = Scheduler(
        database, schedules, declared_by=DECLARERS, templates=templates, cancel_run=cancel_run_within, renew=renew
    )
    return RoleGroup(
        "maintenance", maintenance_role(database, settings.maintenance(), chains=chains), Role(scheduler, database)
    )


def monitors_role(declared: Declarations, *, database: Database | None = None, **options: Any) -> Role[MonitorRunner]:
    """The role that follows the application's monitors."""
    reached = database or declared.database(label=f"tidemill monitor {declared.name}")
    return declared.monitors.runner(reached, declared.settings, **options)


@asynccontextmanager
async def running_here(
    declared: Declarations,
    queues: Iterable[str] | None,
    max_concurrency: int | None,
    serve: ServeStream | None = None,
) -> AsyncIterator[None]:
    """All roles of the application, in this process, for as long as the block lasts."""
    refuse_while_loading()
    async with declared.database() as database:
        settings = declared.settings
        roles: list[Runnable] = [maintenance_roles(database, settings, declared)]
        if declared.has_work or queues is not None:
            roles.append(jobs_role(declared, queues, max_concurrency=max_concurrency, database=database))
        if settings.workflow_folder or (declared.uses("pipelines") and declared.pipelines.declared):
            roles.append(declared.pipelines.runner(database, settings))
        if declared.uses("streams"):
            roles += declared.streams.dispatchers(database, declared.source, serve)
        runs = runs_role(declared, database=database)
        roles.append(runs)
        if declared.uses("monitors") and declared.monitors:
            roles.append(monitors_role(declared, database=database))
        loop = asyncio.get_running_loop()
        declared.runs.run_workers[loop] = runs.work
        try:
            async with AsyncExitStack() as running:
                await running.enter_async_context(declared.lifespan.opened())
                with granting_access(settings, database):  # The tasks of the roles keep the context they start in.
                    await running.enter_async_context(run_roles(*roles))
                try:
                    yield
                finally:
                    await declared.connections.close()
        finally:
            declared.runs.run_workers.pop(loop, None)
