"""A glance at a pipeline: whether everything is as it should be, without a closer look at anything.

What is asked for each state is what `staleness` would ask. Where the answer is not a plain yes for all of them, nothing
is said: a `Lookout` finds out. This is for pipelines of files whose stages make one file from one file; others are
always worth a closer look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.pipelines.definition.pipeline import Plain, Stage
from tidemill.pipelines.stores.base import Survey
from tidemill.store.states.summary import parted

_NOT_PLAIN = Plain("", "", "", "")


def is_plain(stages: Sequence[Stage]) -> bool:
    """Whether a glance can tell anything of these stages."""
    return all(stage.plain is not None and stage.filter is None for stage in stages)


def count_fresh(
    stages: Sequence[Stage], survey: Survey, files: Mapping[str, Any], states: Mapping[str, Mapping[str, Any]]
) -> int | None:
    """How many states there are, if all of them are fresh; None if that cannot be told at a glance."""
    if survey.problems or not states.keys() <= {stage.name for stage in stages}:
        return None
    there, contents = survey.signatures, dict[str, str]()
    made: dict[str, list[str]] = {}
    for stage in stages:
        row = states.get(stage.name)
        if row is None:
            made[stage.name] = []
            continue
        if row["is_mixed"] or row["is_invalid"] or row["code"] != stage.code.total:
            return None
        entities, found = parted(row["entities"], row), parted(row["contents"], row)
        if entities is None or found is None or row["least"] < stage.options.min_size:
            return None
        _, _, before, after = stage.plain or _NOT_PLAIN
        paths = [f"{before}{entity}{after}" for entity in entities]
        if list(map(there.get, paths)) != row["signatures"]:
            return None
        contents.update(zip(paths, found, strict=True))
        made[stage.name] = entities
    if files["count"]:
        paths, found = parted(files["paths"], files), parted(files["contents"], files)
        if paths is None or found is None:
            return None
        known = zip(paths, found, files["signatures"], strict=True)
        contents.update((path, content) for path, content, signature in known if there.get(path) == signature)
    for stage in stages:
        entities = made[stage.name]
        if len(survey.matched[stage.inputs[0].pattern]) != len(entities):
            return None  # One was never built, or its input is gone.
        if not entities:
            continue
        taken = parted(states[stage.name]["inputs"], states[stage.name])
        before, after, _, _ = stage.plain or _NOT_PLAIN
        paths = [f"{before}{entity}{after}" for entity in entities]
        if list(map(contents.get, paths)) != taken:
            return None
    return sum(map(len, made.values()))
