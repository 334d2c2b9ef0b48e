"""Retry policies: when a failed job is retried, and when it fails for good.

Declare a policy once; it is stored with the job as JSON:

    retry(max_attempts=5)                          1s, 2s, 4s, 8s between the five attempts
    retry(8, backoff="10s", factor=3, cap="1h")    10s, 30s, 90s, ... and never more than 1h
    retry(schedule=("10s", "1m", "10m"))           four attempts, with exactly these waits
    retry(no_retry=(ValueError, "app.NotPaid"))    do not retry these errors
    retry(retry_on=(ConnectionError,))             retry only these errors

An exception in the task's code uses up an *attempt*. A worker that dies while it runs the job (killed, out of
memory, host gone) is a *loss*, which is counted separately and limited by `max_losses`. So a bad deploy does not
use up a job's attempts, and a job that kills its workers is not retried forever.

Each wait is extended by up to the fraction `jitter` (0.1: 10s becomes 10s to 11s), so that jobs that failed
together are not retried together. The jitter depends only on the job's seed and the attempt: the same failure
always gets the same decision.

A task controls its own retry by raising one of these:

    raise RetryAfter("30s", "rate limited")        the attempt failed; retry after exactly this long
    raise Snooze("5m", "report is not ready")      run again later; does not count as an attempt
    raise Discard("order was cancelled")           fail the job now, without a retry
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from tidemill.core.duration import Duration, format_duration, jitter_fraction, parse_duration
from tidemill.core.errors import ConfigError

#: The largest count that the database column can hold.
MOST_TRIES = 32_767


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How often and when a job is retried. Create one with `retry(...)`, which validates it.

    The defaults allow one attempt and four lost workers.
    """

    max_attempts: int = 1
    """How many times the code may fail before the job fails; 1 means no retry."""
    backoff: float = 1.0
    """Seconds to wait after the first failure."""
    factor: float = 2.0
    """Each wait is this many times the previous one."""
    cap: float = 3600.0
    """The longest wait in seconds, before jitter. A `schedule` is not capped."""
    jitter: float = 0.1
    """The fraction of each wait, 0 to 1, that may be added to it."""
    schedule: tuple[float, ...] = ()
    """The waits in seconds, instead of backoff, factor and cap; the last one repeats."""
    max_losses: int = 5
    """The job fails when its worker has died this many times while running it."""
    retry_on: tuple[str, ...] = ()
    """If not empty, only these errors are retried: class names, bare or dotted; subclasses are included."""
    no_retry: tuple[str, ...] = ()
    """These errors are never retried, even if `retry_on` names them too."""

    def next(self, elapsed_time: float, attempts: int, error: Exception, *, seed: int | None = None) -> float | None:
        """The seconds until the next attempt of a workflow's step after a failure; None to give up."""
        decision = decide(self, failures=attempts, error=error_lineage(type(error)), seed=seed or 0)
        return decision.delay if isinstance(decision, Retry) else None


class Retry(msgspec.Struct, frozen=True, tag="retry"):
    """Retry the job after `delay` seconds."""

    delay: float
    reason: str


class GiveUp(msgspec.Struct, frozen=True, tag="give_up"):
    """Fail the job for good."""

    reason: str


RetryDecision = Retry | GiveUp


class RetryAfter(Exception):
    """Raised by a task: this attempt failed; retry after exactly this long."""

    def __init__(self, seconds: Duration, reason: str = "") -> None:
        self.seconds = parse_duration(seconds, what="RetryAfter")
        self.reason = reason
        super().__init__(self.seconds, reason)

    def __str__(self) -> str:
        return self.reason or f"the task asked for a retry in {format_duration(self.seconds)}"


class Snooze(Exception):
    """Raised by a task: it is too early; run again later. Does not count as an attempt."""

    def __init__(self, seconds: Duration, reason: str = "") -> None:
        self.seconds = parse_duration(seconds, what="Snooze")
        self.reason = reason
        super().__init__(self.seconds, reason)

    def __str__(self) -> str:
        return self.reason or f"snoozed for {format_duration(self.seconds)}"


class RefuseJob(Exception):
    """Raised by a task: its job cannot run on this worker, and may run on another. Does not count as an attempt."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Discard(Exception):
    """Raised by a task: fail the job now, without a retry."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def retry(
    max_attempts: int | None = None,
    *,
    backoff: Duration = 1.0,
    factor: float = 2.0,
    cap: Duration = 3600.0,
    jitter: float = 0.1,
    schedule: Sequence[Duration] = (),
    max_losses: int = 5,
    retry_on: Iterable[str | type[BaseException]] = (),
    no_retry: Iterable[str | type[BaseException]] = (),
) -> RetryPolicy:
    """Create a validated policy; durations may be text, errors may be classes or their names.

    `max_attempts` defaults to 5, or to one more than the number of waits in `schedule`.
    """
    if isinstance(schedule, str):
        raise ConfigError(f"retry schedule: {schedule!r} is a single string; write a tuple, such as ('10s', '1m')")
    waits = tuple(parse_duration(wait, what="retry schedule") for wait in schedule)
    policy = RetryPolicy(
        max_attempts=max_attempts if max_attempts is not None else len(waits) + 1 if waits else 5,
        backoff=parse_duration(backoff, what="retry backoff"),
        factor=factor,
        cap=parse_duration(cap, what="retry cap"),
        jitter=jitter,
        schedule=waits,
        max_losses=max_losses,
        retry_on=_error_names(retry_on, what="retry_on"),
        no_retry=_error_names(no_retry, what="no_retry"),
    )
    validate(policy)
    return policy


