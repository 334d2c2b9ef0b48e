"""All problems of a workflow file, each with its path in the document: for editors and people.

The loader stops at the first error. Here all nodes, fields, expressions and connections are checked; a document without
problems is also passed to the loader, so that nothing is reported as valid that would not load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.expressions.paths import Path
from tidemill.core.jobs.job import check_name
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.workflows.checks.check_data import (
    data_problems,
    expression_problems,
    setting_problems,
    template_problems,
)
from tidemill.pipelines.workflows.checks.kinds import (
    AGENT_FIELDS,
    FILE,
    LINK_FIELDS,
    NODE_FIELDS,
    NOT_OF_PIPELINES,
    REFUSED,
    STAGE,
    STAGE_FIELDS,
    STAGE_NODE_FIELDS,
    STAGED,
    is_known,
    kinds,
)
from tidemill.pipelines.workflows.checks.problem import WorkflowProblem
from tidemill.pipelines.workflows.nodes import NODE_TYPES, TRANSFORMS
from tidemill.pipelines.workflows.read import Loaded, has_states, read_workflow

MOST_NODES = 1000

#: What editors call the one way out of a node, and the one way in.
_OUT = re.compile(r"(out|output|outputs|source|main|default|result|results|items?|data|right|bottom|next)([-_:]?\d+)?")
_IN = re.compile(r"(in|input|inputs|target|main|default|items?|data|left|top|trigger)([-_:]?\d+)?")
_EXITS = ("true", "false")
_PLACE = re.compile(r"^((?:nodes|stages|connections)\[\d+\](?:\.\w+)*|(?:retryPolicy|settings)(?:\.\w+)*): ")
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_NAMED = re.compile(rf"node ({_QUOTED})(?:, field '([^']*)')?")
_HEAD = re.compile(rf"^node {_QUOTED}(?:, field '[^']*')?: ")


class Examined(msgspec.Struct, frozen=True):
    """The problems of a document, and what it declares if it can be used."""

    problems: list[WorkflowProblem]
    loaded: Loaded | None = None


def examine(data: Any, name: str, *, allow_unknown: bool = False) -> Examined:
    """All problems of a document, with notes on what has no effect, and its declarations."""
    if not isinstance(data, Mapping):
        return Examined([WorkflowProblem((), "a workflow is an object with nodes, or with stages")])
    found = [*_file_problems(data), *(_stage_problems(data) if "stages" in data else _graph_problems(data))]
    if any(each.is_error(allow_unknown=allow_unknown) for each in found):
        return Examined(found)
    problems, loaded = _read(data, name, allow_unknown=allow_unknown)
    return Examined(found + problems, loaded)


def find_problems(data: Any, name: str) -> list[WorkflowProblem]:
    """All problems of a document, and notes on what has no effect."""
    return examine(data, name).problems


def _file_problems(data: Mapping[str, Any]) -> Iterator[WorkflowProblem]:
    known = STAGED if "stages" in data else FILE
    yield from setting_problems(data, known)
    for field in ("nodes", "connections", "stages"):
        if data.get(field) is not None and not isinstance(data[field], list):
            yield WorkflowProblem((field,), f"{field} are a list")
    yield from _unknown(data, (*known, "stages" if "stages" in data else "nodes", "connections"), ())
    for field in ("settings", "retryPolicy"):
        if field in known:
            yield from _unknown(data.get(field), known[field]["properties"], (field,))


def _unknown(data: Any, known: Iterable[str], place: Path) -> Iterator[WorkflowProblem]:
    if isinstance(data, Mapping):
        for field in data:
            if field not in known:
                message = f"the field {field!r} is not understood{did_you_mean(field, known)}"
                yield WorkflowProblem((*place, str(field)), message, "unknown")


# -- graphs ---------------------------------------------------------------------------------------


def _graph_problems(data: Mapping[str, Any]) -> Iterator[WorkflowProblem]:
    nodes, links = _list(data, "nodes"), _list(data, "connections")
    if not nodes:
        yield WorkflowProblem(("nodes",) if "nodes" in data else (), "a workflow has at least one node")
        return
    if len(nodes) > MOST_NODES:
        yield WorkflowProblem(
            ("nodes",), f"{len(nodes):,} nodes are more than {MOST_NODES:,}: make several files of it"
        )
        return
    is_pipeline = (data.get("mode") or ("pipeline" if has_states(data) else "trigger")) == "pipeline"
    ids: dict[str, int] = {}
    names: dict[str, int] = {}
    for at, node in enumerate(nodes):
        yield from _entry_problems(node, at, ids, names)
    sound = len(ids) == len(nodes)
    above: dict[str, list[str]] = {id: [] for id in ids}
    for at, link in enumerate(links):
        for problem in _link_problems(link, at, above, nodes, ids):
            sound = sound and problem.severity != "error"
            yield problem
    circle = _circle(above) if sound else None
    if circle:
        path = " -> ".join(_name(nodes[ids[id]]) for id in circle)
        yield WorkflowProblem(("nodes", ids[circle[0]]), f"these nodes form a cycle: {path}")
    for id, at in ids.items():
        # With unclear connections, any node may come before any other.
        before = {_name(nodes[ids[each]]) for each in _all_above(id, above)} if sound and not circle else set(names)
        yield from _node_problems(nodes[at], ("nodes", at), before, is_pipeline=is_pipeline)


def _entry_problems(node: Any, at: int, ids: dict[str, int], names: dict[str, int]) -> Iterator[WorkflowProblem]:
    """Check the id and name of a node."""
    place: Path = ("nodes", at)
    if not isinstance(node, Mapping):
        yield WorkflowProblem(place, "a node is an object with an id and a typeId")
        return
    id, name = node.get("id"), _name(node)
    for field in ("id", "typeId"):
        if not isinstance(node.get(field), str) or not node[field]:
            yield WorkflowProblem(
                (*place, field) if field in node else place,
                f"a node has {'an id' if field == 'id' else 'a typeId'}, which is a text",
            )
    if isinstance(id, str) and id in ids:
        yield WorkflowProblem((*place, "id"), f"two nodes have the id {id!r}")
    elif isinstance(id, str) and id:
        ids[id] = at
    if name in names:
        yield WorkflowProblem((*place, "name"), f"two nodes are called {name!r}")
    names.setdefault(name, at)
    agent = node.get("agentConfig")
    for field in ("data", "agentConfig"):
        if node.get(field) is not None and not isinstance(node[field], Mapping):
            yield WorkflowProblem((*place, field), f"{field} is an object, or is left out")
    yield from _unknown(node, NODE_FIELDS, place)
    yield from _unknown(agent, AGENT_FIELDS, (*place, "agentConfig"))
    if not isinstance(agent, Mapping):
        return
    if agent.get("tags") is not None and not isinstance(agent["tags"], list):
        yield WorkflowProblem((*place, "agentConfig", "tags"), "tags are a list")
    if agent.get("concurrencyGroup") is not None and not isinstance(agent["concurrencyGroup"], str):
        yield WorkflowProblem((*place, "agentConfig", "concurrencyGroup"), "this is a text: the name of a group")


def _link_problems(
    link: Any, at: int, above: dict[str, list[str]], nodes: list[Any], ids: Mapping[str, int]
) -> Iterator[WorkflowProblem]:
    place: Path = ("connections", at)
    if not isinstance(link, Mapping):
        yield WorkflowProblem(place, "a connection is an object with a sourceNodeId and a targetNodeId")
        return
    yield from _unknown(link, LINK_FIELDS, place)
    ends = [link.get("sourceNodeId"), link.get("targetNodeId")]
    for field, end in zip(("sourceNodeId", "targetNodeId"), ends, strict=True):
        if field not in link:
            yield WorkflowProblem(place, f"the {field} is missing: the id of a node")
        elif not isinstance(end, str) or end not in above:
            yield WorkflowProblem((*place, field), f"there is no node {end!r}{did_you_mean(end, above)}")
    if any(not isinstance(end, str) or end not in above for end in ends):
        return
    source, target = str(ends[0]), str(ends[1])
    above[target].append(source)
    node = nodes[ids[source]]
    type = node.get("typeId") if isinstance(node, Mapping) else None
    if not isinstance(type, str) or not is_known(type):
        return  # The problem is reported at the node, and its type alone would know its connectors.
    is_if = type == "if"
    for field, known in (("sourceConnectorId", _OUT), ("targetConnectorId", _IN)):
        connector = str(link.get(field) or "")
        found = known.fullmatch(connector.lower())
        is_second = (
            is_if and found is not None and field == "sourceConnectorId" and (found[2] or "0").strip("-_:") != "0"
        )
        if not connector or (found is not None and not is_second):
            continue
        if field == "sourceConnectorId" and connector in _EXITS and is_if:
            continue
        of = "an if has true and false" if is_if and field == "sourceConnectorId" else "leave it out"
        yield WorkflowProblem((*place, field), f"the connector {connector!r} is not understood: {of}", "unknown")


def _circle(above: Mapping[str, list[str]]) -> list[str] | None:
    """The nodes of a cycle, if there is one."""
    try:
        TopologicalSorter(above).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def _all_above(id: str, above: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(above[id])
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += above[each]
    return found


def _node_problems(
    node: Mapping[str, Any], place: Path, before: set[str], *, is_pipeline: bool
) -> Iterator[WorkflowProblem]:
    type, data = node.get("typeId"), node.get("data") or {}
    if not isinstance(type, str) or not type or not isinstance(data, Mapping):
        return
    if not is_known(type):
        yield _unknown_type(type, [kind.type for kind in kinds()], place)
        return
    if type not in NODE_TYPES and not is_pipeline:
        yield WorkflowProblem((*place, "typeId"), f"{type} is about states: it needs the mode pipeline")
        return
    if is_pipeline and type in NOT_OF_PIPELINES:
        yield WorkflowProblem((*place, "typeId"), NOT_OF_PIPELINES[type])
    yield from data_problems(type, data, (*place, "data"))
    yield from template_problems(type, data, (*place, "data"))
    roots = {*before, "items", "entity" if is_pipeline else "payload"}
    yield from expression_problems(type, data, (*place, "data"), roots)


def _unknown_type(type: str, known: Iterable[str], place: Path) -> WorkflowProblem:
    if type in REFUSED:
        return WorkflowProblem((*place, "typeId"), f"{type} is not available: {REFUSED[type]}", "unknown")
    message = f"there is no type {type!r}{did_you_mean(type, known)}; declare your own with @node_type({type!r})"
    return WorkflowProblem((*place, "typeId"), message, "unknown")


# -- stages ---------------------------------------------------------------------------------------


def _stage_problems(data: Mapping[str, Any]) -> Iterator[WorkflowProblem]:
    stages = _list(data, "stages")
    if not stages:
        yield WorkflowProblem(("stages",), "a pipeline has at least one stage")
    if len(stages) > MOST_NODES:
        yield WorkflowProblem(
            ("stages",), f"{len(stages):,} stages are more than {MOST_NODES:,}: make several files of it"
        )
        return
    before: set[str] = set()
    for at, stage in enumerate(stages):
        place: Path = ("stages", at)
        if not isinstance(stage, Mapping):
            yield WorkflowProblem(place, "a stage is an object with an id and a pattern")
            continue
        yield from _one_stage(stage, place, before)
        before |= {str(stage[field]) for field in ("id", "name") if stage.get(field)}


def _one_stage(stage: Mapping[str, Any], place: Path, before: set[str]) -> Iterator[WorkflowProblem]:
    for field, message in (("id", "a stage has an id"), ("pattern", "a stage has a pattern: input/{id}.txt")):
        if not isinstance(stage.get(field), str) or not stage[field]:
            yield WorkflowProblem((*place, field) if field in stage else place, message)
        else:
            yield from _misnamed(stage[field], (*place, field))
    if isinstance(stage.get("id"), str) and stage["id"] in before:
        yield WorkflowProblem((*place, "id"), f"two stages are called {stage['id']!r}")
    yield from _unknown(stage, STAGE_FIELDS, place)
    yield from _unknown(stage.get("validation"), STAGE["validation"]["properties"], (*place, "validation"))
    yield from setting_problems(stage, {field: STAGE[field] for field in ("validation", "description")}, place)
    node = stage.get("node")
    kind = stage.get("type") or ("transform" if "node" in stage else "source")
    if kind == "source":
        for field in ("input", "node", "then"):
            if stage.get(field) not in (None, "", {}):
                yield WorkflowProblem((*place, field), f"a source is made from nothing: it has no {field}", "unknown")
        if stage.get("validation"):
            yield WorkflowProblem((*place, "validation"), "this has no effect: a source is not made here", "note")
        return
    if kind != "transform":
        yield WorkflowProblem((*place, "type"), f"{kind!r} is neither source nor transform")
        return
    source = stage.get("input")
    if not source:
        yield WorkflowProblem(place, "a transform has an input: the stage that it is made from")
    elif str(source) not in before:
        yield WorkflowProblem(
            (*place, "input"), f"there is no stage {source!r} before this one{did_you_mean(source, before)}"
        )
    if not isinstance(node, Mapping) or not isinstance(node.get("typeId"), str):
        yield WorkflowProblem((*place, "node") if "node" in stage else place, "a transform has a node with a typeId")
        return
    roots = {*before, "entity", "items"}
    yield from _stage_node(node, (*place, "node"), roots)
    thens = [(part, where) for part, where in _thens(stage, place) if part is not None]
    for then, where in thens:
        if node["typeId"] != "if":
            yield WorkflowProblem(where, "only an if has a `then`")
        elif not isinstance(then, Mapping) or not isinstance(then.get("typeId"), str):
            yield WorkflowProblem(where, "`then` is a node with a typeId")
        else:
            yield from _stage_node(then, where, roots)


def _misnamed(text: str, place: Path) -> Iterator[WorkflowProblem]:
    """Check a stage's id or pattern."""
    try:
        if place[-1] == "id":
            check_name("stage", text)
        else:
            Pattern(text.rstrip("/"))
    except ConfigError as error:
        yield WorkflowProblem(place, str(error))


