"""The story of one state: why it is as it is, what it was made from, who takes it, how each build went."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import msgspec

from tidemill.core.errors import NotFoundError
from tidemill.pipelines.definition.pattern import PatternError, derive, entity_id
from tidemill.pipelines.definition.pipeline import Stage, makers
from tidemill.pipelines.reducer.facts import Paths, entities_of
from tidemill.pipelines.reducer.reasons import kind_of_reason
from tidemill.pipelines.reducer.staleness import input_pairs
from tidemill.pipelines.runner import operate
from tidemill.pipelines.runner.running_builds import BuildJob, BuildJobs
from tidemill.server.resources.pipeline_cache import PipelineRead
from tidemill.store.database import Database
from tidemill.store.states.history import list_builds, show_failure, show_state

MOST_BUILDS = 20
MOST_SHOWN = 200


class StateRef(msgspec.Struct, frozen=True):
    """A state by its name, and how it stands."""

    stage: str
    entity: str
    standing: str | None


class OutputFile(msgspec.Struct, frozen=True):
    """What a state is kept in; no size if it is not there."""

    path: str
    size: int | None


class InputFile(msgspec.Struct, frozen=True):
    """What a state is made from. `content` is its hash as it is now, `changed` whether it was another at the build."""

    path: str
    size: int | None
    content: str | None
    changed: bool
    made_by: StateRef | None


class Code(msgspec.Struct, frozen=True):
    """The code that built a state, and the stage's code of now with what that is made of."""

    built: str | None
    now: str
    parts: dict[str, str]
    changed: list[str]


class StateFailure(msgspec.Struct, frozen=True):
    """How the last build went wrong; without `retry_at` it is not tried again by itself."""

    attempts: int
    error: str
    log: str
    first_at: datetime
    failed_at: datetime
    retry_at: datetime | None


class Build(msgspec.Struct, frozen=True):
    """One build of a state. `outcome` is built, same (as before), failed, adopted or finished (for another)."""

    at: datetime
    stage: str
    entity: str
    outcome: str
    took: float | None
    size: int | None
    code: str
    content: str
    built_by: str | None
    reason: str | None
    log: str | None


class StateStory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of one state. Of `taken_by`, the first are told; `takers` is how many there are."""

    pipeline: str
    stage: str
    entity: str
    variables: dict[str, str]
    standing: str
    reason: str | None
    why: list[str]
    outputs: list[OutputFile]
    inputs: list[InputFile]
    taken_by: list[StateRef]
    takers: int
    code: Code
    size: int | None
    version: int
    built_at: datetime | None
    took: float | None
    built_by: str | None
    failure: StateFailure | None
    job: BuildJob | None
    builds: list[Build]
    looked_at: datetime


async def tell(
    database: Database, look: PipelineRead, jobs: BuildJobs, stage: Stage, entity: str, *, kept: bool
) -> StateStory:
    """The whole story of a state."""
    standing = look.standing(stage.name, entity, jobs)
    if standing is None:
        raise NotFoundError(
            f"stage {stage.name} of pipeline {look.pipeline.name} has no entity {entity!r}: it has no inputs, and was "
            "never built"
        )
    pipeline_view, name = look.pipeline_view, look.pipeline.name
    row = await show_state(database, name, stage.name, entity)
    failure = await show_failure(database, name, stage.name, entity)
    builds = await list_builds(database, name, stage.name, entity, limit=MOST_BUILDS)
    groups = await inputs_of(look, stage, entity)
    takers = await takers_of(look, stage, entity)
    outputs = operate.output_paths(pipeline_view, stage, entity)
    record = pipeline_view.world.records[stage.name].get(entity)
    step = look.amiss[stage.name].get(entity)
    job = jobs.get((stage.name, entity))
    built = bool(row and row["content"])
    return StateStory(
        pipeline=name,
        stage=stage.name,
        entity=entity,
        variables=dict(stage.entity(entity).variables),
        standing=standing,
        reason=None if step is None else kind_of_reason(step.reason),
        why=_why(look, stage, entity, job, kept),
        outputs=[OutputFile(path, _size(look, path)) for path in outputs[:MOST_SHOWN]],
        inputs=[
            InputFile(path, _size(look, path), content, changed, _maker(look, stage, path, jobs))
            for path, content, changed in _inputs(look, stage, groups, None if record is None else record.inputs)
        ],
        taken_by=[StateRef(taker.name, id, look.standing(taker.name, id, jobs)) for taker, id in takers[:MOST_SHOWN]],
        takers=len(takers),
        code=Code(
            row["code"] if row and row["code"] else None,
            stage.code.total,
            stage.code.parts,
            list(getattr(step and step.reason, "parts", ())),
        ),
        size=row["size"] if row and built else None,
        version=row["version"] if row else 0,
        built_at=row["built_at"] if row else None,
        took=row["took"] if row else None,
        built_by=row["built_by"] if row else None,
        failure=None if failure is None else msgspec.convert(failure, StateFailure),
        job=job,
        builds=[build_of(each) for each in builds],
        looked_at=look.looked_at,
    )


def build_of(row: Any) -> Build:
    """A build as the API tells it."""
    return Build(**{name: row[name] for name in Build.__struct_fields__})


async def inputs_of(look: PipelineRead, stage: Stage, entity: str) -> Paths:
    """The paths of a state's inputs as they are now, by input."""
    step = look.amiss[stage.name].get(entity)
    if step is not None:
        return step.paths
    there = {one.pattern: look.pipeline_view.world.matched.get(one.pattern, {}) for one in stage.inputs}
    first = stage.inputs[0]
    if not stage.named and set(first.key) == set(stage.variables):
        try:
            path = first.pattern.format(stage.entity(entity).variables)
        except PatternError:
            return ()
        return ((path,),) if path in there[first.pattern] else ()
    known = look.lists.get(("inputs", stage.name))
    if known is None:
        known = look.lists["inputs", stage.name] = await asyncio.to_thread(lambda: dict(entities_of(stage, there)))
    return known.get(entity, ())


