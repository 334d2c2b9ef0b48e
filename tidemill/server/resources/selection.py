"""Which states an action means, and what it would do: counted before it is done, and done to what was counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.pipelines.definition.pipeline import Stage
from tidemill.pipelines.reducer.reasons import NeedsApproval
from tidemill.pipelines.runner import operate
from tidemill.pipelines.runner.running_builds import BuildJobs
from tidemill.server.problems import Refused
from tidemill.server.resources.pipeline_cache import STANDINGS, PipelineRead

MOST_NAMED = 10_000
SAMPLE = 10

State = tuple[Stage, str]


class StatesWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which states: of a stage or of all, by the names of their entities, from `first` to `last`, by how they stand.

    What is not said does not matter; `downstream` adds all that are made from them, step by step.
    """

    stage: str | None = None
    entities: list[str] | None = None
    first: str | None = None
    last: str | None = None
    standings: list[str] = []
    text: str = ""
    downstream: bool = False


class Effect(msgspec.Struct, frozen=True):
    """What an action would reach, or has reached: how many states, of which stages, and some of them.

    `approvals` are stages of which so many states would be built again that they wait until somebody approves.
    """

    count: int
    stages: dict[str, int]
    sample: list[str]
    approvals: dict[str, int] = {}


async def choose(look: PipelineRead, jobs: BuildJobs, wanted: StatesWanted) -> list[State]:
    """The states that are meant."""
    for standing in wanted.standings:
        if standing not in STANDINGS:
            raise ConfigError(f"no state is {standing!r}; a state is {', '.join(STANDINGS)}")
    if (wanted.first is not None or wanted.last is not None) and wanted.stage is None:
        raise ConfigError("say of which stage: `first` and `last` are entities of one")
    if wanted.entities is not None and len(wanted.entities) > MOST_NAMED:
        raise ConfigError(f"{len(wanted.entities):,} entities are too many to name: {MOST_NAMED:,} is the most")
    stages = look.pipeline_view.order if wanted.stage is None else [look.stage(wanted.stage)]
    return await asyncio.to_thread(_chosen, look, jobs, wanted, stages)


def effect(look: PipelineRead, states: Sequence[State], *, again: bool = False) -> Effect:
    """What an action on these states reaches; `again` if it has them built again."""
    stages: dict[str, set[str]] = {}
    for stage, entity in states:
        stages.setdefault(stage.name, set()).add(entity)
    return Effect(
        len(states),
        {stage: len(entities) for stage, entities in stages.items()},
        [f"{stage.name}/{entity}" for stage, entity in states[:SAMPLE]],
        _approvals(look, stages) if again else {},
    )


def check_count(said: int | None, found: int) -> None:
    """Refuse to act on others than somebody has looked at."""
    if said is not None and said != found:
        raise Refused(409, f"{found:,} states are meant now, and the preview said {said:,}: look again")


def by_stage(states: Iterable[State]) -> dict[str, list[str]]:
    """The entities of each stage."""
    found: dict[str, list[str]] = {}
    for stage, entity in states:
        found.setdefault(stage.name, []).append(entity)
    return found


def _chosen(look: PipelineRead, jobs: BuildJobs, wanted: StatesWanted, stages: Sequence[Stage]) -> list[State]:
    found: list[State] = []
    standings, text = set(wanted.standings), wanted.text.casefold()
    for stage in stages:
        known = look.entities(stage.name)
        entities = list(known) if wanted.entities is None else [each for each in wanted.entities if each in known]
        if wanted.first is not None or wanted.last is not None:
            entities = operate.in_range(stage, entities, wanted.first, wanted.last)
        found += [
            (stage, entity)
            for entity in entities
            if (not text or text in entity.casefold())
            and (not standings or look.standing(stage.name, entity, jobs) in standings)
        ]
    if wanted.entities is not None and not found:
        where = f"stage {wanted.stage}" if wanted.stage else f"pipeline {look.pipeline.name}"
        raise NotFoundError(f"{where} has no state of {', '.join(wanted.entities[:5]) or 'no entity at all'}")
    return operate.consumers(look.pipeline_view, found) if wanted.downstream else found


def _approvals(look: PipelineRead, chosen: dict[str, set[str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    now = look.pipeline_view.now()
    for name, entities in chosen.items():
        stage = look.stage(name)
        control = look.pipeline_view.world.controls.get(name)
        above = stage.options.approve_above
        if above is None or (control and control.approved_code == stage.code.total and control.approved_until > now):
            continue
        waiting = {
            entity
            for entity, step in look.amiss[name].items()
            if step is not None and isinstance(step.reason, NeedsApproval)
        }
        if len(waiting | entities) > above:
            found[name] = len(waiting | entities)
    return found
