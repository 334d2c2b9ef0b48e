"""Why a state that a stage could make does not exist: a missing input, a filter, or a stage before it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.expressions.paths import RefError
from tidemill.pipelines.definition.pattern import PatternError, derive, entity_id
from tidemill.pipelines.definition.pipeline import Input, Pipeline, Stage, makers, share_place
from tidemill.pipelines.reducer.facts import expected_path
from tidemill.pipelines.reducer.plan import LONGEST, BuildStep
from tidemill.pipelines.view.snapshot import PipelineSnapshot

MOST_STEPS = 10


def why_absent(snapshot: PipelineSnapshot, stage: Stage, entity: str, pipelines: Iterable[Pipeline]) -> list[str]:
    """Why there is no such state, in sentences; an error if the stage could never make it.

    `pipelines` are all that may make its inputs.
    """
    try:
        variables = stage.variables_of(entity)
        path = "" if stage.scatter else stage.output_path(variables)
    except ConfigError as error:
        raise NotFoundError(
            f"stage {stage.name} of pipeline {snapshot.pipeline.name} makes no {entity!r}: {error}"
        ) from error
    pipeline = snapshot.pipeline
    where = f" in {pipeline.root}" if pipeline.store is None else ""
    lines = [f"There is no such state{where}: stage {stage.name} would make {path or 'it'} from its inputs."]
    for one in stage.inputs:
        if unfit := _why_unfit(one, variables):
            return [*lines, unfit]
    missing = why_inputs_missing(snapshot, stage, variables, pipelines)
    if not missing and (filtered := _why_filtered(snapshot, stage, entity, variables)):
        return [*lines, f"Its inputs exist, and {filtered}."]
    if not missing and len(entity.encode()) > LONGEST:
        return [*lines, f"Its name has more than {LONGEST:,} bytes, which no state may have: use a shorter one."]
    return [
        *lines,
        *(missing or ["Its inputs exist now: it is built when the pipeline is next brought up to date."]),
    ]


def why_inputs_missing(
    snapshot: PipelineSnapshot, stage: Stage, variables: Mapping[str, str], pipelines: Iterable[Pipeline]
) -> list[str]:
    """Why inputs of a state do not exist."""
    others = [each for each in pipelines if each is not snapshot.pipeline and share_place(each, snapshot.pipeline)]
    lines: dict[str, None] = {}
    for one in stage.inputs:
        if not _found(snapshot, one, variables):
            lines |= dict.fromkeys(_why_missing(snapshot, stage, one, variables, others, steps=MOST_STEPS))
    return list(lines)


def _found(snapshot: PipelineSnapshot, one: Input, variables: Mapping[str, str]) -> list[str]:
    """The paths of an input of an entity, of which not all variables may be known."""
    return [
        path
        for path in snapshot.pipeline_view.world.matched.get(one.pattern, {})
        if (found := one.pattern.match(path)) is not None and _agree(variables, found)
    ]


def _agree(some: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether variables have the same values, as far as both say, also of parts of dates."""
    return all(
        derive(name, those) in (None, value)
        for these, those in ((some, others), (others, some))
        for name, value in these.items()
    )


def _why_unfit(one: Input, variables: Mapping[str, str]) -> str | None:
    """Why an input of this name is never taken: a part of it is not what its pattern asks for."""
    if one.pattern.has_glob or not set(one.pattern.variables) <= set(variables):
        return None
    try:
        one.pattern.format(variables)
    except PatternError as error:
        return f"It would take {expected_path(one.pattern, variables)}, which does not fit its input {error}."
    return None


def _why_filtered(snapshot: PipelineSnapshot, stage: Stage, entity: str, variables: Mapping[str, str]) -> str | None:
    """Whether the filter of a stage leaves an entity out whose inputs exist."""
    try:
        if stage.filter is None or stage.takes(
            entity, sum(len(_found(snapshot, one, variables)) for one in stage.inputs)
        ):
            return None
    except RefError as error:
        return f"the filter of stage {stage.name} cannot be evaluated for it: {error}"
    return f"the filter of stage {stage.name} leaves it out: {stage.options.filter}"


