"""The state of one run of a dag: plain data that only the reducer changes, and its form as bytes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import PayloadError
from tidemill.dags.reducer.events import NodeFailure, NodeStatus, RunFailure

FORMAT = 1

UNSET: Any = msgspec.UNSET


class Items(msgspec.Struct, omit_defaults=True):
    """The items of a map: what is to be done, what is under way, what came of it."""

    values: list[Any]
    total: int
    todo: list[int]
    """Places of the items that have not been started, the next one last."""
    working: dict[int, int] = {}
    """Place of each item that is under way, by work."""
    results: dict[int, Any] = {}
    failed: dict[int, str] = {}
    size: int = 0

    @property
    def done(self) -> int:
        return len(self.results) + len(self.failed)


class Answered(msgspec.Struct, frozen=True, omit_defaults=True):
    """The submission that counted."""

    by: str
    at: float
    key: str | None = None


class NodeState(msgspec.Struct, omit_defaults=True):
    """Where a node is."""

    left: int
    """How many of the nodes that it depends on have not ended yet."""
    status: NodeStatus = "pending"
    skipped: int = 0
    """How many of them were skipped."""
    hurt: str | None = None
    """The first of them that failed, or was blocked or cancelled."""
    began: float | None = None
    ended: float | None = None
    due: float | None = None
    work: int | None = None
    job: int | None = None
    result: Any = UNSET
    error: NodeFailure | None = None
    note: str = ""
    prompt: str | None = None
    items: Items | None = None
    answered: Answered | None = None
    edited: Any = UNSET
    """What is used in place of the declared args, or as the answer, in a run that repeats another."""
    carried: bool = False
    """Whether it ended in the run that this one repeats."""


class DagState(msgspec.Struct, omit_defaults=True):
    """Everything that is known about a run."""

    version: str
    open: int
    """How many nodes have not ended."""
    status: Literal["running", "succeeded", "failed", "cancelled"] = "running"
    started: float | None = None
    ended: float | None = None
    run: dict[str, Any] = {}
    result: Any = None
    error: RunFailure | None = None
    sequence: int = 0
    nodes: dict[str, NodeState] = {}
    works: dict[int, str] = {}
    """The node of each work that is under way."""
    failed: list[str] = []
    repeats: bool = False
    """Whether it carries results over from another run."""

    @property
    def idle(self) -> bool:
        """Nothing of a run happens inside of its owner: between ticks it can always be let go."""
        return True


class _Snapshot(msgspec.Struct):
    format: int
    state: DagState


class _Header(msgspec.Struct):
    format: int


def encode_state(state: DagState) -> bytes:
    """Everything there is to know about a run, as JSON bytes."""
    return encode(_Snapshot(FORMAT, state))


def decode_state(data: bytes) -> DagState:
    """The state that these bytes stand for."""
    try:
        found = decode(data, _Header).format
    except PayloadError as error:
        raise PayloadError("this is not the snapshot of a run") from error
    if found > FORMAT:
        raise PayloadError(f"this snapshot has format {found}, and this code knows only {FORMAT}")
    return decode(data, _Snapshot).state
