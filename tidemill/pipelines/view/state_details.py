"""Everything about one state: why it is fresh or not, what it is made from, what is made from it, how builds went."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from tidemill.pipelines.definition.pattern import PatternError, derive, entity_id
from tidemill.pipelines.definition.pipeline import Pipeline, Stage, makers
from tidemill.pipelines.reducer.facts import Paths, entities_of
from tidemill.pipelines.reducer.reasons import kind_of_reason
from tidemill.pipelines.reducer.staleness import input_pairs
from tidemill.pipelines.runner.running_builds import BuildJob, BuildJobs
from tidemill.pipelines.view.explain import explain_state
from tidemill.pipelines.view.lineage import consumers, output_paths, sources, taken_elsewhere
from tidemill.pipelines.view.snapshot import PipelineSnapshot
from tidemill.store.database import Database
from tidemill.store.states.history import list_builds, show_failure, show_state

MOST_BUILDS = 20
MOST_SHOWN = 200


class StateRef(msgspec.Struct, frozen=True):
    """A state by its name, and whether it is fresh, stale, failed and so on."""

    stage: str
    entity: str
    state: str | None


class OutputFile(msgspec.Struct, frozen=True):
    """A file that holds a state; without a size if it does not exist."""

    path: str
    size: int | None


class InputFile(msgspec.Struct, frozen=True):
    """An input of a state. `content` is its current hash, `changed` whether it differs from that at the build."""

    path: str
    size: int | None
    content: str | None
    changed: bool
    made_by: StateRef | None


class Code(msgspec.Struct, frozen=True):
    """The code that built a state, and the stage's current code with its parts."""

    built: str | None
    now: str
    parts: dict[str, str]
    changed: list[str]


class StateFailure(msgspec.Struct, frozen=True):
    """How the last build failed; without `retry_at` it is not retried by itself."""

    attempts: int
    error: str
    log: str
    first_at: datetime
    failed_at: datetime
    retry_at: datetime | None


class Build(msgspec.Struct, frozen=True):
    """One build of a state. `outcome` is built, same (as before), failed, adopted or finished (for another)."""

    pipeline: str
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


class StateDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one state. `taken_by` are the first of `takers` states that are made from it directly."""

    pipeline: str
    stage: str
    entity: str
    variables: dict[str, str]
    state: str
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
    made_from: list[str] = []
    """If asked for: all that it is made from, step by step, as STAGE/ENTITY or the path of a source."""
    followed_by: list[str] = []
    """If asked for: all that is made from it, step by step, as STAGE/ENTITY, or PIPELINE/STAGE/ENTITY elsewhere."""


async def describe_state(
    database: Database,
    snapshot: PipelineSnapshot,
    jobs: BuildJobs,
    stage: Stage,
    entity: str,
    *,
    kept: bool,
    pipelines: Iterable[Pipeline],
    follow: bool,
) -> StateDetails:
    """Everything about one state; `follow` follows its inputs and outputs, also through other `pipelines`."""
    state = snapshot.state_of(stage.name, entity, jobs)
    pipeline_view, name = snapshot.pipeline_view, snapshot.pipeline.name
    builds = await list_builds(database, name, stage.name, entity, limit=MOST_BUILDS)
    why = await explain_state(
        database, snapshot, jobs, stage, entity,
        kept=kept, log=builds[0]["log"] if builds else None, pipelines=pipelines,
    )  # fmt: skip
    row = await show_state(database, name, stage.name, entity)
    failure = await show_failure(database, name, stage.name, entity)
    groups = await inputs_of(snapshot, stage, entity)
    takers = await takers_of(snapshot, stage, entity)
    outputs = output_paths(pipeline_view, stage, entity)
    record = pipeline_view.world.records[stage.name].get(entity)
    step = snapshot.not_fresh[stage.name].get(entity)
    job = jobs.get((stage.name, entity))
    built = bool(row and row["content"])
    return StateDetails(
        pipeline=name,
        stage=stage.name,
        entity=entity,
        variables=dict(stage.entity(entity).variables),
        state=state or "absent",
        reason=None if step is None else kind_of_reason(step.reason),
        why=why,
        outputs=[OutputFile(path, _size(snapshot, path)) for path in outputs[:MOST_SHOWN]],
        inputs=[
            InputFile(path, _size(snapshot, path), content, changed, _maker(snapshot, stage, path, jobs))
            for path, content, changed in _inputs(snapshot, stage, groups, None if record is None else record.inputs)
        ],
        taken_by=[
            StateRef(taker.name, id, snapshot.state_of(taker.name, id, jobs)) for taker, id in takers[:MOST_SHOWN]
        ],
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
        looked_at=snapshot.looked_at,
        made_from=[] if not follow else await asyncio.to_thread(sources, pipeline_view, stage, entity),
        followed_by=[] if not follow else await asyncio.to_thread(_followers, snapshot, stage, entity, pipelines),
    )


def _followers(snapshot: PipelineSnapshot, stage: Stage, entity: str, pipelines: Iterable[Pipeline]) -> list[str]:
    view = snapshot.pipeline_view
    found = [
        f"{each.name}/{id}" if id else each.name
        for each, id in consumers(view, [(stage, entity)])
        if (each, id) != (stage, entity)
    ]
    return [*sorted(found), *taken_elsewhere(pipelines, snapshot.pipeline, output_paths(view, stage, entity))]


def build_of(row: Any) -> Build:
    """A build from its row."""
    return Build(**{name: row[name] for name in Build.__struct_fields__})


async def inputs_of(snapshot: PipelineSnapshot, stage: Stage, entity: str) -> Paths:
    """The paths of a state's inputs as they are now, by input."""
    step = snapshot.not_fresh[stage.name].get(entity)
    if step is not None:
        return step.paths
    there = {one.pattern: snapshot.pipeline_view.world.matched.get(one.pattern, {}) for one in stage.inputs}
    first = stage.inputs[0]
    if not stage.named and set(first.key) == set(stage.variables):
        try:
            path = first.pattern.format(stage.entity(entity).variables)
        except PatternError:
            return ()
        return ((path,),) if path in there[first.pattern] else ()
    known = snapshot.computed.get(("inputs", stage.name))
    if known is None:
        known = await asyncio.to_thread(lambda: dict(entities_of(stage, there)))
        snapshot.computed["inputs", stage.name] = known
    return known.get(entity, ())