def _why_missing(
    snapshot: PipelineSnapshot,
    stage: Stage,
    one: Input,
    variables: Mapping[str, str],
    others: Iterable[Pipeline],
    *,
    steps: int,
) -> list[str]:
    """Why an input does not exist: no stage makes it, or the stage that does has not."""
    path = expected_path(one.pattern, variables)
    what = f"Its input {one.name} " if one.name and not one.name.isdigit() else "Its input "
    what = f"{what}{path} does not exist{_of_parts(one, variables)}"
    for maker in makers(stage, snapshot.order):
        if maker is stage or not one.pattern.overlaps(maker.output):
            continue
        known = maker.output.match(path) if "*" not in path else None
        if known is None:
            names = (*maker.variables, *variables)
            known = {name: value for name in names if (value := derive(name, variables)) is not None}
        if (step := _step_of(snapshot, maker, known)) is not None:
            id = f"{maker.name}/{step.entity}" if step.entity else maker.name
            return [f"{what}: {id} is {snapshot.state_of(maker.name, step.entity, {})}, because {step.reason}."]
        missing = [each for each in maker.inputs if not _found(snapshot, each, known)]
        if not missing and (why := _why_none(snapshot, maker, known)):
            return [f"{what}: {why}."]
        lines = [f"{what}: stage {maker.name} makes it, and has not."]
        for each in missing if steps else ():
            lines += _why_missing(snapshot, maker, each, known, others, steps=steps - 1)
        return lines
    for other in others:
        for maker in other.stages.values():
            if "*" not in path and maker.output.match(path) is not None:
                explain = f"`tidemill explain {shlex.quote(path)}` says more"
                return [f"{what}: stage {other.name}/{maker.name} makes it; {explain}."]
    write = "" if "*" in path else f": `tidemill pipeline write APP {shlex.quote(path)}` writes it"
    return [f"{what}, and no stage of this pipeline makes it{write}."]


def _of_parts(one: Input, variables: Mapping[str, str]) -> str:
    """The parts of dates that files of an input must have, which its pattern does not name."""
    parts = [
        name for name in variables if name not in one.pattern.variables and name.split(".")[0] in one.pattern.kinds
    ]
    return f" for {', '.join(f'{name}={variables[name]}' for name in parts)}" if parts else ""


def _why_none(snapshot: PipelineSnapshot, maker: Stage, known: Mapping[str, str]) -> str | None:
    """Why a stage has made no output of these variables, of which there may be more, though its inputs exist."""
    if all(name in known for name in maker.variables):
        entities = [known]
    else:
        patterns = [one.pattern for one in maker.inputs if set(maker.variables) <= set(one.pattern.variables)]
        found = [pattern.match(path) for pattern in patterns for path in snapshot.pipeline_view.world.matched[pattern]]
        entities = [values for values in found if values is not None and _agree(known, values)]
    by_id = {entity_id([each[name] for name in maker.variables]) if maker.variables else "": each for each in entities}
    filtered = [_why_filtered(snapshot, maker, id, each) for id, each in by_id.items()]
    if filtered and filtered[0] is not None and None not in filtered:
        return (
            filtered[0]
            if len(filtered) == 1
            else filtered[0].replace(" leaves it out", f" leaves out all {len(filtered)}")
        )
    records = snapshot.pipeline_view.world.records[maker.name]
    for id in by_id:
        if (record := records.get(id)) is not None and record.is_nothing:
            explain = f"`tidemill explain {state_word(maker, id)}` says why"
            return f"stage {maker.name} makes nothing of {id}; {explain}"
    return None


def state_word(stage: Stage, entity: str) -> str:
    """A state as a word of a command line."""
    return shlex.quote(f"{stage.pipeline.name}/{stage.name}/{entity}".removesuffix("/"))


def _step_of(snapshot: PipelineSnapshot, stage: Stage, known: Mapping[str, str]) -> BuildStep | None:
    """A state of a stage that is not fresh and has these variables, of which there may be more."""
    for entity, step in snapshot.not_fresh[stage.name].items():
        if step is not None and _agree(known, stage.variables_of(entity)):
            return step
    return None
