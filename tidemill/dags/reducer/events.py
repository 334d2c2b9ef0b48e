"""What a run of a dag is told, and what it tells: the payloads of its ticks and of what it publishes."""

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
    """Why a run did not succeed, and the nodes that are to blame."""

    kind: str
    message: str
    nodes: tuple[str, ...] = ()


# -- what a run is told ---------------------------------------------------------------------------


class NodeEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="node_ended"):
    """The outcome of a node's job, after all its attempts: of `Completed`. The result is JSON as it was stored."""

    state: Literal["succeeded", "failed", "cancelled", "expired"]
    job: int | None = None
    result: msgspec.Raw | None = None
    error: NodeFailure | None = None
    note: str = ""


class Submission(msgspec.Struct, frozen=True, omit_defaults=True, tag="submission"):
    """Somebody's answer to an input node: of `Received`. The same `key` again is the same submission."""

    node: str
    value: Any
    by: str = ""
    key: str | None = None


# -- what a run tells -----------------------------------------------------------------------------


class NodeChanged(msgspec.Struct, frozen=True, omit_defaults=True, tag="node_changed"):
    """A node has begun, got on or ended. `done` and `total` count the items of a map."""

    node: str
    state: NodeStatus
    at: float
    note: str = ""
    done: int | None = None
    total: int | None = None
    error: NodeFailure | None = None


class InputWanted(msgspec.Struct, frozen=True, omit_defaults=True, tag="input_wanted"):
    """A node waits for somebody's answer, until `due` if that is given."""

    node: str
    prompt: str
    at: float
    schema: dict[str, Any] | bool | None = None
    due: float | None = None


class InputTaken(msgspec.Struct, frozen=True, omit_defaults=True, tag="input_taken"):
    """Who answered what, and when: the answer counts."""

    node: str
    value: Any
    by: str
    at: float
    key: str | None = None


class InputRefused(msgspec.Struct, frozen=True, omit_defaults=True, tag="input_refused"):
    """Who tried to answer, and why the answer does not count."""

    node: str
    by: str
    at: float
    reason: str
    key: str | None = None


DagEvent = NodeChanged | InputWanted | InputTaken | InputRefused
