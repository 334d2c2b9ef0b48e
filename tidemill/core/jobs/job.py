"""The data of a job: what callers enqueue, what a worker claims, and what a worker reports back."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

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
MAX_KEY_BYTES = 1800

#: Between the fair key and the rate key of a lane, which is what the column `fair_key` of a job has.
LANE_SEPARATOR = "\x1f"


class Callback(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that follows from the end of another one or of a batch: its task, and which facts of the end it takes."""

    task: str
    queue: str
    takes: tuple[str, ...]
    options: msgspec.Raw = msgspec.Raw(b"null")
    args: msgspec.Raw = msgspec.Raw(b"{}")
    priority: int = DEFAULT_PRIORITY
    tags: tuple[str, ...] = ()
    concurrency_key: str | None = None
    max_concurrency: int = 1
    fair_key: str | None = None
    rate_key: str | None = None
    key_rate: float | None = None
    key_burst: float | None = None
    defaults: dict[str, Any] = {}
    """What keys are filled in with beside facts; without these, they are complete."""


class JobOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options that are fixed when a job is enqueued and applied when it runs, even if the code has changed."""

    retry: RetryPolicy | None = None
    budget: float | None = None
    stall: float | None = None
    isolation: Literal["process"] | None = None
    required_model: str | None = None
    trace: str | None = None
    """The W3C `traceparent` that the job continues."""
    run: int | None = None
    node: str | None = None
    """The run and the node that the job belongs to."""
    on_failure: Callback | None = None
    """What is enqueued when the job has failed for good."""
    webhook: Callback | None = None
    """What is enqueued when the job has ended, to post its outcome."""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The origin of a job: the user, host and process that enqueued it, and its schedule or parent."""

    by: str
    host: str = ""
    pid: int = 0
    schedule: str | None = None
    fire: float | None = None
    parent: int | None = None
    """The job that started it."""
    retry_of: int | None = None
    place: int | None = None
    """Of a retry in a batch: the job that was first in its place, whose order the results have."""
    reason: str | None = None
    """Why its schedule has started it: due, catch-up, backfill or run now."""
    batch: int | None = None
    """The batch whose end it follows from."""
    run: int | None = None
    """The run of a flow one of whose steps started it."""
    trace: str | None = None
    """The W3C `traceparent` that a run continues; a job has it in its options."""
    request: str | None = None
    """The HTTP request that it was asked for in: method and path."""


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
    debounce: float | None = None
    concurrency_key: str | None = None
    max_concurrency: int = 1
    fair_key: str | None = None
    rate_key: str | None = None
    key_rate: float | None = None
    key_burst: float | None = None
    tags: tuple[str, ...] | None = None
    options: JobOptions | None = None
    origin: Origin | None = None
    batch: int | None = None

    @property
    def keyed(self) -> bool:
        """Whether the job has a key, so that other jobs decide whether it may be stored or become ready."""
        return self.unique_key is not None or self.concurrency_key is not None

    @property
    def is_plain(self) -> bool:
        """Whether the job has neither a concurrency key nor a lane."""
        return self.concurrency_key is None and self.lane is None

    @property
    def lane(self) -> str | None:
        """What it takes turns with others as: its fair key and its rate key; None if it has neither."""
        if self.rate_key is None:
            return self.fair_key
        return f"{self.fair_key or ''}{LANE_SEPARATOR}{self.rate_key}"

    def validate(self) -> NewJob:
        """Return this job, or raise a `ConfigError` that names the invalid option."""
        check_name("queue", self.queue)
        check_name("task", self.task)
        check_priority(self.priority)
        if self.options is not None and (model := self.options.required_model) is not None:
            check_name("model", model)
            if self.options.isolation == "process":
                raise ConfigError(
                    f"task {self.task}: a job in its own process cannot use model {model}, "
                    "because models are loaded in the worker's process"
                )
        if self.at is not None and self.delay:
            raise ConfigError("give either delay= or at=, not both")
        if self.unique_key is not None:
            check_key("unique_key", self.unique_key)
        if self.concurrency_key is not None:
            check_key("concurrency_key", self.concurrency_key)
        if self.fair_key is not None:
            check_key("fair_key", self.fair_key)
        if self.rate_key is not None:
            check_key("rate_key", self.rate_key)
        if self.rate_key is not None or self.fair_key is not None:
            self._check_lane()
        if self.unique_for is not None and self.unique_key is None:
            raise ConfigError("unique_for= needs a unique_key=")
        if self.debounce is not None:
            if self.unique_key is None:
                raise ConfigError("debounce= needs a unique_key=: of the calls with the same key, the last one wins")
            if self.at is not None or self.delay or self.unique_for is not None:
                raise ConfigError("debounce= is itself a delay: leave out delay=, at= and unique_for=")
        if type(self.max_concurrency) is not int or self.max_concurrency < 1:
            raise ConfigError(
                f"a max_concurrency of {self.max_concurrency!r} would never let a job run; use a whole number from 1 on"
            )
        return self

    def _check_lane(self) -> None:
        lane = self.lane or ""
        if lane.count(LANE_SEPARATOR) > (self.rate_key is not None):
            raise ConfigError("fair_key and rate_key must not contain the character U+001F, which separates them")
        if len(lane.encode()) > MAX_KEY_BYTES:
            raise ConfigError(f"fair_key and rate_key are too long: use at most {MAX_KEY_BYTES} bytes for both")


