"""The payloads of a dag run's ticks and of its published events."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

NodeStatus = Literal["pending", "running", "waiting", "succeeded", "skipped", "failed", "blocked", "cancelled"]

FINAL: frozenset[str] = frozenset({"succeeded", "skipped", "failed", "blocked", "cancelled"})
DONE: frozenset[str] = frozenset({"succeeded", "skipped"})


class NodeFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a node failed, or one item of it."""

    kind: str
    message: str
    traceback: str = ""


class RunFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a run did not succeed, and the nodes that caused it."""

    kind: str
    message: str
    nodes: tuple[str, ...] = ()


# -- payloads of ticks ----------------------------------------------------------------------------


class NodeEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="node_ended"):
    """The payload of `Completed`: the outcome of a node's job after all attempts. The result is JSON as stored."""

    state: Literal["succeeded", "failed", "cancelled", "expired"]
    job: int | None = None
    result: msgspec.Raw | None = None
    error: NodeFailure | None = None
    note: str = ""


class Submission(msgspec.Struct, frozen=True, omit_defaults=True, tag="submission"):
    """The payload of `Received`: an answer to an input node. A submission with the same `key` is a duplicate."""

    node: str
    value: Any
    by: str = ""
    key: str | None = None


class NodeCancel(msgspec.Struct, frozen=True, omit_defaults=True, tag="node_cancel"):
    """The payload of `Received`: a person cancels a node, with all that follows from it."""

    node: str
    by: str = ""
    reason: str = ""


# -- published events -----------------------------------------------------------------------------


class NodeChanged(msgspec.Struct, frozen=True, omit_defaults=True, tag="node_changed"):
    """A node has started, made progress or ended. `done` and `total` count the items of a map."""

    node: str
    state: NodeStatus
    at: float
    note: str = ""
    done: int | None = None
    total: int | None = None
    error: NodeFailure | None = None


class InputWanted(msgspec.Struct, frozen=True, omit_defaults=True, tag="input_wanted"):
    """A node waits for a person's answer, until `due` if it is set."""

    node: str
    prompt: str
    at: float
    schema: dict[str, Any] | bool | None = None
    due: float | None = None


class InputTaken(msgspec.Struct, frozen=True, omit_defaults=True, tag="input_taken"):
    """An answer was accepted: who gave it, when, and its value."""

    node: str
    value: Any
    by: str
    at: float
    key: str | None = None


class InputRefused(msgspec.Struct, frozen=True, omit_defaults=True, tag="input_refused"):
    """An answer was rejected: who gave it, and why it was rejected."""

    node: str
    by: str
    at: float
    reason: str
    key: str | None = None
