"""The rows of the in-memory model of the tables of runs."""

from __future__ import annotations

import msgspec


class RunRow(msgspec.Struct):
    """A row of `run`."""

    id: int
    kind: str
    workflow: str
    version: str
    input: bytes
    key: str | None = None
    owner: int | None = None
    seq: int = 0
    turn: int = 0
    awake: bool = True
    state: str = "running"
    result: bytes | None = None
    error: bytes | None = None
    note: str | None = None
    ended_at: float | None = None
    parent: int | None = None
    parent_work: int | None = None
    suspicions: int = 0
    losses: int = 0
    origin: bytes | None = None
    priority: int | None = None
    has_mail: bool = True
    """When it was claimed: whether anything was in its inbox."""


class InboxRow(msgspec.Struct):
    """A row of `inbox`."""

    id: int
    run_id: int
    due_at: float
    work: int | None = None
    timer: str | None = None
    data: bytes | None = None


class StoredJob(msgspec.Struct):
    """A row of `job`, and once it has ended of `job_history`."""

    id: int
    run_id: int | None
    work: int | None
    due_at: float
    queue: str
    task: str
    args: bytes
    priority: int
    options: bytes | None
    state: str = "ready"
    attempt: int = 0
    worker: int | None = None
    failures: int = 0
    losses: int = 0
    suspicions: int = 0
    cancel_reason: str | None = None
    note: str | None = None
    result: bytes | None = None


class WorkerRow(msgspec.Struct):
    """A row of `worker`."""

    id: int
    lease_until: float
    versions: dict[str, str] = {}
    ended: bool = False
    lost: bool = False


class StoreView(msgspec.Struct, frozen=True):
    """What a statement read when it began."""

    at: float
    inbox: frozenset[int]
    children: frozenset[int]
