"""Which states an operation reaches: counted before it is done, and done to exactly those that were counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError, ConflictError, NotFoundError
from tidemill.pipelines.definition.pipeline import Stage
from tidemill.pipelines.reducer.reasons import NeedsApproval
from tidemill.pipelines.runner.running_builds import BuildJobs
from tidemill.pipelines.view.lineage import State, consumers
from tidemill.pipelines.view.snapshot import PipelineSnapshot, check_states

MOST_NAMED = 10_000
SAMPLE = 10


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which states: of a stage or of all, by entity, from `first` to `last`, and those that are one of `states`.

    `downstream` adds all that are made from them, step by step.
    """

    stage: str | None = None
    entities: list[str] | None = None
    first: str | None = None
    last: str | None = None
    states: tuple[str, ...] = ()
    text: str = ""
    downstream: bool = False


class Effect(msgspec.Struct, frozen=True):
    """What an operation would reach, or has reached: how many states, of which stages, and some of them.

    `approvals` are stages of which so many states would be built again that they wait for approval.
    """

    count: int
    stages: dict[str, int]
    sample: list[str]
    approvals: dict[str, int] = {}


async def choose(snapshot: PipelineSnapshot, jobs: BuildJobs, wanted: Selection) -> list[State]:
    """The states that are selected."""
    check_states(wanted.states)
    if (wanted.first is not None or wanted.last is not None) and wanted.stage is None:
        raise ConfigError("name the stage: `first` and `last` are entities of one")
    if "" in (wanted.first, wanted.last):
        raise ConfigError("`first` and `last` are entities: leave out what does not matter")
    if wanted.entities is not None and len(wanted.entities) > MOST_NAMED:
        raise ConfigError(f"{len(wanted.entities):,} entities are too many to name: {MOST_NAMED:,} is the most")
    stages = snapshot.order if wanted.stage is None else [snapshot.stage(wanted.stage)]
    return await asyncio.to_thread(_chosen, snapshot, jobs, wanted, stages)


def effect(snapshot: PipelineSnapshot, states: Sequence[State], *, again: bool = False) -> Effect:
    """What an operation on these states reaches; `again` if they are built again."""
    stages: dict[str, set[str]] = {}
    for stage, entity in states:
        stages.setdefault(stage.name, set()).add(entity)
    return Effect(
        len(states),
        {stage: len(entities) for stage, entities in stages.items()},
        [f"{stage.name}/{entity}" for stage, entity in states[:SAMPLE]],
        _approvals(snapshot, stages) if again else {},
    )


def check_count(expected: int | None, found: int) -> None:
    """Refuse to act on other states than the preview has counted."""
    if expected is not None and expected != found:
        raise ConflictError(f"{found:,} states are selected now, and the preview said {expected:,}: preview again")


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


def by_stage(states: Iterable[State]) -> dict[str, list[str]]:
    """The entities of each stage."""
    found: dict[str, list[str]] = {}
    for stage, entity in states:
        found.setdefault(stage.name, []).append(entity)
    return found


def _chosen(snapshot: PipelineSnapshot, jobs: BuildJobs, wanted: Selection, stages: Sequence[Stage]) -> list[State]:
    found: list[State] = []
    states, text = set(wanted.states), wanted.text.casefold()
    for stage in stages:
        known = snapshot.entities(stage.name)
        entities = list(known) if wanted.entities is None else [each for each in wanted.entities if each in known]
        if wanted.first is not None or wanted.last is not None:
            entities = in_range(stage, entities, wanted.first, wanted.last)
        found += [
            (stage, entity)
            for entity in entities
            if (not text or text in entity.casefold())
            and (not states or snapshot.state_of(stage.name, entity, jobs) in states)
        ]
    if wanted.entities is not None and not found:
        where = f"stage {wanted.stage}" if wanted.stage else f"pipeline {snapshot.pipeline.name}"
        names = ", ".join(map(repr, wanted.entities[:5])) or "no name"
        known = ", ".join(snapshot.pipeline.stages)
        raise NotFoundError(
            f"{where} has no state {names}; the stages are {known}, and a state is STAGE/ENTITY or a path"
        )
    return consumers(snapshot.pipeline_view, found) if wanted.downstream else found


def _approvals(snapshot: PipelineSnapshot, chosen: dict[str, set[str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    now = snapshot.pipeline_view.now()
    for name, entities in chosen.items():
        stage = snapshot.stage(name)
        control = snapshot.pipeline_view.world.controls.get(name)
        above = stage.options.approve_above
        if above is None or (control and control.approved_code == stage.code.total and control.approved_until > now):
            continue
        waiting = {
            entity
            for entity, step in snapshot.not_fresh[name].items()
            if step is not None and isinstance(step.reason, NeedsApproval)
        }
        if len(waiting | entities) > above:
            found[name] = len(waiting | entities)
    return found
