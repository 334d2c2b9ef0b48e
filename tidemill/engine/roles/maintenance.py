"""Maintenance: keeps the tables in order. Its role migrates the schema first.

Every sweep reclaims what lapsed leases left behind, flags silent workers, drops jobs past their deadline, admits jobs
whose concurrency key has room again and routes those that waited for a task to be known. Now and then it makes the
history's next partitions and drops the old ones. Several may run: every sweep is safe to repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import asyncpg
import msgspec
import structlog

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.jobs.job import ClaimedJob, Finish, Requeue
from tidemill.engine.roles.role import Life, Role
from tidemill.engine.telemetry.meter import Meter, MeterReporter
from tidemill.engine.worker.outcome import after_loss, record
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.jobs import sweeps
from tidemill.store.jobs.batches.batches import forget_batches, sweep_batches
from tidemill.store.jobs.history import partitions as history_partitions
from tidemill.store.jobs.log import keep_job_log
from tidemill.store.maintenance.retention_settings import read_retention
from tidemill.store.migrate import OWN_CHAIN, Chain, build_indexes
from tidemill.store.runs.claims import free_runs
from tidemill.store.runs.log import keep_run_log
from tidemill.store.runs.runs import forget_runs
from tidemill.store.runs.turns import cancel_unwanted
from tidemill.store.streams.event_log import keep_log
from tidemill.store.streams.handed_over import keep_handed_over
from tidemill.store.telemetry.hosts import forget_telemetry

log = structlog.get_logger("tidemill.maintenance")


class MaintenanceSettings(msgspec.Struct, frozen=True):
    """How often to sweep and how long things are kept."""

    sweep_seconds: float = 1.0
    lease_seconds: float = 15.0
    silence_seconds: float = 9.0
    keep_days: int = 30
    housekeeping_seconds: float = 60.0

    def validate(self) -> MaintenanceSettings:
        if self.keep_days < 1:
            raise ConfigError("finished jobs are kept for at least one day")
        return self


class Maintenance:
    """Keeps the tables in order for all other roles."""

    channels: Mapping[str, None] = {}

    def __init__(
        self,
        database: Database,
        settings: MaintenanceSettings | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = (settings or MaintenanceSettings()).validate()
        self.meter = Meter()
        self._database = database
        self._clock = clock

    async def work(self, life: Life) -> None:
        """Sweep until stopped, while indexes are built that the migrations have left."""
        building = asyncio.create_task(self._build_indexes(), name="indexes")
        try:
            await self._sweep_until_stopped(life)
        finally:
            building.cancel()
            await asyncio.wait([building])

    async def _build_indexes(self) -> None:
        while True:
            try:
                await build_indexes(self._database)
                return
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TidemillError) as error:
                log.warning("indexes cannot be built now: it is tried again", error=str(error))
                await asyncio.sleep(self.settings.housekeeping_seconds)

    async def _sweep_until_stopped(self, life: Life) -> None:
        housekeeping_at = 0.0
        while not life.is_stopping:
            try:
                now = self._clock.monotonic()
                if now >= housekeeping_at:
                    await self.clean_up()
                    housekeeping_at = now + self.settings.housekeeping_seconds
                await self.sweep()
                life.ready()
            except Exception as error:
                if not is_transient(error):
                    raise
                log.warning("this sweep failed: the next one repeats it", error=str(error))
            await life.wait(self.settings.sweep_seconds)

    async def sweep(self) -> None:
        """Everything that must happen soon, once: most of the time one statement says that nothing has to."""
        database, settings = self._database, self.settings
        found = await sweeps.find_sweeps(database, silence_seconds=settings.silence_seconds)
        if "lapsed" in found:
            await self._reclaim_lapsed()
        if "silent" in found:
            await self._flag_silent()
        if found & {"lapsed", "ended"} and (late := await sweeps.release_late_claims(database)):
            log.warning("jobs of workers that have just ended went back to their queues", jobs=late)
            self.meter.count("jobs_reclaimed", by=late)
        if "throttled" in found:
            await sweeps.admit_due(database)
        if "expired" in found and (expired := await sweeps.expire_jobs(database)):
            log.warning("jobs dropped unrun: their deadline had passed", jobs=expired)
        if "late_runs" in found and (expired := await sweeps.expire_runs(database)):
            log.warning("runs dropped unrun: their deadline had passed", runs=expired)
        if "no_worker" in found:
            await sweeps.route_jobs(database)
        if "batches" in found:
            await sweep_batches(database)
        if "unwanted" in found:
            await cancel_unwanted(database)
        if "orphans" in found:
            await sweeps.cancel_orphans(database)
        if found & {"lapsed", "abandoned"} and (freed := await free_runs(database)):
            log.warning("runs of owners that have ended wait for another", runs=freed)

    async def _reclaim_lapsed(self) -> None:
        lease = self.settings.lease_seconds
        for worker, jobs in await sweeps.reclaim_lapsed(self._database, self._lost, lease_seconds=lease):
            log.error("LOST WORKER: its lease lapsed and its jobs went back to their queues", worker=worker, jobs=jobs)
            self.meter.count("lease_reclaims")
            self.meter.count("jobs_reclaimed", by=jobs)

    async def _flag_silent(self) -> None:
        for row in await sweeps.flag_silent(self._database, silence_seconds=self.settings.silence_seconds):
            log.error(
                "DEAD WORKER: no heartbeat while it owns running jobs; look at the process and restart it",
                worker=f"{row['host']}:{row['pid']}#{row['id']}",
                queues=row["queues"],
                silent_for=round(row["silent"], 1),
            )

    async def clean_up(self) -> None:
        """What can wait: partitions, retention, leftovers, orphaned jobs."""
        today = datetime.fromtimestamp(self._clock.now(), UTC).date()
        wanted, _ = await read_retention(self._database)
        jobs, runs = wanted.jobs or self.settings.keep_days, wanted.runs or self.settings.keep_days
        await history_partitions.make_partitions(self._database, today)
        if dropped := await history_partitions.drop_partitions(self._database, today, keep_days=jobs):
            log.info("history dropped", partitions=dropped)
        await keep_job_log(self._database, today, keep_days=jobs)
        await keep_run_log(self._database, today, keep_days=runs)
        events = wanted.events or self.settings.keep_days
        await keep_log(self._database, today, keep_days=events)
        await keep_handed_over(self._database, today, keep_days=events)
        await history_partitions.forget_leftovers(self._database)
        await forget_batches(self._database, keep_days=jobs)
        await forget_telemetry(self._database)
        while await forget_runs(self._database, keep_days=runs):
            log.info("old runs forgotten", keep_days=runs)
        await history_partitions.analyze_history(self._database)
        if orphans := await sweeps.release_orphans(self._database):
            log.error("jobs of ended workers went back to their queues", jobs=orphans)
            self.meter.count("jobs_reclaimed", by=orphans)

    def _lost(self, job: ClaimedJob, worker: str, held: int) -> Finish | Requeue:
        message = f"worker {worker} stopped renewing its lease"
        report = record(job, kind="WorkerLost", message=message, at=self._clock.now(), worker=worker)
        return after_loss(job, report, held=held)


def maintenance_role(
    database: Database,
    settings: MaintenanceSettings | None = None,
    *,
    chains: Sequence[Chain] = (),
) -> Role[Maintenance]:
    """Maintenance as a role, which applies our migrations and those of an application before it sweeps."""
    maintenance = Maintenance(database, settings)
    reporter = MeterReporter(database, maintenance.meter, "maintenance")
    return Role(maintenance, database, reporter=reporter, migrations=(OWN_CHAIN, *chains))
