"""What operators do to states: find them, follow them up and down, have them built again, clean up after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.pipelines.definition.pattern import entity_id
from tidemill.pipelines.definition.pipeline import Pipeline, Stage, makers, share_place
from tidemill.pipelines.reducer.facts import entities_of, touched_entities
from tidemill.pipelines.reducer.plan import BuildPlan, BuildStep
from tidemill.pipelines.reducer.reasons import Reason
from tidemill.pipelines.reducer.staleness import NOTHING, input_pairs
from tidemill.pipelines.runner.running_builds import BuildJob, BuildJobs, builds_under_way
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.store.states import states as rows
from tidemill.store.states.history import list_builds, show_failure, show_state
from tidemill.store.states.requests import invalidate_states

State = tuple[Stage, str]


def find_state(pipeline: Pipeline, target: str) -> State:
    """The state that is meant: by its path, or as STAGE/ENTITY or PIPELINE/STAGE/ENTITY."""
    for stage in pipeline.stages.values():
        found = stage.output.match(target)
        if found is not None and not stage.scatter and all(name in found for name in stage.variables):
            return stage, entity_id([found[name] for name in stage.variables]) if stage.variables else ""
    rest = target.removeprefix(f"{pipeline.name}/")
    name, _, entity = rest.partition("/")
    if name in pipeline.stages and (entity or not pipeline.stages[name].variables):
        return pipeline.stages[name], entity
    stages = ", ".join(pipeline.stages)
    raise NotFoundError(
        f"{target!r} is no state of pipeline {pipeline.name}: write the path of an output, or STAGE/ENTITY; "
        f"its stages: {stages}"
    )


def select(pipeline_view: PipelineView, target: str | None) -> list[State]:
    """All states that are meant: one, all of an entity, all of a stage, or all there are."""
    pipeline, records = pipeline_view.pipeline, pipeline_view.world.records
    every = [(stage, entity) for stage in pipeline_view.order for entity in sorted(records[stage.name])]
    if target is None or target == pipeline.name:
        return every
    rest = target.removeprefix(f"{pipeline.name}/")
    if rest in pipeline.stages:
        return [state for state in every if state[0].name == rest]
    chosen = [state for state in every if state[1] == rest]
    if chosen:
        return chosen
    return [find_state(pipeline, target)]


def consumers(pipeline_view: PipelineView, states: Iterable[State]) -> list[State]:
    """These states and all that were made from them, step by step."""
    taken: dict[tuple[str, str], State] = {}
    paths: set[str] = set()
    wanted = {(stage.name, entity) for stage, entity in states}
    for stage in pipeline_view.order:
        for entity, groups in entities_of(stage, _matched(pipeline_view, stage)):
            if (stage.name, entity) in wanted or any(path in paths for group in groups for path in group):
                taken[stage.name, entity] = (stage, entity)
                paths.update(output_paths(pipeline_view, stage, entity))
    for stage, entity in states:
        taken.setdefault((stage.name, entity), (stage, entity))
    return list(taken.values())


def output_paths(pipeline_view: PipelineView, stage: Stage, entity: str) -> list[str]:
    """The outputs of a state."""
    if not stage.scatter:
        return [stage.quick_path(entity)]
    record = pipeline_view.world.records[stage.name].get(entity)
    return [] if record is None else list(input_pairs(record.content))


def input_paths(pipeline_view: PipelineView, stage: Stage, entity: str) -> list[str]:
    """The inputs of a state as they are now."""
    for found, groups in entities_of(stage, _matched(pipeline_view, stage)):
        if found == entity:
            return [path for group in groups for path in group]
    return []


def sources(pipeline_view: PipelineView, stage: Stage, entity: str) -> list[str]:
    """All that a state is made from, step by step: states as STAGE/ENTITY, and paths that nobody here makes."""
    found: dict[str, None] = {}
    todo = [(stage, entity)]
    while todo:
        for path in input_paths(pipeline_view, *todo.pop()):
            maker = pipeline_view.maker(path)
            name = path if maker is None else f"{maker[0].name}/{maker[1]}"
            if name not in found:
                found[name] = None
                todo += [maker] if maker is not None and not maker[0].scatter else []
    return list(found)


def taken_elsewhere(pipelines: Iterable[Pipeline], own: Pipeline, paths: Iterable[str]) -> list[str]:
    """The states of other pipelines that take these paths, as PIPELINE/STAGE/ENTITY."""
    found: set[str] = set()
    wanted = list(paths)
    for other in pipelines:
        if other is own or not share_place(other, own):
            continue
        for stage in other.stages.values():
            entities = touched_entities(stage, wanted)
            found |= {f"{other.name}/{stage.name}/{entity}" for entity in (["*"] if entities is None else entities)}
    return sorted(found)


def _matched(pipeline_view: PipelineView, stage: Stage) -> Any:
    return {one.pattern: pipeline_view.world.matched.get(one.pattern, {}) for one in stage.inputs}


async def invalidate(pipeline_view: PipelineView, states: Sequence[State], *, by: str) -> int:
    """Have states built again."""
    by_stage: dict[str, list[str]] = {}
    for stage, entity in states:
        by_stage.setdefault(stage.name, []).append(entity)
    total = 0
    for stage, entities in by_stage.items():
        total += await invalidate_states(pipeline_view.database, pipeline_view.pipeline.name, stage, entities, by=by)
    return total


def in_range(stage: Stage, entities: Iterable[str], first: str | None, last: str | None) -> list[str]:
    """The entities between two, both included, in the order of their first variable."""
    whole = stage.inputs[0].pattern.kinds.get(stage.variables[0] if stage.variables else "", "str") == "int"

    def order(entity: str) -> Any:
        value = entity.partition("/")[0]
        return int(value) if whole else value

    try:
        low, high = (None if first is None else order(first)), (None if last is None else order(last))
    except ValueError as error:
        raise ConfigError(f"stage {stage.name} counts its entities by numbers: {error}") from error
    found = [
        entity
        for entity in entities
        if (low is None or order(entity) >= low) and (high is None or order(entity) <= high)
    ]
    return sorted(found, key=order)


async def clean(pipeline_view: PipelineView, plan: BuildPlan, *, how: str | None = None) -> dict[str, list[str]]:
    """Deal with outputs whose inputs are gone, as each stage wants or as is said here; returns what was done."""
    done: dict[str, list[str]] = {"keep": [], "archive": [], "delete": []}
    forgotten: dict[str, list[str]] = {}
    for stage, entity in plan.orphans:
        act = how or stage.options.on_orphan
        paths = output_paths(pipeline_view, stage, entity)
        done[act] += paths
        if act == "keep":
            continue
        await (pipeline_view.states.archive(paths) if act == "archive" else pipeline_view.states.remove(paths))
        forgotten.setdefault(stage.name, []).append(entity)
    for stage, entities in forgotten.items():
        await rows.forget_states(pipeline_view.database, pipeline_view.pipeline.name, stage, entities)
    return done


class StateStory(msgspec.Struct):
    """Everything that is known of one state."""

    pipeline: str
    stage: str
    entity: str
    paths: list[str]
    status: str
    reason: Reason | None
    told: str
    code: str
    code_now: str
    parts: dict[str, str]
    inputs: dict[str, str]
    made_by: dict[str, str]
    made_from: list[str]  # all of it, down to what nobody here makes
    taken_by: list[str]
    built_at: Any
    took: float | None
    built_by: str | None
    failure: dict[str, Any] | None
    builds: list[dict[str, Any]]


async def explain(
    pipeline_view: PipelineView, plan: BuildPlan, stage: Stage, entity: str, *, others: Iterable[Pipeline] = ()
) -> StateStory:
    """The whole story of a state; `others` are pipelines that may take from it."""
    database, name = pipeline_view.database, pipeline_view.pipeline.name
    row = await show_state(database, name, stage.name, entity)
    step = next((s for s in plan.steps if s.stage is stage and s.entity == entity), None)
    orphan = any(found is stage and id == entity for found, id in plan.orphans)
    inputs = input_paths(pipeline_view, stage, entity)
    if row is None and step is None and not inputs:
        raise NotFoundError(f"stage {stage.name} has no entity {entity!r}: it has no inputs and was never built")
    outputs = output_paths(pipeline_view, stage, entity)
    above = makers(stage, pipeline_view.order)
    failure = await show_failure(database, name, stage.name, entity)
    builds = await list_builds(database, name, stage.name, entity, limit=20)
    under_way = await builds_under_way(database, pipeline_view.pipeline, [stage])
    taken = [f"{s.name}/{e}" for s, e in consumers(pipeline_view, [(stage, entity)]) if (s, e) != (stage, entity)]
    told = "it is as it should be" if row is None or row["content"] != NOTHING else "its stage makes nothing of it"
    return StateStory(
        pipeline=name,
        stage=stage.name,
        entity=entity,
        paths=outputs,
        status=status_of(step, orphan, job=under_way.get((stage.name, entity))),
        reason=None if step is None else step.reason,
        told="its inputs are gone" if orphan else told if step is None else str(step.reason),
        code="" if row is None else row["code"],
        code_now=stage.code.total,
        parts=stage.code.parts,
        inputs={path: pipeline_view.world.content(path) or "" for path in inputs},
        made_by={path: maker.name for path in inputs for maker in above if maker.output.values(path) is not None},
        made_from=sources(pipeline_view, stage, entity),
        taken_by=[*sorted(taken), *taken_elsewhere(others, pipeline_view.pipeline, outputs)],
        built_at=None if row is None else row["built_at"],
        took=None if row is None else row["took"],
        built_by=None if row is None else row["built_by"],
        failure=failure,
        builds=[dict(build) for build in builds],
    )


def status_of(step: BuildStep | None, orphan: bool = False, *, job: BuildJob | None = None) -> str:
    """A state's condition in a word."""
    if job is not None and job.state == "running":
        return "building"
    if step is None:
        return "orphan" if orphan else "fresh"
    if step.is_build:
        return "stale"
    return {
        "Blocked": "waiting", "BackingOff": "failed", "NeedsAttention": "needs_attention", "Paused": "paused",
        "NeedsApproval": "needs approval",
    }[type(step.reason).__name__]  # fmt: skip


def counts(
    pipeline_view: PipelineView, plan: BuildPlan, under_way: BuildJobs | None = None
) -> dict[str, dict[str, int]]:
    """How many states of each stage are in which condition; `under_way` are builds that wait or run."""
    table: dict[str, dict[str, int]] = {}
    for stage in pipeline_view.order:
        table[stage.name] = {"fresh": plan.fresh.get(stage.name, 0)}
    for step in plan.steps:
        job = (under_way or {}).get((step.stage.name, step.entity))
        row, word = table[step.stage.name], status_of(step, job=job)
        row[word] = row.get(word, 0) + 1
    for stage, _ in plan.orphans:
        table[stage.name]["orphan"] = table[stage.name].get("orphan", 0) + 1
    return table


def usage(pipeline_view: PipelineView) -> dict[str, int]:
    """How many bytes the states of each stage take."""
    files = pipeline_view.world.files
    return {
        stage.name: sum(files[path].size for path in pipeline_view.world.matched.get(stage.output, {}) if path in files)
        for stage in pipeline_view.order
    }