async def takers_of(snapshot: PipelineSnapshot, stage: Stage, entity: str) -> list[tuple[Stage, str]]:
    """The states that are made from a state directly."""
    outputs = output_paths(snapshot.pipeline_view, stage, entity)
    found: dict[tuple[str, str], tuple[Stage, str]] = {}
    for taker in snapshot.order:
        if stage not in makers(taker, [stage]):
            continue
        for one in taker.inputs:
            matches = [values for path in outputs if (values := one.pattern.match(path)) is not None]
            if not matches:
                continue
            if set(one.key) == set(taker.variables):
                ids = [_id(taker, values) for values in matches]
            else:
                ids = [id for id in snapshot.entities(taker.name) if await _takes(snapshot, taker, id, set(outputs))]
            for id in ids:
                if id in snapshot.entities(taker.name):
                    found[taker.name, id] = (taker, id)
    return list(found.values())


async def _takes(snapshot: PipelineSnapshot, taker: Stage, id: str, outputs: set[str]) -> bool:
    return any(path in outputs for group in await inputs_of(snapshot, taker, id) for path in group)


def _id(stage: Stage, values: dict[str, str]) -> str:
    found = [derive(name, values) or "" for name in stage.variables]
    return entity_id(found) if found else ""


def _inputs(
    snapshot: PipelineSnapshot, stage: Stage, groups: Paths, before: str | None
) -> list[tuple[str, str | None, bool]]:
    """Each input's path, its current content, and whether that differs from the content at the build."""
    known = None if not before else input_pairs(before) if stage.named else {"": before}
    found: list[tuple[str, str | None, bool]] = []
    for path in list(dict.fromkeys(path for group in groups for path in group))[:MOST_SHOWN]:
        content = snapshot.pipeline_view.world.content(path)
        was = None if known is None else known.get(path if stage.named else "")
        found.append((path, content, known is not None and was != content))
    return found


def _maker(snapshot: PipelineSnapshot, stage: Stage, path: str, jobs: BuildJobs) -> StateRef | None:
    for maker in makers(stage, snapshot.order):
        values = maker.output.match(path)
        if values is None or maker is stage:
            continue
        id = _id(maker, values) if not maker.scatter and all(name in values for name in maker.variables) else None
        if id is None:  # One of the many that it makes: the entity is what of the path is not its own choice.
            left = [values.get(name) for name in maker.variables]
            id = entity_id([value or "" for value in left]) if None not in left and left else ""
        return StateRef(maker.name, id, snapshot.state_of(maker.name, id, jobs))
    return None


def _size(snapshot: PipelineSnapshot, path: str) -> int | None:
    fact = snapshot.pipeline_view.world.files.get(path)
    return None if fact is None else fact.size