class JobRef(msgspec.Struct, frozen=True):
    """An enqueued job. `created` is False if another job has its unique key; `id` is then that job."""

    id: int
    created: bool = True


class ClaimedJob(msgspec.Struct):
    """A job that a worker has claimed; `(worker, attempt)` is its fencing token. A claim returns its first fields."""

    id: int
    attempt: int
    queue: str
    task: str
    args: bytes
    options: bytes | None
    failures: int
    losses: int
    keyed: bool
    expired: bool | None
    """Whether its deadline has passed; None if it has none."""
    cancel_reason: str | None = None
    priority: int = DEFAULT_PRIORITY
    due_at: datetime | None = None
    origin: bytes | None = None
    suspicions: int = 0
    hands_over: bool = False
    """Whether its success stores the job that follows it."""


class Finish(msgspec.Struct):
    """The end of a job: it moves to the history if `(worker, attempt)` still owns it."""

    id: int
    attempt: int
    state: FinalState
    result: bytes | None = None
    note: str | None = None
    error: bytes | None = None
    keyed: bool = False
    lost: bool = False
    calls_back: bool = False
    """Whether its success enqueues another job; the statement that ends a failed job looks that up itself."""
    hands_over: bool = False
    """Whether its success stores the job that follows it in its run."""


class Requeue(msgspec.Struct):
    """A job that returns to its queue and can be claimed again after `delay`."""

    id: int
    attempt: int
    delay: float
    note: str
    failed: bool = False
    lost: bool = False
    error: bytes | None = None
    state: LiveState = "ready"
    refused_by: str | None = None
    """The signature of the task that did not know an argument of the job; workers with another one may run it."""
    suspicions: int | None = None
    """How often it is suspected from now on; None if that stays as it is."""


class AttemptError(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error of one failed attempt; a job keeps one entry per attempt."""

    attempt: int
    at: float
    kind: str
    message: str
    traceback: str = ""
    worker: str = ""


def is_priority(value: object) -> bool:
    """Whether this is a whole number from 0 to 9; True and 5.0 are not, which the database would refuse."""
    return isinstance(value, int) and not isinstance(value, bool) and value in PRIORITIES


def check_priority(priority: Any) -> int:
    """Return the priority; a `ConfigError` if it is none."""
    if is_priority(priority):
        return priority
    raise ConfigError(f"priority {priority!r} is outside 0 to 9 (9 runs first; default {DEFAULT_PRIORITY})")


def check_key(what: str, key: object) -> str:
    """Return the key if it is text and short enough for an index; else raise a `ConfigError`."""
    if isinstance(key, str) and key == storable(key) and len(key.encode()) <= MAX_KEY_BYTES:
        return key
    raise ConfigError(
        f"{what}={key!r:.100} is not a valid key: use a string of at most {MAX_KEY_BYTES} bytes, without NUL"
    )


def check_name(what: str, name: str) -> str:
    """Return the name of a queue or task if it is short, printable and stripped; else raise a `ConfigError`."""
    if not isinstance(name, str) or not 0 < len(name) <= 200 or name != name.strip() or not name.isprintable():
        kind = f"an {what}" if what.startswith("a") else f"a {what}"
        raise ConfigError(f"{name!r:.99} is not {kind} name: use 1 to 200 printable characters, no space at the ends")
    return name