def _thens(stage: Mapping[str, Any], place: Path) -> Iterator[tuple[Any, Path]]:
    """The places at which the node after an `if` may stand."""
    node = stage["node"]
    yield stage.get("then"), (*place, "then")
    yield node.get("then"), (*place, "node", "then")
    if isinstance(node.get("data"), Mapping):
        yield node["data"].get("then"), (*place, "node", "data", "then")


def _stage_node(node: Mapping[str, Any], place: Path, roots: set[str]) -> Iterator[WorkflowProblem]:
    yield from _unknown(node, STAGE_NODE_FIELDS, place)
    type, data, where = str(node["typeId"]), node.get("data") or {}, (*place, "data")
    if not isinstance(data, Mapping):
        yield WorkflowProblem(where, "data is an object, or is left out")
    elif type not in TRANSFORMS and type not in NODE_TYPES:
        yield _unknown_type(type, [*NODE_TYPES, *TRANSFORMS], place)
    elif type in NOT_OF_PIPELINES:
        yield WorkflowProblem((*place, "typeId"), NOT_OF_PIPELINES[type])
    elif type not in TRANSFORMS:
        read = {name: value for name, value in data.items() if not (type == "if" and name == "then")}
        yield from data_problems(type, read, where)
        yield from template_problems(type, read, where)
        yield from expression_problems(type, read, where, roots)


