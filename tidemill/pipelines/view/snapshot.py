"""Everything that is known of one pipeline at one moment, with the plan that follows from it. It never changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.pipelines.reducer.facts import FileFact, entities_of
from tidemill.pipelines.reducer.plan import BuildPlan, BuildStep
from tidemill.pipelines.reducer.reasons import Blocked, kind_of_reason
from tidemill.pipelines.runner.running_builds import BuildJobs
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.store.database import Database

STATES: tuple[str, ...] = (
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
    "no_partner": "blocked",
    "backing_off": "failed",
    "needs_attention": "needs_attention",
    "paused": "paused",
    "needs_approval": "needs_approval",
}


def step_state(step: BuildStep | None) -> str:
    """What a state is that is not fresh; a state without a step is an orphan."""
    return "orphan" if step is None else _HELD.get(kind_of_reason(step.reason), "stale")


def check_states(states: Iterable[str]) -> None:
    """Raise for a word that no state can be in."""
    for state in states:
        if state not in STATES:
            raise ConfigError(f"no state is {state!r}; a state is {', '.join(STATES)}")


class PipelineSnapshot:
    """Everything that is known of one pipeline at one moment."""

    def __init__(
        self, pipeline_view: PipelineView, plan: BuildPlan, problems: Iterable[str], *, at: float, took: float
    ) -> None:
        self.pipeline_view = pipeline_view
        self.plan = plan
        self.problems = list(problems)
        self.at = at
        self.took = took
        self.computed: dict[Any, Any] = {}  # What was computed from it once.
        self.not_fresh: dict[str, dict[str, BuildStep | None]] = {stage.name: {} for stage in pipeline_view.order}
        """The states that are not fresh: why, or None for orphans."""
        for step in plan.steps:
            self.not_fresh[step.stage.name][step.entity] = step
        for stage, entity in plan.orphans:
            self.not_fresh[stage.name][entity] = None
        for step in plan.waiting:
            self.not_fresh[step.stage.name].setdefault(step.entity, step)
        self._adopted: dict[str, list[str]] = {}
        for each in plan.adoptions:
            self._adopted.setdefault(each.stage.name, []).append(each.entity)

    @property
    def order(self) -> list[Stage]:
        """The stages, each after those that it takes from."""
        return self.pipeline_view.order

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
        known = self.computed.get(("entities", stage))
        if known is None:
            known = dict.fromkeys(self.not_fresh[stage])
            known |= {
                entity: None
                for entity, record in self.pipeline_view.world.records[stage].items()
                if record.content and not record.is_nothing
            }
            known |= dict.fromkeys(self._entities_without_output(self.stage(stage)))
            known |= dict.fromkeys(self._adopted.get(stage, ()))
            self.computed["entities", stage] = known
        return known

    def _entities_without_output(self, stage: Stage) -> list[str]:
        """The entities whose inputs exist and for which a stage has decided to make nothing."""
        found = [each for each, record in self.pipeline_view.world.records[stage.name].items() if record.is_nothing]
        if not found:
            return []
        paths = {one.pattern: self.pipeline_view.world.matched.get(one.pattern, {}) for one in stage.inputs}
        there = {entity for entity, _ in entities_of(stage, paths)}
        return [entity for entity in found if entity in there]

    def is_orphan(self, stage: str, entity: str) -> bool:
        """Whether a state has lost its inputs."""
        return entity in self.not_fresh[stage] and self.not_fresh[stage][entity] is None

    def is_stuck(self, step: BuildStep) -> bool:
        """Whether a state is not built until an operator acts, a failed state succeeds or an input arrives."""
        if not isinstance(step.reason, Blocked):
            return not step.is_build
        for path in step.reason.waits_for:
            maker = self.pipeline_view.maker(path)
            before = None if maker is None else self.not_fresh[maker[0].name].get(maker[1])
            if maker is None or (before is not None and self.is_stuck(before)):
                return True
        return False

    def state_of(self, stage: str, entity: str, jobs: BuildJobs) -> str | None:
        """What a state is: fresh, stale, failed and so on; None if there is no such state."""
        job = jobs.get((stage, entity))
        if job is not None and job.state == "running":
            return "building"
        not_fresh = self.not_fresh[stage]
        if entity in not_fresh:
            return step_state(not_fresh[entity])
        return "fresh" if entity in self.entities(stage) else None

    def counts(self, stage: str, jobs: BuildJobs) -> dict[str, int]:
        """How many states of a stage are fresh, stale, failed and so on."""
        table = dict.fromkeys(STATES, 0)
        table["fresh"] = self.plan.fresh.get(stage, 0)
        for step in self.not_fresh[stage].values():
            table[step_state(step)] += 1
        for (name, entity), job in jobs.items():
            if name == stage and job.state == "running" and entity in self.not_fresh[stage]:
                table[step_state(self.not_fresh[stage][entity])] -= 1
                table["building"] += 1
        return {word: number for word, number in table.items() if number}

    def usage(self) -> dict[str, int]:
        """How many bytes the states of each stage take."""
        known = self.computed.get("usage")
        if known is None:
            world = self.pipeline_view.world
            known = self.computed["usage"] = {
                stage.name: sum(
                    world.files[path].size for path in world.matched.get(stage.output, {}) if path in world.files
                )
                for stage in self.order
            }
        return known


async def take_snapshot(
    database: Database, pipeline: Pipeline, before: PipelineSnapshot | None, *, store: bool
) -> PipelineSnapshot:
    """Read a pipeline as it is now. `store` keeps the hashes of files in the database, so that they are read once."""
    await asyncio.to_thread(lambda: [stage.code for stage in pipeline.stages.values()])  # Slow the first time.
    at, began = time.time(), time.perf_counter()
    pipeline_view = PipelineView(database, pipeline)
    if before is not None:  # Files that the database does not know need not be hashed again.
        pipeline_view.world.files = {
            path: FileFact(0, fact.known, fact.content, fact.size)
            for path, fact in before.pipeline_view.world.files.items()
            if fact.known
        }
    await pipeline_view.read_all()
    pipeline_view.require_place()
    await pipeline_view.read_unknown(store=store)
    plan = await asyncio.to_thread(pipeline_view.plan)
    problems = [*pipeline_view.problems, *pipeline_view.notes, *plan.problems]
    return PipelineSnapshot(pipeline_view, plan, problems, at=at, took=time.perf_counter() - began)
