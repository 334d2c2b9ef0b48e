"""Which pipeline, stage or state a text means: PIPELINE, STAGE, STAGE/ENTITY, ENTITY, or the path of an output."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import msgspec

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.ops.pipelines.pipelines import PipelineLine, StageLine
from tidemill.pipelines.definition.pattern import Pattern, entity_id


class PipelineObject(msgspec.Struct, frozen=True):
    """What a text means: a pipeline, a stage of it, a state; or an entity in all its stages."""

    pipeline: str
    stage: str | None = None
    entity: str | None = None

    @property
    def entities(self) -> list[str] | None:
        return None if self.entity is None else [self.entity]


def find_pipeline_object(lines: list[PipelineLine], text: str) -> PipelineObject:
    """What a text means, also with PIPELINE/ before it; a path may begin with the name of a pipeline, too."""
    named = [line for line in lines if text == line.name or text.startswith(f"{line.name}/")]
    if not named:
        return _find_in(_owner(lines, text), text)
    found = _find_in(named[0], text.removeprefix(named[0].name).removeprefix("/"))
    makers = [line for line in lines if any(_makes(stage, text) for stage in line.stages)]
    return found if found.stage is not None or not makers else _find_in(_only(makers, text), text)


def _find_in(owner: PipelineLine, rest: str) -> PipelineObject:
    """What a text without the name of its pipeline means."""
    for stage in owner.stages:
        values = Pattern(stage.output).match(rest)
        if values is not None and all(name in values for name in stage.variables):
            entity = entity_id([values[name] for name in stage.variables]) if stage.variables else ""
            return PipelineObject(owner.name, stage.name, entity)
    name, _, entity = rest.partition("/")
    for stage in owner.stages:
        if stage.name == name:
            return PipelineObject(owner.name, name, entity or None)
    return PipelineObject(owner.name, None, rest or None)


def find_state(lines: list[PipelineLine], text: str) -> tuple[str, str, str]:
    """The pipeline, stage and entity of the state that a text means."""
    meant = find_pipeline_object(lines, text)
    owner = next(line for line in lines if line.name == meant.pipeline)
    if meant.stage is None:
        takers = [stage.name for stage in owner.stages if _takes(stage, meant.entity or text)]
        input = f"{text!r} is an input, of stage {takers[0]}, and" if takers else repr(text)
        raise NotFoundError(
            f"{input} is not a state of pipeline {meant.pipeline}: write the path of an output, or STAGE/ENTITY"
        )
    if meant.entity is None and (variables := next(s.variables for s in owner.stages if s.name == meant.stage)):
        raise NotFoundError(
            f"{text!r} is a stage: write the path of one of its outputs, or {meant.stage}/ENTITY, where the entity is "
            f"its {', '.join(variables)}; `tidemill pipeline plan APP {shlex.quote(meant.pipeline)}` "
            "lists what is not fresh"
        )
    return meant.pipeline, meant.stage, meant.entity or ""


def _owner(lines: list[PipelineLine], text: str) -> PipelineLine:
    """The pipeline that a text belongs to which does not begin with the name of any."""
    tests: tuple[Callable[[PipelineLine], bool], ...] = (
        lambda line: text.partition("/")[0] in [stage.name for stage in line.stages],
        lambda line: any(_makes(stage, text) for stage in line.stages),
        lambda line: any(_takes(stage, text) for stage in line.stages),
        lambda line: len(lines) == 1,
    )
    for test in tests:
        if found := [line for line in lines if test(line)]:
            return _only(found, text)
    known = ", ".join(line.name for line in lines) or "none"
    raise ConfigError(f"{text!r} is of no pipeline; there are: {known}")


def _only(found: list[PipelineLine], text: str) -> PipelineLine:
    if len(found) > 1:
        several = ", ".join(line.name for line in found)
        raise ConfigError(f"{text!r} could be of several pipelines ({several}): write PIPELINE/{text}")
    return found[0]


def _makes(stage: StageLine, path: str) -> bool:
    return Pattern(stage.output).values(path) is not None


def _takes(stage: StageLine, path: str) -> bool:
    return any(Pattern(each).values(path) is not None for each in stage.inputs)
