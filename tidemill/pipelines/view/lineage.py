"""What a state is made from, and what is made from it: within a pipeline, and in others that share its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidemill.core.expressions.paths import RefError
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.definition.pipeline import Pipeline, Stage, share_place
from tidemill.pipelines.reducer.facts import Paths, entities_of, touched_entities
from tidemill.pipelines.reducer.staleness import input_pairs
from tidemill.pipelines.view.pipeline_view import PipelineView

State = tuple[Stage, str]


def consumers(pipeline_view: PipelineView, states: Iterable[State]) -> list[State]:
    """These states and all that were made from them, step by step."""
    taken: dict[tuple[str, str], State] = {}
    paths: set[str] = set()
    wanted = {(stage.name, entity) for stage, entity in states}
    for stage in pipeline_view.order:
        for entity, groups in _taken(stage, _matched(pipeline_view, stage)):
            if (stage.name, entity) in wanted or any(path in paths for group in groups for path in group):
                taken[stage.name, entity] = (stage, entity)
                paths.update(output_paths(pipeline_view, stage, entity))
    for stage, entity in states:
        taken.setdefault((stage.name, entity), (stage, entity))
    return list(taken.values())


def affected_states(
    views: Mapping[str, PipelineView], order: Sequence[Stage], changed: Stage | None, path: str | None
) -> list[tuple[Stage, list[str]]]:
    """The states of all pipelines that would be built if a stage's code or a file changed, by stage.

    `order` are the stages of all pipelines, each after those that it takes from.
    """
    paths = set() if path is None else {path}
    found: list[tuple[Stage, list[str]]] = []
    for stage in order:
        view = views[stage.pipeline.name]
        matched = {
            pattern: {**there, **dict.fromkeys(each for each in paths if pattern.values(each) is not None)}
            for pattern, there in _matched(view, stage).items()
        }
        entities = [
            entity
            for entity, groups in _taken(stage, matched)
            if stage is changed or any(each in paths for group in groups for each in group)
        ]
        if path is not None and stage.output.values(path) is not None:
            entities = [each for each in entities if path in output_paths(view, stage, each)] or entities
        for entity in entities:
            paths.update(output_paths(view, stage, entity))
        if entities:
            found.append((stage, entities))
    return found


def _taken(stage: Stage, matched: Mapping[Pattern, Iterable[str]]) -> Iterator[tuple[str, Paths]]:
    """The entities that a stage's inputs form, without those that its filter leaves out."""
    for entity, groups in entities_of(stage, matched):
        try:
            if stage.takes(entity, sum(map(len, groups))):
                yield entity, groups
        except RefError:
            continue


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
    """All that a state is made from, step by step: states as STAGE/ENTITY, and paths that no stage makes."""
    found: dict[str, None] = {}
    todo = [(stage, entity)]
    while todo:
        for path in input_paths(pipeline_view, *todo.pop()):
            maker = pipeline_view.maker(path)
            name = path if maker is None else f"{maker[0].name}/{maker[1]}"
            if name not in found:
                found[name] = None
                todo += [] if maker is None else [maker]
    return list(found)


def taken_elsewhere(pipelines: Iterable[Pipeline], own: Pipeline, paths: Iterable[str]) -> list[str]:
    """The states of other pipelines that are made from these paths, as PIPELINE/STAGE/ENTITY."""
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
