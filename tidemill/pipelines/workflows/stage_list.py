"""Pipelines as a list of stages: `{"name", "stateRoot", "stages": [{"id", "type", "pattern", "input", "node"}]}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.pipelines.definition.entity import Entity
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.reducer.staleness import BACKOFF
from tidemill.pipelines.runner.build import SKIP, BuildError
from tidemill.pipelines.workflows.expressions.names import credential_names, masked, with_names
from tidemill.pipelines.workflows.graph import as_content
from tidemill.pipelines.workflows.node_graph import check_root, note_conditions, read_store
from tidemill.pipelines.workflows.nodes import NODE_TYPES, TRANSFORMS, Node, find_type, run_node

_NAMED = re.compile(r"\$(?:\?\.|\.)([^\W\d][\w-]*)|\$\[\s*\\?['\"]([^'\"\\]+)")


def read_stages(data: Mapping[str, Any], name: str) -> Pipeline:
    """The pipeline that a list of stages describes."""
    pipeline = Pipeline(
        name,
        root=check_root(data.get("stateRoot") or "."),
        scan_interval=data.get("scanInterval") or 60,
        backoff=_backoff(data.get("retryPolicy") or {}),
        store=read_store(data),
    )
    patterns: dict[str, str] = {}
    most = data.get("maxConcurrentEntities")
    for at, entry in enumerate(data["stages"]):
        place = f"stages[{at}]"
        if not isinstance(entry, Mapping) or not entry.get("id") or not entry.get("pattern"):
            raise ConfigError(f"{place}: a stage has an id and a pattern")
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
    node = stage_node(entry)
    following = then_node(entry)
    by_name = TRANSFORMS.get(node.type)
    if by_name is None:
        find_type(node)
    nodes = [node] if following is None else [node, following]
    text = json.dumps([each.data for each in nodes], sort_keys=True, ensure_ascii=False)
    inputs = {source: input_pattern(patterns[source])}
    read = {found[1] or found[2] for found in _NAMED.finditer(text)}
    inputs |= {name: input_pattern(patterns[name]) for name in patterns if name in read}
    root = None if pipeline.store is not None else pipeline.root
    secrets = credential_names(nodes)

    async def run(entity: Entity, **given: Any) -> Any:
        if by_name is not None:
            made = by_name(entity, given[source], **node.data)
            return await made if hasattr(made, "__await__") else made
        item: dict[str, Any] = {"entity": {**entity.variables, "id": entity.full_id, "path": entity.output_path}}
        for name, value in given.items():
            content = value if isinstance(value, str) else "\n".join(file.text() for file in value)
            item[name] = {"content": content, "path": state_path(patterns[name], entity)}
        with TemporaryDirectory(prefix="tidemill-") as folder:
            output = Path(folder) / PurePosixPath(entity.output_path).name
            async with with_names(secrets, state_root=root, output_path=str(output)) as held:
                made = await run_stage(node, following, item, source)
                if made is SKIP:
                    note_conditions(entity, [node])
                    return SKIP
                made = masked(made, held)
            if "output_path" in text and nodes[-1].type == "run_command":
                if not output.is_file():
                    raise BuildError("the command ended, and has written no file at {{output_path}}")
                return output.read_bytes()
            return made

    code = by_name or tuple(NODE_TYPES[each.type].run for each in nodes if each.type in NODE_TYPES)
    least = (entry.get("validation") or {}).get("minSize")
    try:
        pipeline.stage(
            input=inputs,
            output=str(entry["pattern"]),
            name=id,
            max_concurrency=max_concurrency,
            min_size=1 if least is None else int(least),
            params={"node": json.dumps([part for each in nodes for part in (each.type, each.data)], sort_keys=True)},
            code_of=code,
        )(run)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


async def run_stage(node: Node, following: Node | None, item: dict[str, Any], source: str) -> Any:
    """The content that a stage's node makes for an entity; an `if` passes its input on, or to the node after it."""
    if node.type != "if":
        return await _content(node, item)
    if not (await run_node(node, [item]))[0][1]:
        return SKIP
    return item[source]["content"] if following is None else await _content(following, item)


async def _content(node: Node, item: dict[str, Any]) -> Any:
    made = [as_content(output) for _, output in await run_node(node, [item])]
    return made[0] if len(made) == 1 else made


def stage_node(entry: Mapping[str, Any]) -> Node:
    """The node of a stage."""
    written = entry["node"]
    data = {name: value for name, value in (written.get("data") or {}).items() if name != "then"}
    return Node(str(entry["id"]), str(written["typeId"]), str(entry.get("name") or entry["id"]), data)


def then_node(entry: Mapping[str, Any]) -> Node | None:
    """The node that runs where the condition of a stage's `if` holds."""
    node = entry["node"]
    written = entry.get("then") or node.get("then") or (node.get("data") or {}).get("then")
    if not isinstance(written, Mapping) or node.get("typeId") != "if":
        return None
    if not written.get("typeId"):
        raise ConfigError(f"stage {entry['id']}: `then` is a node with a typeId")
    made = Node(f"{entry['id']}.then", str(written["typeId"]), f"{entry['id']}.then", dict(written.get("data") or {}))
    find_type(made)
    return made


def input_pattern(pattern: str) -> str:
    """The pattern of the states that are read: of a folder, the files in it."""
    return f"{pattern}*" if pattern.endswith("/") else pattern


def state_path(pattern: str, entity: Entity) -> str:
    """The path of a state of an entity, or of the folder of its files."""
    found = Pattern(pattern.rstrip("/"))
    return "" if found.has_glob else found.format(entity.variables)


def _backoff(policy: Mapping[str, Any]) -> tuple[float, ...]:
    """The delays of a retry policy; afterwards a state needs attention."""
    waits = tuple(float(each) for each in policy.get("backoffSeconds") or BACKOFF)
    attempts = policy.get("maxAttempts")
    if attempts is None:
        return waits
    if int(attempts) < 1:
        raise ConfigError(f"retryPolicy.maxAttempts: {attempts} attempts would never build anything")
    return (*waits, *(waits[-1] for _ in range(int(attempts) - len(waits))))[: int(attempts) - 1]
