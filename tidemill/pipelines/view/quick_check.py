"""A quick check of a pipeline: whether all states are fresh, from summaries alone.

It applies the rules of `staleness` to all states at once. If one of them may be out of date, it gives no answer and the
caller reads a `PipelineView`. It works for pipelines of files whose stages make one file from one file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.pipelines.definition.pipeline import Plain, Stage
from tidemill.pipelines.stores.base import Scan
from tidemill.store.states.summary import split_joined

_NOT_PLAIN = Plain("", "", "", "")


def is_plain(stages: Sequence[Stage]) -> bool:
    """Whether the quick check works for these stages."""
    return all(stage.plain is not None and stage.filter is None for stage in stages)


def count_fresh(
    stages: Sequence[Stage], scan: Scan, files: Mapping[str, Any], states: Mapping[str, Mapping[str, Any]]
) -> int | None:
    """The number of states if all of them are fresh; None if the quick check cannot decide."""
    if scan.problems or not states.keys() <= {stage.name for stage in stages}:
        return None
    there, contents = scan.signatures, dict[str, str]()
    made: dict[str, list[str]] = {}
    for stage in stages:
        row = states.get(stage.name)
        if row is None:
            made[stage.name] = []
            continue
        if row["is_mixed"] or row["is_invalid"] or row["code"] != stage.code.total:
            return None
        entities, found = split_joined(row["entities"], row), split_joined(row["contents"], row)
        if entities is None or found is None or row["least"] < stage.options.min_size:
            return None
        _, _, before, after = stage.plain or _NOT_PLAIN
        paths = [f"{before}{entity}{after}" for entity in entities]
        if list(map(there.get, paths)) != row["signatures"]:
            return None
        contents.update(zip(paths, found, strict=True))
        made[stage.name] = entities
    if files["count"]:
        paths, found = split_joined(files["paths"], files), split_joined(files["contents"], files)
        if paths is None or found is None:
            return None
        known = zip(paths, found, files["signatures"], strict=True)
        contents.update((path, content) for path, content, signature in known if there.get(path) == signature)
    for stage in stages:
        entities = made[stage.name]
        if len(scan.matched[stage.inputs[0].pattern]) != len(entities):
            return None  # One was never built, or its input is gone.
        if not entities:
            continue
        taken = split_joined(states[stage.name]["inputs"], states[stage.name])
        before, after, _, _ = stage.plain or _NOT_PLAIN
        paths = [f"{before}{entity}{after}" for entity in entities]
        if list(map(contents.get, paths)) != taken:
            return None
    return sum(map(len, made.values()))