def validate(policy: RetryPolicy) -> None:
    """Raise a `ConfigError` that names the first invalid field."""
    checks = (
        ("max_attempts", _is_count(policy.max_attempts), f"a whole number from 1 to {MOST_TRIES}"),
        ("max_losses", _is_count(policy.max_losses), f"a whole number from 1 to {MOST_TRIES}"),
        ("factor", _is_within(policy.factor, 1.0, math.inf), "a number of 1 or more"),
        ("jitter", _is_within(policy.jitter, 0.0, 1.0), "a fraction from 0 to 1"),
        ("cap", policy.cap >= policy.backoff, f"at least the backoff, {format_duration(policy.backoff)}"),
    )
    for field, holds, expected in checks:
        if not holds:
            raise ConfigError(f"retry {field}: {getattr(policy, field)!r} is not {expected}")


def decide(
    policy: RetryPolicy,
    *,
    failures: int,
    losses: int = 0,
    error: str | Sequence[str],
    retry_after: float | None = None,
    seed: int,
) -> RetryDecision:
    """Decide what happens after the code of a job has failed.

    `failures` counts the failures of the code, including this one; `losses` is only mentioned in the reason.
    `error` is the class path of the exception, or its `error_lineage`, so that a policy that names a base
    class covers its subclasses. `retry_after` is the wait of a `RetryAfter`: it overrides the policy's wait
    and its choice of errors, but not the limit on attempts.
    """
    lineage = (error,) if isinstance(error, str) else tuple(error)
    if retry_after is None and (refusal := _refusal(policy, lineage)):
        return GiveUp(refusal)
    if failures >= policy.max_attempts:
        attempts = "its only attempt" if policy.max_attempts == 1 else f"all {policy.max_attempts} attempts"
        also = f"; its worker also died {_times(losses)}" if losses else ""
        return GiveUp(f"{attempts} failed{also}")
    delay = retry_after if retry_after is not None else _jittered_wait(policy, failures, seed)
    asked = ", as the task asked" if retry_after is not None else ""
    return Retry(delay, f"attempt {failures} of {policy.max_attempts} failed; {_again(delay)}{asked}")


def decide_after_loss(policy: RetryPolicy, *, losses: int) -> RetryDecision:
    """Decide what happens after the worker that ran the job has died; `losses` includes this one.

    The first loss is retried at once, because its cause is usually a deploy or a lost host. Later losses
    back off as failures do, because the job itself may kill its workers.
    """
    if losses >= policy.max_losses:
        return GiveUp(f"its worker died {_times(losses)} while running it")
    delay = 0.0 if losses <= 1 else _wait(policy, losses - 1)
    return Retry(delay, f"its worker died while running it ({losses} of {policy.max_losses}); {_again(delay)}")


def error_lineage(error: type[BaseException]) -> tuple[str, ...]:
    """Return the class paths of an exception class and its bases, nearest first; `decide` matches them."""
    return tuple(_class_path(cls) for cls in error.__mro__ if issubclass(cls, BaseException))


def _refusal(policy: RetryPolicy, lineage: tuple[str, ...]) -> str | None:
    """Return why the policy never retries this error, or None if it does."""
    name = lineage[0].rpartition(".")[2]
    if any(_is_named(path, policy.no_retry) for path in lineage):
        return f"{name} is declared as not worth retrying"
    if policy.retry_on and not any(_is_named(path, policy.retry_on) for path in lineage):
        return f"{name} is not among the errors declared as worth retrying"
    return None


def _is_named(path: str, names: tuple[str, ...]) -> bool:
    """Return whether one of the names matches a dotted class path: equal, or one is a dotted suffix of the other.

    A module has a longer name when it is imported from its package than when its file is run.
    """
    return any(
        path == name or path.endswith("." + name) or ("." in path and name.endswith("." + path))
        for name in map(_without_builtins, names)
    )


def _wait(policy: RetryPolicy, failures: int) -> float:
    """Return the seconds to wait after the n-th failure, before jitter."""
    if policy.schedule:
        return policy.schedule[min(failures, len(policy.schedule)) - 1]
    try:
        return min(policy.backoff * float(policy.factor) ** (failures - 1), policy.cap)
    except OverflowError:
        return policy.cap


def _jittered_wait(policy: RetryPolicy, failures: int, seed: int) -> float:
    return _wait(policy, failures) * (1 + policy.jitter * jitter_fraction(seed, failures))


def _error_names(errors: Iterable[str | type[BaseException]], *, what: str) -> tuple[str, ...]:
    if isinstance(errors, str | type):
        raise ConfigError(f"retry {what}: {errors!r} is a single error; write a tuple, such as (ValueError,)")
    return tuple(_error_name(error, what=what) for error in errors)


def _error_name(error: object, *, what: str) -> str:
    if isinstance(error, type) and issubclass(error, BaseException):
        return _class_path(error)
    if isinstance(error, str) and all(part.isidentifier() for part in error.split(".")):
        return _without_builtins(error)
    raise ConfigError(f"retry {what}: {error!r} is not an exception class or the name of one")


def _class_path(cls: type) -> str:
    return _without_builtins(f"{cls.__module__}.{cls.__qualname__}")


def _without_builtins(path: str) -> str:
    return path.removeprefix("builtins.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_TRIES


def _is_within(value: object, low: float, high: float) -> bool:
    """Return whether the value is a finite number from low to high."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and low <= value <= high


def _again(delay: float) -> str:
    return f"trying again in {format_duration(delay)}" if delay else "trying again now"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
