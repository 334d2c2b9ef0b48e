"""The grid of a pipeline's states: entities down, stages across, in pages. Pure: a snapshot in, rows out.

Stages whose entities have the same variables share a grid: `{date}` for the days, `{date.month}` for the months.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.pipelines.definition.pipeline import Stage
from tidemill.pipelines.runner.running_builds import BuildJobs
from tidemill.pipelines.view.snapshot import PipelineSnapshot, check_states

MOST_LISTS = 40
#: The grid of stages whose entities have no variables; no variable has this name.
NO_VARIABLES = "*"


class Rows(msgspec.Struct, frozen=True):
    """Which rows to show; empty is all. A row is shown if any of its states in `stages` is one of `states`."""

    by: str
    states: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    text: str = ""

    def validate(self) -> Rows:
        check_states(self.states)
        return self


def groups(snapshot: PipelineSnapshot) -> dict[str, list[Stage]]:
    """The stages that share a grid, by the variables of their entities."""
    found: dict[str, list[Stage]] = {}
    for stage in snapshot.order:
        found.setdefault("/".join(stage.variables) or NO_VARIABLES, []).append(stage)
    return found


def group(snapshot: PipelineSnapshot, by: str | None) -> tuple[str, list[Stage]]:
    """The stages of one grid; of the first if none is named."""
    every = groups(snapshot)
    if by is None:
        return next(iter(every.items()))
    if by not in every:
        known = ", ".join(repr(each) for each in every)
        raise NotFoundError(
            f"no stage of pipeline {snapshot.pipeline.name} has its states by {by!r}; there are: {known}"
        )
    return by, every[by]


def all_rows(snapshot: PipelineSnapshot, by: str) -> list[str]:
    """The entities of a grid, in order."""
    known = snapshot.computed.get(("rows", by))
    if known is None:
        stages = groups(snapshot)[by]
        found: dict[str, None] = {}
        for stage in stages:
            found |= snapshot.entities(stage.name)
        known = snapshot.computed["rows", by] = sorted(found, key=order_of(stages[0]))
    return known


def matching(snapshot: PipelineSnapshot, rows: Rows, jobs: BuildJobs) -> list[str]:
    """The entities to show, in order."""
    if not rows.states and not rows.text:
        return all_rows(snapshot, rows.by)
    key = ("matching", rows)
    live = "building" in rows.states or bool(jobs)
    if not live and key in snapshot.computed:
        return snapshot.computed[key]
    stages = [stage.name for stage in groups(snapshot)[rows.by] if not rows.stages or stage.name in rows.stages]
    candidates = all_rows(snapshot, rows.by)
    if rows.states and "fresh" not in rows.states:
        few = {entity for stage in stages for entity in snapshot.not_fresh[stage]} | {entity for _, entity in jobs}
        candidates = sorted(few & set(candidates), key=order_of(groups(snapshot)[rows.by][0]))
    wanted, text = set(rows.states), rows.text.casefold()
    found = [
        entity
        for entity in candidates
        if (not text or text in entity.casefold())
        and (not wanted or any(snapshot.state_of(stage, entity, jobs) in wanted for stage in stages))
    ]
    if not live:
        if len(snapshot.computed) > MOST_LISTS:
            for old in [each for each in snapshot.computed if each[0] == "matching"]:
                del snapshot.computed[old]
        snapshot.computed[key] = found
    return found


def page_of(
    entities: Sequence[str], order: Callable[[str], Any], *, after: str | None, limit: int, down: bool
) -> tuple[list[str], int]:
    """Some of these entities after one, and how many come before them; `down` begins with the last."""
    if down:
        end = len(entities) if after is None else bisect_left(entities, order(after), key=order)
        return list(reversed(entities[max(0, end - limit) : end])), len(entities) - end
    first = 0 if after is None else bisect_right(entities, order(after), key=order)
    return list(entities[first : first + limit]), first


def order_of(stage: Stage) -> Callable[[str], Any]:
    """What entities are sorted by: numbers as numbers, all else as text."""
    kinds: dict[str, str] = {}
    for one in stage.inputs:
        kinds |= one.pattern.kinds
    numbers = [kinds.get(name) == "int" for name in stage.variables]
    if not any(numbers):
        return _itself

    def order(entity: str) -> Any:
        try:
            values = stage.variables_of(entity).values()
        except ConfigError:
            return [(1, entity)]
        return [_number(value) if number else (1, value) for value, number in zip(values, numbers, strict=True)]

    return order


def known_stages(snapshot: PipelineSnapshot, by: str, names: Collection[str]) -> list[str]:
    """The columns to show, in order; all of the grid if none is named."""
    for name in names:
        snapshot.stage(name)
    return [stage.name for stage in groups(snapshot)[by] if not names or stage.name in names]


def _itself(entity: str) -> str:
    return entity


def _number(value: str) -> tuple[int, Any]:
    try:
        return 0, int(value)
    except ValueError:
        return 1, value