# -- errors of the loader -------------------------------------------------------------------------


def _read(data: Mapping[str, Any], name: str, *, allow_unknown: bool) -> tuple[list[WorkflowProblem], Loaded | None]:
    try:
        loaded = read_workflow(data, name, allow_unknown=allow_unknown)
    except TidemillError as error:
        return [WorkflowProblem(_place_in(str(error), data), _short(str(error)))], None
    except RecursionError:
        return [WorkflowProblem(("nodes",), "too many nodes follow one after the other")], None
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return [WorkflowProblem((), f"this cannot be read: {error}")], None
    problems = list(_task_problems(loaded, data))
    notes = [WorkflowProblem(_place_in(note, data), _short(note), "note") for note in loaded.notes]
    return [*problems, *notes], None if problems else loaded


def _task_problems(loaded: Loaded, data: Mapping[str, Any]) -> Iterator[WorkflowProblem]:
    """Names, groups and queues of which there can be no task: what runs all files would end with an error."""
    # They are slow to load, and import this module.
    from tidemill.pipelines.runner.build_job import stage_task
    from tidemill.pipelines.workflows.schedules import trigger_task

    for workflow in loaded.triggers:
        try:
            trigger_task(workflow)
        except ConfigError as error:
            yield WorkflowProblem(_place_of(data, workflow.concurrency_key, str(error)), str(error))
    for stage in (stage for pipeline in loaded.pipelines for stage in pipeline.stages.values()):
        try:
            stage_task(stage, _never)
        except ConfigError as error:
            yield WorkflowProblem(_place_of(data, stage.options.concurrency_key, str(error)), str(error))


