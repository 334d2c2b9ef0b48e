"""The newest snapshot of each pipeline of an application, shared by everything that reads it.

A snapshot is used until a change of states is announced, or until it is old. A snapshot of a large pipeline takes time:
it is then taken less often, and every result says when it was taken.
"""

from __future__ import annotations

import asyncio
import time

from tidemill.core.codec import decode
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import NotFoundError, PayloadError
from tidemill.pipelines.definition.declared import Pipelines
from tidemill.pipelines.definition.pipeline import Pipeline, share_place
from tidemill.pipelines.runner.running_builds import BuildJobs, builds_under_way
from tidemill.pipelines.view.snapshot import PipelineSnapshot, take_snapshot
from tidemill.store.database import Database
from tidemill.store.notify import ANYTHING
from tidemill.store.states.build_jobs import newest_codes
from tidemill.store.states.states import StatesChanged

GOOD_FOR = 10.0  # Seconds, unless a change is announced.
QUICK = 1.0  # A snapshot that takes no longer is taken after every change.
SPARE = 5.0  # Others are taken only after this many times as long as they take.
FORGOTTEN_AFTER = 300.0


class PipelineCache:
    """Snapshots of the pipelines of an application.

    A server keeps one cache: it is notified of changes, stores nothing, and compares its code with that of the process
    that keeps a pipeline up to date. Without a server each command has its own cache, so that its first read is fresh.
    """

    def __init__(self, database: Database, pipelines: Pipelines, *, is_server: bool = False) -> None:
        self._database = database
        self._pipelines = pipelines
        self._is_server = is_server
        self._known = pipelines.known
        self._snapshots: dict[str, PipelineSnapshot] = {}
        self._used: dict[str, float] = {}
        self._announced: set[str] = set()  # Pipelines with an announced change since their snapshot.
        self._changed: set[str] = set()  # Pipelines that this process has changed.
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def known(self) -> dict[str, Pipeline]:
        """All pipelines as they are declared now, by name."""
        self._known = self._pipelines.known
        return self._known

    def file_problems(self, name: str | None = None) -> list[str]:
        """What is wrong with workflow files, or with that of one pipeline: what they declared before stays in force."""
        folder = self._pipelines.folder
        if folder is None:
            return []
        return list(folder.errors.values()) if name is None else folder.errors_of(name)

    def require(self, name: str) -> Pipeline:
        """The pipeline of this name, as it is declared now."""
        found = self.known.get(name)
        if found is None:
            known = ", ".join(self._known) or "none"
            raise NotFoundError(f"there is no pipeline {name!r}; there are: {known}{did_you_mean(name, self._known)}")
        return found

    def on_notify(self, payload: str) -> None:
        """Take a notification of changed states: snapshots that could show them are taken again."""
        try:
            news = None if payload == ANYTHING else decode(payload, StatesChanged)
        except PayloadError:
            return
        changed = None if news is None else self._known.get(news.pipeline)
        for name, pipeline in self._known.items():
            if changed is None or share_place(pipeline, changed):
                self._announced.add(name)

    def has_changed(self, name: str) -> None:
        """This process has changed a pipeline: the next read must show it."""
        self._changed.add(name)

    async def read(self, name: str, *, fresh: bool = False) -> tuple[PipelineSnapshot, BuildJobs]:
        """A snapshot of a pipeline, and its builds that wait or run now; `fresh` for a snapshot that begins now."""
        snapshot = await self._snapshot(name, fresh=fresh)
        stages = [stage for stage in snapshot.order if snapshot.not_fresh[stage.name]]
        return snapshot, await builds_under_way(self._database, snapshot.pipeline, stages)

    async def _snapshot(self, name: str, *, fresh: bool) -> PipelineSnapshot:
        pipeline = self.require(name)
        self._used[name] = time.monotonic()
        self._forget()
        known = self._snapshots.get(name)
        if known is not None and known.pipeline is not pipeline:
            known = None  # Its file has changed.
            del self._snapshots[name]
        if known is not None and not fresh and self._is_good(name, known):
            return known
        lock = self._locks.setdefault(name, asyncio.Lock())
        if known is not None and not fresh and known.took > QUICK and lock.locked() and name not in self._changed:
            return known  # A new one is being taken, and takes long.
        async with lock:
            newer = self._snapshots.get(name)
            if newer is not None and newer.pipeline is not pipeline:
                newer = None
            if newer is not None and newer is not known and not fresh:
                return newer
            self._announced.discard(name)
            self._changed.discard(name)
            try:
                taken = await take_snapshot(self._database, pipeline, newer, store=not self._is_server)
                if self._is_server:
                    taken.problems += await self._code_problems(taken)
            except Exception:
                self._snapshots.pop(name, None)  # What it showed may be wrong by now.
                raise
            self._snapshots[name] = taken
            return taken

    def _is_good(self, name: str, snapshot: PipelineSnapshot) -> bool:
        age, rest = time.time() - snapshot.at, SPARE * snapshot.took
        if name in self._changed or age < 0:
            return False
        if name in self._announced:
            return snapshot.took > QUICK and age < rest
        return age < max(GOOD_FOR, rest)

    def _forget(self) -> None:
        old = time.monotonic() - FORGOTTEN_AFTER
        for name in [name for name in self._snapshots if self._used.get(name, 0.0) < old]:
            del self._snapshots[name]

    async def _code_problems(self, snapshot: PipelineSnapshot) -> list[str]:
        newest = await newest_codes(self._database, snapshot.pipeline.name)
        return [
            f"this server has other code of stage {stage.name} than the process that keeps the pipeline up to date: "
            "restart the server"
            for stage in snapshot.order
            if newest.get(stage.name, stage.code.total) != stage.code.total
        ]


def cache_of(database: Database, pipelines: Pipelines) -> PipelineCache:
    """The cache that an application has, or a new one."""
    return pipelines.cache or PipelineCache(database, pipelines)
