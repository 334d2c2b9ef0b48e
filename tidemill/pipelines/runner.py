"""The role that keeps pipelines up to date: `tidemill pipeline run app.py`.

Three things wake it. Whoever writes a state says so (NOTIFY); the operating system tells of files that others change
(watchfiles); and every `scan_interval` it looks for itself, since both may miss something. Of several such processes,
one drives a pipeline and the others stand by.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import watchfiles

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.codec import decode
from tidemill.core.errors import PayloadError
from tidemill.pipelines.driver import Driver, fits
from tidemill.pipelines.files import FileStates
from tidemill.pipelines.log import log
from tidemill.pipelines.looker import give_back_memory
from tidemill.pipelines.model import Pipeline, Stage
from tidemill.pipelines.plan import Step
from tidemill.pipelines.work import enqueue_builds, task_name
from tidemill.store import states as rows
from tidemill.store.database import Database, is_away, is_full
from tidemill.store.migrate import migrate, wait_for_schema
from tidemill.store.wake import ANYTHING, Listener

logging.getLogger("watchfiles").setLevel(logging.WARNING)  # It would tell of every file twice.

STAND_BY = 2.0
CHECK_FLIGHTS = 5.0
TRUST_AFTER = 0.25
HOUSEKEEPING = 3600.0
MANY = 5000  # changed paths from which on it is quicker to look at everything


class Wishes:
    """What has been heard and not yet been acted upon."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.entities: dict[str, set[str]] = {}
        self.everything = False
        self.reload = False
        self.event = asyncio.Event()

    def take(self) -> tuple[set[str], dict[str, set[str]], bool, bool]:
        taken = self.paths, self.entities, self.everything, self.reload
        self.paths, self.entities, self.everything, self.reload = set(), {}, False, False
        self.event.clear()
        return taken


