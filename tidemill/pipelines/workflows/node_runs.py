"""What each node of a run got and gave: for people who try a workflow, and for the log of a run that failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from tidemill.pipelines.workflows.expressions.javascript import ExpressionError, current_names
from tidemill.pipelines.workflows.expressions.names import masked
from tidemill.pipelines.workflows.nodes import NODE_TYPES, Node, NodeError, filled, recorder

MOST_ITEMS = 20  # of a node that are kept
LONGEST = 20_000  # characters of a value that are kept


class NodeRun(msgspec.Struct):
    """A node that has run: its fields as they were for the first item, the items that reached it, and its outputs."""

    id: str
    name: str
    type: str
    fields: dict[str, Any]
    items: int
    inputs: list[Any]
    outputs: list[Any]
    is_pinned: bool
    error: str | None


@contextmanager
def recorded() -> Iterator[Callable[[], list[NodeRun]]]:
    """Record every node that runs in the block; the function that is yielded returns them, without secrets."""
    kept: list[tuple[Node, list[dict[str, Any]], list[Any], NodeError | None, Mapping[str, Any]]] = []

    def record(node: Node, items: list[dict[str, Any]], outputs: list[Any], error: NodeError | None) -> None:
        kept.append((node, items, outputs, error, current_names().get("$credentials") or {}))

    token = recorder.set(record)
    try:
        yield lambda: [_shown(*each) for each in kept]
    finally:
        recorder.reset(token)


def _shown(
    node: Node, items: list[dict[str, Any]], outputs: list[Any], error: NodeError | None, held: Mapping[str, Any]
) -> NodeRun:
    run = NodeRun(
        node.id,
        node.name,
        node.type,
        _fields(node, items[0] if items else {}),
        len(items),
        [
            _cut(masked(each, held)) for each in items[:MOST_ITEMS]
        ],  # Masked first: a cut would leave a part of a secret.
        [_cut(masked(each, held)) for each in outputs[:MOST_ITEMS]],
        bool(node.data.get("pinned")) and "pinnedOutput" in node.data,
        None if error is None else str(error),
    )
    return msgspec.convert(masked(msgspec.to_builtins(run), held), NodeRun)


def _fields(node: Node, item: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a node as it got them; as they are written where they cannot be filled in or name a secret."""
    kind, shown = NODE_TYPES.get(node.type), dict[str, Any]()
    raw = frozenset[str]() if kind is None else kind.raw
    for name, value in node.data.items():
        if name in ("pinned", "pinnedOutput"):
            continue
        try:
            one = msgspec.structs.replace(node, data={name: value})
            shown[name] = _cut(filled(one, item, raw)[name])
        except (NodeError, ExpressionError):
            shown[name] = _cut(value)
    return shown


def _cut(value: Any) -> Any:
    """A value that can be kept: a long one becomes the beginning of its text."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return cut_text(repr(value))
    return value if len(text) <= LONGEST else cut_text(value if isinstance(value, str) else text)


def cut_text(text: str | None) -> str | None:
    if text is None or len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]} ... and {len(text) - LONGEST:,} characters more"