async def _never() -> Any:
    raise AssertionError


def _place_of(data: Mapping[str, Any], group: str | None, message: str) -> Path:
    """The place of a group of nodes that is no key, or of the name of a file."""
    for at, node in enumerate(_list(data, "nodes") if "concurrency_key" in message else ()):
        if group is not None and (node.get("agentConfig") or {}).get("concurrencyGroup") == group:
            return ("nodes", at, "agentConfig", "concurrencyGroup")
    return ("name",) if data.get("name") else ()


def _short(message: str) -> str:
    """A message of the loader without its location."""
    return _HEAD.sub("", _PLACE.sub("", message))


def _place_in(message: str, data: Mapping[str, Any]) -> Path:
    """The path that a message of the loader refers to."""
    written = _PLACE.match(message)
    if written is not None:
        return tuple(int(part) if part.isdigit() else part for part in re.findall(r"\w+", written[1]))
    named = _NAMED.search(message) or re.search(r"stages? ([\w-]+)()", message)
    if named is None:
        return ()
    for list_name, inner in (("nodes", "data"), ("stages", "node")):
        for at, each in enumerate(_list(data, list_name)):
            if isinstance(each, Mapping) and named[1] in (repr(_name(each)), each.get("name"), each.get("id")):
                place: Path = (list_name, at)
                return (*place, inner, named[2]) if named[2] and inner == "data" else place
    return ()


def _list(data: Mapping[str, Any], field: str) -> list[Any]:
    found = data.get(field)
    return found if isinstance(found, list) else []


def _name(node: Any) -> str:
    return str(node.get("name") or node.get("id")) if isinstance(node, Mapping) else ""
