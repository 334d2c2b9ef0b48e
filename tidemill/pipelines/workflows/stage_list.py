"""Pipelines as a list of stages: `{"name", "stateRoot", "stages": [{"id", "type", "pattern", "input", "node"}]}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.definition.pipeline import Entity, Pipeline
from tidemill.pipelines.reducer.staleness import BACKOFF
from tidemill.pipelines.workflows.graph import note_unknown
from tidemill.pipelines.workflows.node_graph import read_store, run_single
from tidemill.pipelines.workflows.nodes import NODE_TYPES, TRANSFORMS, Node, find_type

_NAMED = re.compile(r"\$\.([A-Za-z_][\w-]*)")
STAGE_FIELDS = {"id", "name", "type", "pattern", "input", "node", "validation"}


def read_stages(data: Mapping[str, Any], name: str, notes: list[str]) -> Pipeline:
    """The pipeline that a list of stages describes."""
    pipeline = Pipeline(
        name,
        root=str(data.get("stateRoot") or "."),
        scan_interval=data.get("scanInterval") or 60,
        backoff=_backoff(data.get("retryPolicy") or {}, notes),
        store=read_store(data),
    )
    patterns: dict[str, str] = {}
    most = data.get("maxConcurrentEntities")
    for at, entry in enumerate(data["stages"]):
        place = f"stages[{at}]"
        if not isinstance(entry, Mapping) or not entry.get("id") or not entry.get("pattern"):
            raise ConfigError(f"{place}: a stage has an id and a pattern")
        note_unknown(entry, STAGE_FIELDS, place, notes)
        id = str(entry["id"])
        if id in patterns:
            raise ConfigError(f"{place}: two stages have the id {id!r}")
        kind = entry.get("type") or ("transform" if "node" in entry else "source")
        if kind == "transform":
            _declare(pipeline, entry, patterns, place, None if most is None else int(most))
        elif kind != "source":
            raise ConfigError(f"{place}: type {kind!r} is neither source nor transform")
        patterns[id] = str(entry["pattern"])
        if entry.get("name"):
            patterns.setdefault(str(entry["name"]), str(entry["pattern"]))
    if not pipeline.stages:
        raise ConfigError("no stage of this pipeline is a transform: it would make nothing")
    return pipeline


def _declare(
    pipeline: Pipeline, entry: Mapping[str, Any], patterns: Mapping[str, str], place: str, max_concurrency: int | None
) -> None:
    id, source = str(entry["id"]), str(entry.get("input") or "")
    if source not in patterns:
        known = ", ".join(patterns) or "none"
        raise ConfigError(f"{place}.input: there is no stage {source!r} before this one; there are: {known}")
    written = entry.get("node")
    if not isinstance(written, Mapping) or not written.get("typeId"):
        raise ConfigError(f"{place}.node: a transform has a node with a typeId")
    node = Node(id, str(written["typeId"]), str(entry.get("name") or id), dict(written.get("data") or {}))
    by_name = TRANSFORMS.get(node.type)
    if by_name is None:
        find_type(node)
    text = json.dumps(node.data, sort_keys=True)
    inputs = {source: patterns[source]}
    inputs |= {name: patterns[name] for name in _NAMED.findall(text) if name in patterns}

    async def run(entity: Entity, **given: Any) -> Any:
        if by_name is not None:
            made = by_name(entity, given[source], **node.data)
            return await made if hasattr(made, "__await__") else made
        about = {**entity.variables, "id": entity.id, "path": entity.path}
        item: dict[str, Any] = {"entity": about}
        for name, value in given.items():
            content = value if isinstance(value, str) else "\n".join(file.text() for file in value)
            item[name] = {"content": content, "path": _path(patterns[name], entity)}
        return await run_single(node, item)

    code = by_name or (NODE_TYPES[node.type].run if node.type in NODE_TYPES else ())
    pipeline.stage(
        input=inputs,
        output=str(entry["pattern"]),
        name=id,
        max_concurrency=max_concurrency,
        min_size=int((entry.get("validation") or {}).get("minSize") or 0),
        params={"node": json.dumps([node.type, node.data], sort_keys=True)},
        code_of=code,
    )(run)


def _path(pattern: str, entity: Entity) -> str:
    found = Pattern(pattern)
    return "" if found.has_glob else found.format(entity.variables)


def _backoff(policy: Mapping[str, Any], notes: list[str]) -> tuple[float, ...]:
    """The delays of a retry policy; afterwards a state needs attention."""
    note_unknown(policy, {"maxAttempts", "backoffSeconds"}, "retryPolicy", notes)
    waits = tuple(float(each) for each in policy.get("backoffSeconds") or BACKOFF)
    attempts = policy.get("maxAttempts")
    if attempts is None:
        return waits
    if int(attempts) < 1:
        raise ConfigError(f"retryPolicy.maxAttempts: {attempts} attempts would never build anything")
    return (*waits, *(waits[-1] for _ in range(int(attempts))))[: int(attempts) - 1]
