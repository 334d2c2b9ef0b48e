"""The types of nodes in workflow files, and how a node is run.

A node is *per item* (it gets one item at a time) or *over all* (it gets the list). Its result is added to the item
under the node's name. A custom type is a function:

    @node_type("shout")
    def shout(data, item):
        return data["text"].upper()
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, Protocol

import msgspec

from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.retry import Discard, RetryAfter, Snooze
from tidemill.engine.worker.threads import in_thread
from tidemill.pipelines.workflows.expressions.javascript import ExpressionError, current_names, fill
from tidemill.pipelines.workflows.expressions.safe_templates import TemplateError, check_templates
from tidemill.pipelines.workflows.llm import ModelCallError

#: Custom transforms and node types by their names in files.
TRANSFORMS: dict[str, Callable[..., Any]] = {}
NODE_TYPES: dict[str, NodeType] = {}


class NodeError(ConfigError):
    """A node failed; names the node and the cause."""


class NodeType(msgspec.Struct, frozen=True):
    """What nodes of a type do."""

    run: Callable[..., Any]
    per_item: bool = True
    expands: bool = False
    """Whether each entry of a list that it returns is an item."""
    raw: frozenset[str] = frozenset()
    """Fields whose expressions the node evaluates itself."""
    fields: Mapping[str, Mapping[str, Any]] | None = None
    """The fields of its data as JSON Schemas by name, for editors and checks; None if it may have any."""
    role: Literal["operator", "admin"] = "operator"
    """What a caller needs to run it: admin for a node that reaches beyond Tidemill, such as one that runs a command."""


class Node(msgspec.Struct, frozen=True):
    """A node of a workflow file."""

    id: str
    type: str
    name: str
    data: dict[str, Any] = {}
    concurrency_key: str | None = None
    tags: tuple[str, ...] = ()
    may_fail: bool = False
    """Whether a failure is an output, which other nodes read, and no error."""

    def __post_init__(self) -> None:
        try:
            check_templates(self.type, self.data)
        except TemplateError as error:
            field = error.field or ("command" if self.type == "run_command" else "query")
            raise NodeError(f"node {self.name!r}, field {field!r}: {error}") from error


class NodeRecorder(Protocol):
    """Is called for every node that has run, with the items that reached it: for runs that a person watches."""

    def __call__(
        self, node: Node, items: list[dict[str, Any]], outputs: list[Any], error: NodeError | None
    ) -> None: ...


recorder: ContextVar[NodeRecorder | None] = ContextVar("recorder", default=None)


def transform(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under a name for `state_transform` nodes: `function(entity, files or text, **data)`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        TRANSFORMS[name] = function
        return function

    return register


def node_type(
    name: str,
    *,
    per_item: bool = True,
    expands: bool = False,
    raw: Iterable[str] = (),
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    role: Literal["operator", "admin"] = "operator",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a node type: `function(data, item)`, or `function(data, items)` if not per item.

    `fields` declares its data for editors and checks: a JSON Schema for each field; the expressions of `raw` ones are
    passed as they are written. With `expands`, each entry of a list that it returns is an item of its own. `role` is
    what a caller needs to run a workflow with such a node.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        NODE_TYPES[name] = NodeType(function, per_item, expands, frozenset(raw), fields, role)
        return function

    return register


def find_type(node: Node) -> NodeType:
    """The type of a node; an error lists the known types."""
    found = NODE_TYPES.get(node.type)
    if found is None:
        raise NodeError(
            f"node {node.name!r}: type {node.type!r} is not known; there are {', '.join(sorted(NODE_TYPES))}, "
            "and those that you add with @node_type"
        )
    return found


def filled(node: Node, item: Mapping[str, Any], skip: Iterable[str] = ()) -> dict[str, Any]:
    """A node's data with evaluated expressions; an error names the node and the field."""
    made: dict[str, Any] = {}
    for field, value in node.data.items():
        if field in skip:
            made[field] = value
            continue
        try:
            made[field] = fill(value, item)
        except ExpressionError as error:
            raise NodeError(f"node {node.name!r}, field {field!r}: {error}") from error
    return made


async def run_node(node: Node, items: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Any]]:
    """The results of a node, each with its item."""
    record = recorder.get()
    if record is None:
        return await _results(node, items)
    try:
        results = await _results(node, items)
    except NodeError as error:
        record(node, items, [], error)
        raise
    record(node, items, [output for _, output in results], None)
    return results


def pinned_results(node: Node, items: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Any]] | None:
    """The results of a pinned node; None if the node is not pinned. A kind that gives many items is pinned to many."""
    if not node.data.get("pinned") or "pinnedOutput" not in node.data:
        return None
    output, kind = node.data["pinnedOutput"], NODE_TYPES.get(node.type)
    is_many = kind is not None and (kind.expands or not kind.per_item) and isinstance(output, list)
    if kind is not None and not kind.per_item:
        items = [only_item(items)]
    return [(item, each) for item in items or [{}] for each in (output if is_many else [output])]


def only_item(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the outputs of a node over all items are added to: the item, if there is one; of several, none."""
    return items[0] if len(items) == 1 else {}


async def _results(node: Node, items: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Any]]:
    if (pinned := pinned_results(node, items)) is not None:
        return pinned
    kind = find_type(node)
    if not kind.per_item:
        value = await _called(node, kind, {"items": items, **(items[0] if items else {})}, items)
        item = only_item(items)
        return [(item, each) for each in value] if isinstance(value, list) else [(item, value)]
    results: list[tuple[dict[str, Any], Any]] = []
    for item in items:
        value = await _called(node, kind, item, item)
        results += [(item, each) for each in value] if kind.expands and isinstance(value, list) else [(item, value)]
    return results


async def _called(node: Node, kind: NodeType, scope: Mapping[str, Any], given: Any) -> Any:
    data = filled(node, scope, kind.raw)
    if node.may_fail:
        data["mayFail"] = True
    try:
        if inspect.iscoroutinefunction(kind.run):
            return await kind.run(data, given)
        return await in_thread(partial(kind.run, data, given))
    except (ConfigError, ModelCallError) as error:
        raise NodeError(f"node {node.name!r}: {error}") from error
    except KeyError as error:
        raise NodeError(f"node {node.name!r}: field {error.args[0]!r} is missing") from error
    except (TidemillError, Snooze, Discard, RetryAfter):  # They say what becomes of the job.
        raise
    except Exception as error:  # What a node raises may hold a secret: only its text goes on, where that is masked.
        raise NodeError(f"node {node.name!r}: {type(error).__name__}: {error}") from error


def number_of(data: Mapping[str, Any], field: str, default: float) -> float:
    """The number in a field, which an expression may have given."""
    given = data.get(field)
    if not given:
        return default
    try:
        return float(given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"field {field!r}: {given!r} is not a number") from error


def choice_of(data: Mapping[str, Any], field: str, known: Sequence[str]) -> str | None:
    """The value of a field that has one of these, in any case, or none; an expression may have given another."""
    given = data.get(field)
    if not given:
        return None
    found = next((each for each in known if each.lower() == str(given).lower()), None)
    if found is None:
        raise ConfigError(f"field {field!r}: {given!r} is not one of {', '.join(known)}")
    return found


def credential_of(data: Mapping[str, Any]) -> Mapping[str, str] | None:
    """The credential that a node names in `credentialName`; None if it names none."""
    name = data.get("credentialName")
    if not name:
        return None
    known = current_names().get("$credentials") or {}
    if name not in known:
        raise ConfigError(f"there is no credential {name!r} here: `tidemill credentials set {name}` stores one")
    return known[name]
