"""The state of a dag run: plain data that only the reducer changes, and its encoding."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import PayloadError
from tidemill.dags.reducer.events import NodeFailure, NodeStatus, RunFailure

FORMAT = 1

UNSET: Any = msgspec.UNSET


class Items(msgspec.Struct, omit_defaults=True):
    """The items of a map: those not started, those running, and their results."""

    values: list[Any]
    total: int
    todo: list[int]
    """The indexes of the items that have not started, the next one last."""
    working: dict[int, int] = {}
    """The index of each running item, by work."""
    results: dict[int, Any] = {}
    failed: dict[int, str] = {}
    size: int = 0

    @property
    def done(self) -> int:
        return len(self.results) + len(self.failed)


class Answered(msgspec.Struct, frozen=True, omit_defaults=True):
    """The submission that was accepted."""

    by: str
    at: float
    key: str | None = None


class NodeState(msgspec.Struct, omit_defaults=True):
    """The state of one node."""

    left: int
    """How many of its dependencies have not ended yet."""
    status: NodeStatus = "pending"
    skipped: int = 0
    """How many of them were skipped."""
    failed_dependency: str | None = None
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
    """The arguments or the answer that a rerun uses instead of the declared args or a person's answer."""
    carried: bool = False
    """Whether its outcome was carried over from the run that this one reruns."""


class DagState(msgspec.Struct, omit_defaults=True):
    """The complete state of a run."""

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
    """The node of each running piece of work."""
    failed: list[str] = []
    cancelled: list[str] = []
    """The nodes that a person has cancelled."""
    repeats: bool = False
    """Whether results were carried over from another run."""

    @property
    def idle(self) -> bool:
        """Always True: the work of a dag run is jobs, so its owner can release it between any two ticks."""
        return True


class _Snapshot(msgspec.Struct):
    format: int
    state: DagState


class _Header(msgspec.Struct):
    format: int


def encode_state(state: DagState) -> bytes:
    """Encode the state of a run as JSON bytes."""
    return encode(_Snapshot(FORMAT, state))


def decode_state(data: bytes) -> DagState:
    """Decode the state of a run."""
    try:
        found = decode(data, _Header).format
    except PayloadError as error:
        raise PayloadError("this is not the snapshot of a run") from error
    if found > FORMAT:
        raise PayloadError(f"this snapshot has format {found}, but this version of Tidemill reads only {FORMAT}")
    return decode(data, _Snapshot).state