async def takers_of(look: PipelineRead, stage: Stage, entity: str) -> list[tuple[Stage, str]]:
    """The states that are made from a state, at once and not by way of others."""
    outputs = operate.output_paths(look.pipeline_view, stage, entity)
    found: dict[tuple[str, str], tuple[Stage, str]] = {}
    for taker in look.pipeline_view.order:
        if stage not in makers(taker, [stage]):
            continue
        for one in taker.inputs:
            matches = [values for path in outputs if (values := one.pattern.match(path)) is not None]
            if not matches:
                continue
            if set(one.key) == set(taker.variables):
                ids = [_id(taker, values) for values in matches]
            else:
                ids = [id for id in look.entities(taker.name) if await _takes(look, taker, id, set(outputs))]
            for id in ids:
                if id in look.entities(taker.name):
                    found[taker.name, id] = (taker, id)
    return list(found.values())


async def _takes(look: PipelineRead, taker: Stage, id: str, outputs: set[str]) -> bool:
    return any(path in outputs for group in await inputs_of(look, taker, id) for path in group)


def _id(stage: Stage, values: dict[str, str]) -> str:
    found = [derive(name, values) or "" for name in stage.variables]
    return entity_id(found) if found else ""


def _inputs(look: PipelineRead, stage: Stage, groups: Paths, before: str | None) -> list[tuple[str, str | None, bool]]:
    """Each input's path, its content as it is now, and whether it was another when the state was built."""
    known = None if not before else input_pairs(before) if stage.named else {"": before}
    found: list[tuple[str, str | None, bool]] = []
    for path in [path for group in groups for path in group][:MOST_SHOWN]:
        content = look.pipeline_view.world.content(path)
        was = None if known is None else known.get(path if stage.named else "")
        found.append((path, content, known is not None and was != content))
    return found


def _maker(look: PipelineRead, stage: Stage, path: str, jobs: BuildJobs) -> StateRef | None:
    for maker in makers(stage, look.pipeline_view.order):
        values = maker.output.match(path)
        if values is None or maker is stage:
            continue
        id = _id(maker, values) if not maker.scatter and all(name in values for name in maker.variables) else None
        if id is None:  # One of the many that it makes: the entity is what of the path is not its own choice.
            left = [values.get(name) for name in maker.variables]
            id = entity_id([value or "" for value in left]) if all(left) and left else ""
        return StateRef(maker.name, id, look.standing(maker.name, id, jobs))
    return None


def _size(look: PipelineRead, path: str) -> int | None:
    fact = look.pipeline_view.world.files.get(path)
    return None if fact is None else fact.size


def _why(look: PipelineRead, stage: Stage, entity: str, job: BuildJob | None, kept: bool) -> list[str]:
    """Why a state is as it is, in sentences."""
    amiss = look.amiss[stage.name]
    record = look.pipeline_view.world.records[stage.name].get(entity)
    if entity not in amiss and record is not None and record.is_nothing:
        return ["Its stage makes nothing of it, and it is as it should be."]
    if entity not in amiss:
        return ["It is as it should be: made by the code of now, from what its inputs are now."]
    step = amiss[entity]
    if step is None:
        return ["Its inputs are gone: nothing makes it any more, and it is kept until somebody cleans up."]
    told = str(step.reason)
    lines = [f"{told[0].upper()}{told[1:]}."]
    if job is not None and job.state == "running":
        by = "in the process that keeps the pipeline" if job.id is None else f"job {job.id}"
        lines.append(f"It is being built now: {by}.")
    elif job is not None:
        lines.append(f"Its build waits in queue {job.queue}: job {job.id}.")
    elif step.is_build and not kept:
        lines.append("Nobody keeps this pipeline up to date now: start `tidemill up`, or `tidemill pipeline run`.")
    return lines