class PipelineRunner:
    """Keeps pipelines up to date until it is stopped."""

    def __init__(
        self,
        database: Database,
        pipelines: Sequence[Pipeline],
        task_of: Callable[[Stage], Any] | None,
        *,
        keep_days: int = 30,
        migrates: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Without `task_of`, there are no workers to rely on: everything is built in this process."""
        self.pipelines = list(pipelines)
        self.drivers: dict[str, Driver] = {}
        self._database = database
        self._task_of = task_of
        self._keep_days = keep_days
        self._migrates = migrates
        self._clock = clock
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()
        self._leading: set[str] = set()
        self._wishes: dict[str, Wishes] = {}

    def stop(self) -> None:
        self._stop.set()
        for wishes in self._wishes.values():
            wishes.event.set()

    async def wait_ready(self) -> None:
        """Return when every pipeline is driven, here or elsewhere."""
        await self._ready.wait()

    async def run(self) -> None:
        """Keep the pipelines up to date until told to stop."""
        await self._database.open()
        if self._migrates:
            await migrate(self._database, patience=None)
        await wait_for_schema(self._database)
        listener = Listener(self._database)
        listener.on(rows.STATES_CHANNEL, self._heard)
        listening = asyncio.create_task(listener.run())
        try:
            await listener.wait_ready()
            async with asyncio.TaskGroup() as group:
                for pipeline in self.pipelines:
                    self._wishes[pipeline.name] = Wishes()
                    group.create_task(self._keep(pipeline), name=f"pipeline {pipeline.name}")
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    def _heard(self, payload: str) -> None:
        if payload == ANYTHING:
            for wishes in self._wishes.values():
                wishes.reload = wishes.everything = True
                wishes.event.set()
            return
        try:
            news: rows.News = decode(payload, rows.News)
        except PayloadError:
            return
        for name, wishes in self._wishes.items():
            driver = self.drivers.get(name)
            if driver is None:
                continue
            if news.pipeline == name:
                if news.by == driver.builder:
                    continue
                if news.stage:
                    wishes.entities.setdefault(news.stage, set()).update(news.entities)
                else:
                    wishes.reload = True
            elif not _share(driver, self.drivers.get(news.pipeline), news.pipeline, self.pipelines) or (
                news.stage and not news.paths and news.entities
            ):
                continue
            if news.paths:
                wishes.paths.update(news.paths)
            elif not news.stage and news.pipeline != name:
                wishes.everything = True
            wishes.event.set()

    async def _keep(self, pipeline: Pipeline) -> None:
        """Drive one pipeline whenever nobody else does, over any number of bad days."""
        while not self._stop.is_set():
            try:
                async with self._lead(pipeline) as leading:
                    self._note_lead(pipeline, leading)
                    if leading:
                        await self._drive(pipeline)
                        continue
            except Exception as error:
                if not (is_away(error) or is_full(error)):
                    raise
                log.warning("the database is away", pipeline=pipeline.name, error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STAND_BY):
                    await self._stop.wait()

    def _note_lead(self, pipeline: Pipeline, leading: bool) -> None:
        if not leading:
            self._leading.add(pipeline.name)  # somebody else drives it
            if len(self._leading) == len(self.pipelines):
                self._ready.set()

    @contextlib.asynccontextmanager
    async def _lead(self, pipeline: Pipeline) -> AsyncIterator[bool]:
        """Hold the lead of a pipeline, if it is to be had."""
        connection = await self._database.connect_to_listen()
        try:
            name = f"{self._database.schema}:{pipeline.name}"
            yield bool(await connection.fetchval(rows.TAKE_LEAD, name))
        finally:
            connection.terminate()

    async def _drive(self, pipeline: Pipeline) -> None:
        wishes = self._wishes[pipeline.name]
        dispatch = None if self._task_of is None else self._dispatch
        driver = Driver(self._database, pipeline, dispatch=dispatch, on_result=wishes.event.set, clock=self._clock)
        self.drivers[pipeline.name] = driver
        wishes.take()
        watching = asyncio.create_task(self._watch(driver, wishes))
        try:
            await self._find_flights(driver)
            await driver.act(await driver.begin())
            give_back_memory()
            log.info("drives the pipeline", pipeline=pipeline.name, files=len(driver.world.files))
            for problem in driver.problems:
                log.error("cannot look at everything", pipeline=pipeline.name, problem=problem)
            self._leading.add(pipeline.name)
            if len(self._leading) == len(self.pipelines):
                self._ready.set()
            await self._rounds(driver, wishes)
        finally:
            del self.drivers[pipeline.name]
            watching.cancel()
            await asyncio.wait([watching])
            await driver.close()

    async def _rounds(self, driver: Driver, wishes: Wishes) -> None:
        pipeline, clock = driver.pipeline, self._clock
        scan_at = clock.monotonic() + pipeline.scan_interval
        flights_at = clock.monotonic() + CHECK_FLIGHTS
        house_at = clock.monotonic() + 5.0
        share = max(1, round(pipeline.full_scan / pipeline.scan_interval)) if pipeline.watch else 1
        while not self._stop.is_set():
            await self._wait(driver, wishes, scan_at, flights_at)
            if self._stop.is_set():
                return
            paths, entities, everything, reload = wishes.take()
            now = clock.monotonic()
            changed: list[str] = []
            if reload:
                await driver.reload()
            for stage, ids in entities.items():
                changed += await self._learn(driver, stage, ids)
            if everything or len(paths) > MANY:
                await driver.survey()
                scan_at = now + pipeline.scan_interval
            elif now >= scan_at:
                changed += await (driver.survey() if share == 1 else driver.quick_survey(share))
                scan_at = now + pipeline.scan_interval
            elif paths:
                changed += await driver.look(paths)
            if now >= flights_at:
                changed += await self._check_flights(driver)
                flights_at = now + CHECK_FLIGHTS
            if driver.distrusted and not paths:
                changed += await driver.reread_distrusted()
            if now >= house_at:
                await self._keep_house(driver)
                house_at = now + HOUSEKEEPING
            changed += await driver.settle()
            due = driver.next_retry()
            if everything or reload or len(changed) > MANY or (due is not None and due <= driver.now()):
                await driver.act(driver.plan())
            elif changed:
                await driver.act(driver.plan(changed))
            retries = driver.due_retries()
            if retries:
                await driver.act(driver.plan(retries))
            if driver.idle.is_set() and driver.manifests.due_in() == 0.0:
                await driver.manifests.flush()

    async def _wait(self, driver: Driver, wishes: Wishes, scan_at: float, flights_at: float) -> None:
        """Until something is heard, or something is due."""
        now = self._clock.monotonic()
        until = min(scan_at, flights_at if driver.in_flight else scan_at)
        if driver.distrusted:
            until = min(until, now + TRUST_AFTER)
        due = driver.next_retry()
        if due is not None:
            until = min(until, now + max(0.0, due - driver.now()) + 0.01)
        writing = driver.manifests.due_in()
        if writing is not None:
            until = min(until, now + max(writing, 0.05))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - now)):
                await wishes.event.wait()

    # -- builds elsewhere ---------------------------------------------------------------------------

    async def _dispatch(self, stage: Stage, steps: Sequence[Step]) -> list[int]:
        task = self._task_of(stage) if self._task_of is not None else None
        return await enqueue_builds(self._database, task, steps) if task is not None else []

    async def _find_flights(self, driver: Driver) -> None:
        """Builds that were enqueued before this process began."""
        for stage in driver.order:
            for row in await self._database.fetch(rows.LIST_QUEUED, task_name(stage)):
                entity = "" if row["unique_key"] == "*" and not stage.variables else row["unique_key"]
                if not fits(stage, entity):
                    continue
                driver.in_flight[stage.name, entity] = row["id"]
                driver.busy[driver.output_key(stage.name, entity)] = stage.name

    async def _check_flights(self, driver: Driver) -> list[str]:
        """Builds that have come to an end without saying so; returns the outputs to be looked at."""
        changed: list[str] = []
        for stage in driver.order:
            flying = {entity: job for (name, entity), job in driver.in_flight.items() if name == stage.name}
            if not flying:
                continue
            alive = {row["id"] for row in await self._database.fetch(rows.LIST_QUEUED, task_name(stage))}
            ended = {entity: job for entity, job in flying.items() if job not in alive}
            if not ended:
                continue
            badly = {row["id"]: row for row in await self._database.fetch(rows.LIST_ENDED, list(ended.values()))}
            changed += await self._learn(driver, stage.name, set(ended))
            lost = {
                entity: badly[job]
                for entity, job in ended.items()
                if job in badly and entity not in driver.world.failures[stage.name]
            }
            await driver.note_lost(stage, lost)
        return changed

    async def _learn(self, driver: Driver, stage: str, entities: set[str]) -> list[str]:
        """What a builder elsewhere has done; returns the outputs to be looked at."""
        known = driver.pipeline.stages.get(stage)
        if known is None:
            return []
        return await driver.learn(known, entities)

    # -- watching -----------------------------------------------------------------------------------

    async def _watch(self, driver: Driver, wishes: Wishes) -> None:
        """Be told by the operating system of files that others change."""
        states = driver.states
        if not driver.pipeline.watch or not isinstance(states, FileStates):
            return
        root = states.root
        while True:
            folders = watched_folders(driver, root)
            try:
                async for changes in watchfiles.awatch(
                    *folders, watch_filter=_is_shown, debounce=60, step=15, recursive=True, stop_event=self._stop
                ):
                    found = {str(Path(path).relative_to(root)) for _, path in changes}
                    wishes.paths |= found
                    wishes.event.set()
                    if watched_folders(driver, root) != folders:
                        break
                else:
                    return
            except (OSError, RuntimeError, ValueError) as error:
                log.warning(
                    "changes by others are found by scans only", pipeline=driver.pipeline.name, error=str(error)
                )
                return
            wishes.everything = True
            wishes.event.set()

    async def _keep_house(self, driver: Driver) -> None:
        await rows.forget_builds(self._database, keep_days=self._keep_days)
        if isinstance(driver.states, FileStates):
            await asyncio.to_thread(driver.states.sweep_temporaries, list(driver.folders))
        await driver.manifests.catch_up(self._database)


def watched_folders(driver: Driver, root: Path) -> list[Path]:
    """The folders in which something may change: those that patterns name, as far as they are there."""
    folders = {root / pattern.folder for pattern in driver.patterns}
    if not all(folder.is_dir() for folder in folders):
        root.mkdir(parents=True, exist_ok=True)
        return [root]
    return sorted(one for one in folders if not any(other != one and one.is_relative_to(other) for other in folders))


def _is_shown(_: Any, path: str) -> bool:
    return not path.rpartition("/")[2].startswith(".")


def _share(driver: Driver, other: Driver | None, name: str, pipelines: Sequence[Pipeline]) -> bool:
    """Whether another pipeline's states may be this one's inputs. One of another process may be anywhere."""
    if other is not None:
        return other.states == driver.states
    return True
