"""The scheduler: turns schedules into jobs, each fire once, however many schedulers run.

It sleeps until the next fire, or until a schedule changes. What to do about late and missed fires is decided by
`core.schedule.plan_fires`; the decision, the jobs and the time of the next fire commit together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.jobs.job import NewJob
from tidemill.core.schedule import FirePlan, Schedule, WaitingFire, jittered, plan_fires
from tidemill.engine.jobs.origin import origin_here
from tidemill.engine.roles.role import Life
from tidemill.engine.telemetry.tracing import enqueueing
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.jobs.declared import WorkTemplate, declare
from tidemill.store.jobs.schedules.schedules import (
    PROGRAM,
    SCHEDULES_CHANNEL,
    CancelRun,
    DeclaredSchedule,
    Renew,
    declare_schedules,
    fire_due,
    next_scheduled,
)

log = structlog.get_logger("tidemill.scheduler")

SAFETY_POLL = 30.0
LOG_EVERY = 60.0


class Scheduler:
    """Stores the declared schedules and fires them; with None, it fires those that are stored."""

    channels: Mapping[str, None] = {SCHEDULES_CHANNEL: None}

    def __init__(
        self,
        database: Database,
        declared: Sequence[DeclaredSchedule] | None,
        *,
        declared_by: Collection[str] = (PROGRAM,),
        templates: Callable[[], Sequence[WorkTemplate]] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        cancel_run: CancelRun | None = None,
        renew: Renew | None = None,
    ) -> None:
        self._database = database
        self._declared = declared
        self._declared_by = declared_by
        self._templates = templates
        self._clock = clock
        self._cancel_run = cancel_run
        self._renew = renew
        self._logged: dict[str, float] = {}

    async def work(self, life: Life) -> None:
        """Fire until stopped."""
        if self._declared is not None:
            await declare_schedules(self._database, self._declared, by=self._declared_by, renew=self._renew)
        if self._templates is not None:
            await declare(self._database, self._templates())
        life.ready()
        log.info("scheduler started", schedules=len(self._declared or ()))
        while await life.wait(await self.fire()):
            pass
        log.info("scheduler stopped")

    async def fire(self) -> float:
        """Fire due schedules; returns how long to sleep."""
        try:
            for fired in await fire_due(self._database, _plan, self._place, self._cancel_run):
                if (fired.jobs or fired.runs) and self._should_log(fired.schedule):
                    jobs = [job.id for job in fired.jobs[:5]]
                    log.info("schedule fired", schedule=fired.schedule, jobs=jobs, runs=list(fired.runs[:5]))
                if fired.overlapped:
                    log.info("a fire was skipped: the previous one is unfinished", schedule=fired.schedule)
                if fired.problem is not None:
                    log.error("A SCHEDULE CANNOT BE FIRED HERE", schedule=fired.schedule, why=fired.problem)
                if fired.missed:
                    log.warning("fires were missed", schedule=fired.schedule, missed=fired.missed)
            wait = await next_scheduled(self._database)
        except Exception as error:
            if not is_transient(error):
                raise
            log.warning("nothing can be fired now: trying again", error=str(error))
            return 1.0
        return SAFETY_POLL if wait is None else min(SAFETY_POLL, max(wait, 0.0))

    def _should_log(self, schedule: str) -> bool:
        """Log a frequent schedule only once a minute: each fire is visible as a job."""
        now = self._clock.monotonic()
        if now < self._logged.get(schedule, now - LOG_EVERY) + LOG_EVERY:
            return False
        self._logged[schedule] = now
        return True

    def _place(self, template: NewJob, name: str, due: WaitingFire, jitter: float) -> NewJob:
        origin = origin_here("scheduler", schedule=name, fire=due.fire, reason=due.reason)
        at = jittered(due.fire, jitter, name) if jitter else due.fire
        with enqueueing(msgspec.structs.replace(template, at=at, origin=origin)) as job:
            return job


def _plan(row: Any, spec: Schedule) -> FirePlan:
    return plan_fires(spec, last_fire=row["decided"], now=row["now"], catchup=row["catchup"])
