"""Why a state that a stage could make does not exist: a missing input, a filter, or a stage before it."""

from __future__ import annotations

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.pipelines.definition.pattern import derive, entity_id
from tidemill.pipelines.definition.pipeline import Input, Stage, makers
from tidemill.pipelines.reducer.facts import expected_path
from tidemill.pipelines.view.snapshot import PipelineSnapshot

MOST_STEPS = 10


def why_absent(snapshot: PipelineSnapshot, stage: Stage, entity: str) -> list[str]:
    """Why there is no such state, in sentences; an error if the stage could never make it."""
    try:
        variables = stage.variables_of(entity)
        path = "" if stage.scatter else stage.output_path(variables)
    except ConfigError as error:
        raise NotFoundError(
            f"stage {stage.name} of pipeline {snapshot.pipeline.name} makes no {entity!r}: {error}"
        ) from error
    lines = [f"There is no such state: stage {stage.name} would make {path or 'it'} from its inputs."]
    missing = [one for one in stage.inputs if not _exists(snapshot, one, variables)]
    for one in missing:
        lines += _why_missing(snapshot, stage, one, variables, steps=MOST_STEPS)
    if not missing and stage.filter is not None:
        lines.append(f"Its inputs exist, and its filter leaves it out: {stage.options.filter}.")
    elif not missing:
        lines.append("Its inputs exist now: it is built when the pipeline is next brought up to date.")
    return lines


def _exists(snapshot: PipelineSnapshot, one: Input, variables: dict[str, str]) -> bool:
    """Whether an input of an entity exists."""
    wanted = {name: variables[name] for name in one.key if name in variables}
    for path in snapshot.pipeline_view.world.matched.get(one.pattern, {}):
        found = one.pattern.match(path)
        if found is not None and all(derive(name, found) == value for name, value in wanted.items()):
            return True
    return False


def _why_missing(
    snapshot: PipelineSnapshot, stage: Stage, one: Input, variables: dict[str, str], *, steps: int
) -> list[str]:
    """Why an input does not exist: no stage makes it, or the stage that does has not."""
    path = expected_path(one.pattern, variables)
    what = f"Its input {one.name} " if one.name and not one.name.isdigit() else "Its input "
    for maker in makers(stage, snapshot.order):
        if maker is stage or not one.pattern.overlaps(maker.output):
            continue
        values = {name: derive(name, variables) for name in maker.variables}
        if any(value is None for value in values.values()):
            return [f"{what}{path} does not exist: stage {maker.name} makes it."]
        id = entity_id([value or "" for value in values.values()]) if values else ""
        state = snapshot.state_of(maker.name, id, {})
        step = snapshot.not_fresh[maker.name].get(id)
        if state is not None and step is not None:
            return [f"{what}{path} does not exist: {maker.name}/{id} is {state}, because {step.reason}."]
        lines = [f"{what}{path} does not exist: stage {maker.name} makes it, and has not."]
        known = {name: value for name, value in values.items() if value is not None}
        missing = [each for each in maker.inputs if not _exists(snapshot, each, known)]
        if not missing and maker.filter is not None:
            return [
                f"{what}{path} does not exist: the filter of stage {maker.name} leaves it out: {maker.options.filter}."
            ]
        for each in missing if steps else ():
            lines += _why_missing(snapshot, maker, each, known, steps=steps - 1)
        return lines
    return [f"{what}{path} does not exist, and no stage of this pipeline makes it."]
