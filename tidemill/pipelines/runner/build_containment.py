"""Keeps builds of this process from harming each other: one that ends its process or blocks it is found and fails.

Each build is noted in the process's crash record while it runs. Builds that an earlier process died in, with others
beside them, are suspects: they run apart from all other builds, in groups that shrink with every death. One that has
proved guilty is not called again for a while: it fails, with the reason. Plain functions have threads of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec

from tidemill.core.blame import group_size
from tidemill.core.duration import format_duration
from tidemill.engine.containment.blocked_time import BlockedTime
from tidemill.engine.containment.crash_record import CrashRecord, call_key
from tidemill.engine.containment.watchdog import Culprit
from tidemill.pipelines.definition.pipeline import Stage
from tidemill.pipelines.reducer.plan import BuildStep
from tidemill.pipelines.runner.log import log

APART_SECONDS = 10.0
"""How long suspects and other builds wait for each other."""


class RunningBuild(msgspec.Struct, frozen=True):
    """A build by an async function, which may keep the event loop from turning."""

    name: str
    key: str
    task: asyncio.Task[object]
    budget: float | None
    began_at: float
    blocked: BlockedTime


class CallsInTurn:
    """Calls that follow each other, noted one at a time."""

    def __init__(self, record: CrashRecord, slot: int) -> None:
        self._record = record
        self._slot = slot
        self._key = ""

    def begin(self, step: BuildStep) -> None:
        """Note that a call begins. Raises `RefusedCallError`."""
        self._key = build_key(step)
        self._record.next(self._slot, self._key)

    def end(self) -> None:
        """Note that the call has ended."""
        self._record.erase(self._slot)
        self._record.clear(self._key)


class BuildContainment:
    """The builds of one process."""

    def __init__(self, record: CrashRecord) -> None:
        self._record = record
        self._on_loop: dict[asyncio.Task[object], RunningBuild] = {}
        self._suspects = self._others = self._waiting = 0
        self._strictest = 0
        self._changed = asyncio.Condition()

    def count_death(self) -> None:
        """Find out in which builds the process before this one died."""
        for key in self._record.count_death("build"):
            log.error("THE PREVIOUS PROCESS DIED IN A BUILD", build=" ".join(key.split("\0")[1:4]))

    def has_suspects(self) -> bool:
        return self._record.has_suspects

    @asynccontextmanager
    async def apart(self, step: BuildStep) -> AsyncIterator[None]:
        """A build that, if it is suspected, runs apart from others. Nothing waits for longer than ten seconds."""
        if not self._waiting and not self._suspects and not self._record.has_suspects:
            self._others += 1
            try:
                yield
            finally:
                self._others -= 1
            return
        suspicions = self._record.suspicions(build_key(step))
        async with self._changed:
            self._waiting += bool(suspicions)
            try:
                async with asyncio.timeout(APART_SECONDS):
                    await self._changed.wait_for(lambda: self._may_run(suspicions))
            except TimeoutError:
                pass
            finally:
                self._waiting -= bool(suspicions)
        await self._count(suspicions, 1)
        try:
            yield
        finally:
            await self._count(suspicions, -1)

    def _may_run(self, suspicions: int) -> bool:
        if not suspicions:
            return not self._suspects and not self._waiting
        return not self._others and self._suspects < group_size(max(suspicions, self._strictest))

    async def _count(self, suspicions: int, change: int) -> None:
        async with self._changed:
            if suspicions:
                self._suspects += change
                self._strictest = max(suspicions, self._strictest) if self._suspects else 0
            else:
                self._others += change
            self._changed.notify_all()

    @contextmanager
    def noted_in_turn(self) -> Iterator[CallsInTurn]:
        """Calls of a stage's function that follow each other in one thread."""
        slot = self._record.hold()
        try:
            yield CallsInTurn(self._record, slot)
        finally:
            self._record.end(slot)

    @contextmanager
    def noted(self, step: BuildStep, *, on_loop: bool = False) -> Iterator[None]:
        """A call of a stage's function, in any thread. Raises `RefusedCallError`."""
        key = build_key(step)
        slot = self._record.begin(key)
        task = asyncio.current_task() if on_loop else None
        if task is not None:
            name, budget = build_name(step.stage, step.entity), step.stage.options.budget
            self._on_loop[task] = RunningBuild(name, key, task, budget, time.monotonic(), BlockedTime(task))
        try:
            yield
        except BaseException as error:
            self._record.end_by(slot, error)
            raise
        finally:
            if task is not None:
                del self._on_loop[task]
        self._record.end(slot)
        self._record.clear(key)

    def find_culprit(self, task: asyncio.Task[object] | None) -> Culprit | None:
        """The build that keeps the event loop from turning."""
        running = dict(self._on_loop)
        found = running.get(task) if task is not None else None
        if found is None and task is not None and len(running) == 1:  # A task that the only build has started.
            (found,) = running.values()
        return None if found is None else _culprit(found)

    def running_on_loop(self) -> list[Culprit]:
        """The builds by async functions that run now."""
        return [_culprit(each) for each in list(self._on_loop.values())]


def _culprit(build: RunningBuild) -> Culprit:
    if build.budget is None:
        return Culprit(build.name, build.key, task=build.task)
    limit_at = build.began_at + build.budget + build.blocked.seconds
    limit = f"its budget of {format_duration(build.budget)}"
    return Culprit(build.name, build.key, limit_at, limit, build.task)


def build_name(stage: Stage, entity: str) -> str:
    """A build for people."""
    about = f"state {entity} of " if entity else ""
    return f"{about}stage {stage.name} (pipeline {stage.pipeline.name})"


def build_key(step: BuildStep) -> str:
    """What identifies a build: other code or other inputs make it another one."""
    stage = step.stage
    return call_key("build", stage.pipeline.name, stage.name, step.entity, stage.code.total, step.inputs)
