"""What the server knows of pipelines: looked at when somebody asks, and once for all who do.

A look is everything that is known of one pipeline at one moment, with the plan that follows from it; nothing changes
it any more. It serves everybody until somebody tells of new states, or until it is old. Looking at a large pipeline
takes its time: it is then done less often, and every answer says how old it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tidemill.core.codec import decode
from tidemill.core.errors import NotFoundError, PayloadError
from tidemill.pipelines.definition.declared import Pipelines
from tidemill.pipelines.definition.pipeline import Pipeline, Stage, share_place
from tidemill.pipelines.reducer.facts import FileFact, entities_of
from tidemill.pipelines.reducer.plan import BuildPlan, BuildStep
from tidemill.pipelines.reducer.reasons import kind_of_reason
from tidemill.pipelines.runner.running_builds import BuildJobs, builds_under_way
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.store.database import Database
from tidemill.store.notify import ANYTHING
from tidemill.store.states.build_jobs import is_kept, newest_codes
from tidemill.store.states.states import News

GOOD_FOR = 10.0  # seconds, unless somebody tells of something new
QUICK = 1.0  # a look that takes no longer is taken whenever there is news
SPARE = 5.0  # others are taken so many times more seldom than they take
FORGOTTEN_AFTER = 300.0

STANDINGS: tuple[str, ...] = (
    "fresh",
    "building",
    "stale",
    "failed",
    "needs_attention",
    "blocked",
    "paused",
    "needs_approval",
    "orphan",
)
_HELD = {
    "blocked": "blocked",
    "backing_off": "failed",
    "needs_attention": "needs_attention",
    "paused": "paused",
    "needs_approval": "needs_approval",
}


def standing_of(step: BuildStep | None) -> str:
    """The condition of a state that is not as it should be, in a word; without a step it is an orphan."""
    return "orphan" if step is None else _HELD.get(kind_of_reason(step.reason), "stale")


class PipelineRead:
    """Everything that is known of one pipeline at one moment."""

    def __init__(
        self, pipeline_view: PipelineView, plan: BuildPlan, problems: Iterable[str], *, at: float, took: float
    ) -> None:
        self.pipeline_view = pipeline_view
        self.plan = plan
        self.problems = list(problems)
        self.at = at
        self.took = took
        self.lists: dict[Any, Any] = {}  # what was put together of it once
        self.amiss: dict[str, dict[str, BuildStep | None]] = {stage.name: {} for stage in pipeline_view.order}
        """The states that are not fresh: why, or None for orphans."""
        for step in plan.steps:
            self.amiss[step.stage.name][step.entity] = step
        for stage, entity in plan.orphans:
            self.amiss[stage.name][entity] = None
        self._adopted: dict[str, list[str]] = {}
        for each in plan.adoptions:
            self._adopted.setdefault(each.stage.name, []).append(each.entity)

    @property
    def pipeline(self) -> Pipeline:
        return self.pipeline_view.pipeline

    @property
    def looked_at(self) -> datetime:
        return datetime.fromtimestamp(self.at).astimezone()

    def stage(self, name: str) -> Stage:
        """The stage of this name."""
        found = self.pipeline.stages.get(name)
        if found is None:
            known = ", ".join(self.pipeline.stages)
            raise NotFoundError(f"pipeline {self.pipeline.name} has no stage {name!r}; its stages: {known}")
        return found

    def entities(self, stage: str) -> dict[str, None]:
        """All entities that a stage has something of, or should have."""
        known = self.lists.get(("entities", stage))
        if known is None:
            known = dict.fromkeys(self.amiss[stage])
            known |= {
                entity: None
                for entity, record in self.pipeline_view.world.records[stage].items()
                if record.content and not record.is_nothing
            }
            known |= dict.fromkeys(self._nothings(self.stage(stage)))
            known |= dict.fromkeys(self._adopted.get(stage, ()))
            self.lists["entities", stage] = known
        return known

    def _nothings(self, stage: Stage) -> list[str]:
        """The entities of which a stage has decided to make nothing, and that are still there."""
        found = [each for each, record in self.pipeline_view.world.records[stage.name].items() if record.is_nothing]
        if not found:
            return []
        paths = {one.pattern: self.pipeline_view.world.matched.get(one.pattern, {}) for one in stage.inputs}
        there = {entity for entity, _ in entities_of(stage, paths)}
        return [entity for entity in found if entity in there]

    def standing(self, stage: str, entity: str, jobs: BuildJobs) -> str | None:
        """How a state stands; None if there is none."""
        job = jobs.get((stage, entity))
        if job is not None and job.state == "running":
            return "building"
        amiss = self.amiss[stage]
        if entity in amiss:
            return standing_of(amiss[entity])
        return "fresh" if entity in self.entities(stage) else None

    def counts(self, stage: str, jobs: BuildJobs) -> dict[str, int]:
        """How many states of a stage stand how."""
        table = dict.fromkeys(STANDINGS, 0)
        table["fresh"] = self.plan.fresh.get(stage, 0)
        for step in self.amiss[stage].values():
            table[standing_of(step)] += 1
        for (name, entity), job in jobs.items():
            if name == stage and job.state == "running" and entity in self.amiss[stage]:
                table[standing_of(self.amiss[stage][entity])] -= 1
                table["building"] += 1
        return {word: number for word, number in table.items() if number}


class PipelineCache:
    """The newest look at each pipeline of an application."""

    def __init__(self, database: Database, pipelines: Pipelines) -> None:
        self._database = database
        self._pipelines = pipelines
        self._known = pipelines.known
        self._looks: dict[str, PipelineRead] = {}
        self._asked: dict[str, float] = {}
        self._news: set[str] = set()  # of which something was told since the last look
        self._due: set[str] = set()  # of which something was changed by ourselves
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def names(self) -> list[str]:
        self._known = self._pipelines.known
        return list(self._known)

    def file_problems(self, name: str | None = None) -> list[str]:
        """What is wrong with workflow files, or with that of one pipeline: what they declared before stays in force."""
        folder = self._pipelines.folder
        if folder is None:
            return []
        return list(folder.errors.values()) if name is None else folder.errors_of(name)

    def require(self, name: str) -> Pipeline:
        """The pipeline of this name, as it is declared now."""
        self._known = self._pipelines.known
        found = self._known.get(name)
        if found is None:
            known = ", ".join(self._known) or "none"
            raise NotFoundError(f"this server's application declares no pipeline {name!r}; it declares: {known}")
        return found

    def hear(self, payload: str) -> None:
        """News of states: whoever could see them has to look again."""
        try:
            news = None if payload == ANYTHING else decode(payload, News)
        except PayloadError:
            return
        mine = None if news is None else self._known.get(news.pipeline)
        for name, pipeline in self._known.items():
            if mine is None or share_place(pipeline, mine):
                self._news.add(name)

    def has_changed(self, name: str) -> None:
        """Something of a pipeline was changed here: whoever asks next must see it."""
        self._due.add(name)

    async def look(self, name: str, *, anew: bool = False) -> PipelineRead:
        """A look at a pipeline that is not older than it need be; `anew` for one that begins now."""
        pipeline = self.require(name)
        self._asked[name] = time.monotonic()
        self._forget()
        known = self._looks.get(name)
        if known is not None and known.pipeline is not pipeline:
            known = None  # Its file has changed.
            del self._looks[name]
        if known is not None and not anew and self._is_good(name, known):
            return known
        lock = self._locks.setdefault(name, asyncio.Lock())
        if known is not None and not anew and known.took > QUICK and lock.locked() and name not in self._due:
            return known  # Somebody looks already, and it takes long.
        async with lock:
            newer = self._looks.get(name)
            if newer is not None and newer.pipeline is not pipeline:
                newer = None
            if newer is not None and newer is not known and not anew:
                return newer
            self._news.discard(name)
            self._due.discard(name)
            try:
                self._looks[name] = await self._take(pipeline, newer)
            except Exception:
                self._looks.pop(name, None)  # What was seen before may not be so any more.
                raise
            return self._looks[name]

    async def jobs(self, look: PipelineRead) -> BuildJobs:
        """The builds of a pipeline that wait or run now."""
        amiss = [stage for stage in look.pipeline_view.order if look.amiss[stage.name]]
        return await builds_under_way(self._database, look.pipeline, amiss)

    async def is_kept(self, name: str) -> bool:
        """Whether some process keeps a pipeline up to date."""
        return await is_kept(self._database, name)

    def _is_good(self, name: str, look: PipelineRead) -> bool:
        age, rest = time.time() - look.at, SPARE * look.took
        if name in self._due or age < 0:
            return False
        if name in self._news:
            return look.took > QUICK and age < rest
        return age < max(GOOD_FOR, rest)

    def _forget(self) -> None:
        old = time.monotonic() - FORGOTTEN_AFTER
        for name in [name for name in self._looks if self._asked.get(name, 0.0) < old]:
            del self._looks[name]

    async def _take(self, pipeline: Pipeline, before: PipelineRead | None) -> PipelineRead:
        await asyncio.to_thread(lambda: [stage.code for stage in pipeline.stages.values()])  # once, and takes a while
        at, began = time.time(), time.perf_counter()
        pipeline_view = PipelineView(self._database, pipeline)
        if before is not None:
            # What was read of files that the database does not know need not be read again.
            pipeline_view.world.files = {
                path: FileFact(0, fact.known, fact.content, fact.size)
                for path, fact in before.pipeline_view.world.files.items()
                if fact.known
            }
        await pipeline_view.look_around()
        pipeline_view.require_place()
        await pipeline_view.settle(store=False)
        plan = await asyncio.to_thread(pipeline_view.plan)
        problems = [*pipeline_view.problems, *pipeline_view.notes, *plan.problems]
        newest = await newest_codes(self._database, pipeline.name)
        for stage in pipeline_view.order:
            if newest.get(stage.name, stage.code.total) != stage.code.total:
                problems.append(
                    f"this server has other code of stage {stage.name} than whoever keeps the pipeline up to date: "
                    "start it again"
                )
        return PipelineRead(pipeline_view, plan, problems, at=at, took=time.perf_counter() - began)
