"""What a job is, as plain data: what callers hand in, what a worker claims, what it reports back."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from tidemill.core.codec import storable
from tidemill.core.errors import ConfigError
from tidemill.core.retry import RetryPolicy

LiveState = Literal["ready", "throttled", "no_worker", "running"]
FinalState = Literal["succeeded", "failed", "cancelled", "expired"]

LIVE_STATES: tuple[LiveState, ...] = ("ready", "throttled", "no_worker", "running")
FINAL_STATES: tuple[FinalState, ...] = ("succeeded", "failed", "cancelled", "expired")

PRIORITIES = range(10)
DEFAULT_PRIORITY = 5
DEFAULT_QUEUE = "default"
MOST_OF_A_KEY = 1800


class JobOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is decided when a job is enqueued and obeyed when it runs, whichever code runs it then."""

    retry: RetryPolicy | None = None
    budget: float | None = None
    stall: float | None = None
    isolation: Literal["process"] | None = None
    required_model: str | None = None
    trace: str | None = None
    """The W3C `traceparent` that the job continues."""
    run: int | None = None
    node: str | None = None
    """The run that the job is a node of, and which."""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a job exists: who asked for it, from where, and because of what."""

    by: str
    host: str = ""
    pid: int = 0
    schedule: str | None = None
    fire: float | None = None
    parent: int | None = None
    retry_of: int | None = None


class NewJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job to be enqueued. Times are seconds; `delay` and `deadline_in` count from the database's clock."""

    queue: str
    task: str
    args: msgspec.Raw
    priority: int = DEFAULT_PRIORITY
    delay: float = 0.0
    at: float | None = None
    deadline: float | None = None
    deadline_in: float | None = None
    unique_key: str | None = None
    unique_for: float | None = None
    concurrency_key: str | None = None
    concurrency_max: int = 1
    tags: tuple[str, ...] | None = None
    options: JobOptions | None = None
    origin: Origin | None = None

    @property
    def keyed(self) -> bool:
        """Whether other jobs must be looked at before this one may be stored or made ready."""
        return self.unique_key is not None or self.concurrency_key is not None

    def validate(self) -> NewJob:
        """This job, or a `ConfigError` that says which option makes no sense."""
        check_name("queue", self.queue)
        check_name("task", self.task)
        if self.priority not in PRIORITIES:
            raise ConfigError(f"priority {self.priority} is outside 0 to 9 (9 goes first, {DEFAULT_PRIORITY} is usual)")
        if self.options is not None and (model := self.options.required_model) is not None:
            check_name("model", model)
            if self.options.isolation == "process":
                raise ConfigError(
                    f"task {self.task}: a job in a process of its own cannot use model {model}, "
                    "for models live in their worker's process"
                )
        if self.at is not None and self.delay:
            raise ConfigError("give either delay= or at=, not both")
        if self.unique_key is not None:
            check_key("unique_key", self.unique_key)
        if self.concurrency_key is not None:
            check_key("concurrency_key", self.concurrency_key)
        if self.unique_for is not None and self.unique_key is None:
            raise ConfigError("unique_for= needs a unique_key=")
        if self.concurrency_max < 1:
            raise ConfigError(f"a concurrency limit of {self.concurrency_max} would never let a job run")
        return self


class JobRef(msgspec.Struct, frozen=True):
    """An enqueued job. `created` is False when its unique key was taken: `id` is then the holder's."""

    id: int
    created: bool = True


class ClaimedJob(msgspec.Struct):
    """A job in a worker's hands; `(worker, attempt)` is its fencing token."""

    id: int
    attempt: int
    queue: str
    task: str
    args: bytes
    options: bytes | None
    failures: int
    losses: int
    keyed: bool
    expired: bool
    cancel_reason: str | None = None
    due_at: datetime | None = None


class Finish(msgspec.Struct):
    """A job's end: moves to the history, if `(worker, attempt)` still own it."""

    id: int
    attempt: int
    state: FinalState
    result: bytes | None = None
    note: str | None = None
    error: bytes | None = None
    keyed: bool = False
    lost: bool = False


class Requeue(msgspec.Struct):
    """A job that goes back to its queue to be claimed again after `delay`."""

    id: int
    attempt: int
    delay: float
    note: str
    failed: bool = False
    lost: bool = False
    error: bytes | None = None
    state: LiveState = "ready"


class AttemptError(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one attempt went wrong; kept with the job, one entry per attempt."""

    attempt: int
    at: float
    kind: str
    message: str
    traceback: str = ""
    worker: str = ""


def check_key(what: str, key: object) -> str:
    """A key as it may be stored and looked up: text, and no more of it than an index takes."""
    if isinstance(key, str) and key == storable(key) and len(key.encode()) <= MOST_OF_A_KEY:
        return key
    raise ConfigError(f"{what}={key!r:.100} will not do: write a text of at most {MOST_OF_A_KEY} bytes, without NUL")


def check_name(what: str, name: str) -> str:
    """A queue or task name as it may be stored: short, printable, without spaces at the ends."""
    if not name or len(name) > 200 or name != name.strip() or not name.isprintable():
        raise ConfigError(f"{name!r} is not a {what} name: use 1 to 200 printable characters, no space at the ends")
    return name
