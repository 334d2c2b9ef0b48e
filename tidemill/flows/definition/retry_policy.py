"""Retry policies of steps, composed of conditions, waits and stops.

    retry_policy()                                                       3 attempts, 5 seconds apart
    retry_policy(wait=wait_exponential(max=30), stop=stop_after_attempt(5))
    retry_policy(retry=retry_if_exception_type(ConnectionError) | retry_if_exception_message(match="busy"))
    retry_policy(wait=wait_fixed(1) + wait_random(0, 1), stop=stop_after_attempt(5) | stop_after_delay(60))

Conditions combine with `|` and `&`, waits with `+`, stops with `|` and `&`. Any object with a matching `next` method is
a policy. A random wait takes a seed: the same seed always gives the same wait, so that replaying a decision gives the
same decision.
"""

from __future__ import annotations

import inspect
import math
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from tidemill.core.duration import jitter_fraction
from tidemill.flows.errors import WorkflowValidationError

Seconds = int | float | timedelta
ErrorTypes = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True)
class RetryInfo:
    """Information about the earlier attempts of a step; empty on the first attempt."""

    retry_number: int
    elapsed_seconds: float
    last_exception: Exception | None
    last_failed_at: datetime | None


class StepRetryPolicy(Protocol):
    """Returns the seconds until the next attempt after a failure, or None to give up. `attempts` counts failures."""

    def next(
        self, elapsed_time: float, attempts: int, error: Exception, *, seed: int | None = None
    ) -> float | None: ...


class RetryCondition(Protocol):
    """Returns whether to retry after an exception."""

    def __call__(self, error: BaseException) -> bool: ...


class WaitStrategy(Protocol):
    """Returns the seconds to wait before a retry; `attempts` is 0 before the first one."""

    def __call__(self, attempts: int, *, seed: int | None = None) -> float: ...


class StopCondition(Protocol):
    """Returns whether to give up."""

    def __call__(self, attempts: int, elapsed_time: float, *, upcoming_sleep: float = 0.0) -> bool: ...


def _seconds(value: Seconds) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


# -- conditions


class _Condition:
    def __call__(self, error: BaseException) -> bool:
        raise NotImplementedError

    def __or__(self, other: RetryCondition) -> retry_any:
        return retry_any(self, other)

    def __ror__(self, other: RetryCondition) -> retry_any:
        return retry_any(other, self)

    def __and__(self, other: RetryCondition) -> retry_all:
        return retry_all(self, other)

    def __rand__(self, other: RetryCondition) -> retry_all:
        return retry_all(other, self)


class retry_if_exception(_Condition):
    """Retry if the predicate returns True."""

    def __init__(self, predicate: Callable[[BaseException], bool]) -> None:
        self.predicate = predicate

    def __call__(self, error: BaseException) -> bool:
        return self.predicate(error)


class retry_if_exception_type(retry_if_exception):
    """Retry these exceptions and their subclasses."""

    def __init__(self, exception_types: ErrorTypes = Exception) -> None:
        self.exception_types = exception_types
        super().__init__(lambda error: isinstance(error, exception_types))


class retry_if_not_exception_type(retry_if_exception):
    """Retry all exceptions except these and their subclasses."""

    def __init__(self, exception_types: ErrorTypes = Exception) -> None:
        self.exception_types = exception_types
        super().__init__(lambda error: not isinstance(error, exception_types))


retry_unless_exception_type = retry_if_not_exception_type


class retry_if_exception_message(_Condition):
    """Retry when the message is exactly `message`, or when the pattern `match` is found in it."""

    def __init__(self, message: str | None = None, match: str | re.Pattern[str] | None = None) -> None:
        if (message is None) == (match is None):
            raise TypeError(f"{type(self).__name__}: give one of message= and match=")
        self.message = message
        self.match = re.compile(match) if match is not None else None

    def __call__(self, error: BaseException) -> bool:
        return self._fits(str(error))

    def _fits(self, text: str) -> bool:
        return bool(self.match.search(text)) if self.match else text == self.message


class retry_if_not_exception_message(retry_if_exception_message):
    """Retry when the message does not match."""

    def __call__(self, error: BaseException) -> bool:
        return not self._fits(str(error))


class retry_if_exception_cause_type(_Condition):
    """Retry when an exception in the `__cause__` chain (`raise ... from`) is of these types."""

    def __init__(self, exception_types: ErrorTypes = Exception) -> None:
        self.exception_types = exception_types

    def __call__(self, error: BaseException) -> bool:
        cause = error.__cause__
        while cause is not None:
            if isinstance(cause, self.exception_types):
                return True
            cause = cause.__cause__
        return False


class retry_any(_Condition):
    """Retry when one of the conditions holds."""

    def __init__(self, *retries: RetryCondition) -> None:
        self.retries = retries

    def __call__(self, error: BaseException) -> bool:
        return any(holds(error) for holds in self.retries)


class retry_all(_Condition):
    """Retry when all of the conditions hold."""

    def __init__(self, *retries: RetryCondition) -> None:
        self.retries = retries

    def __call__(self, error: BaseException) -> bool:
        return all(holds(error) for holds in self.retries)


class retry_always(_Condition):
    """Retry every exception."""

    def __call__(self, error: BaseException) -> bool:
        return True


class retry_never(_Condition):
    """Never retry."""

    def __call__(self, error: BaseException) -> bool:
        return False


# -- waits


class _Wait:
    def __call__(self, attempts: int, *, seed: int | None = None) -> float:
        raise NotImplementedError

    def __add__(self, other: WaitStrategy) -> wait_combine:
        return wait_combine(self, other)

    def __radd__(self, other: Any) -> _Wait:
        return self if other == 0 else wait_combine(other, self)  # sum() begins with 0


class wait_fixed(_Wait):
    """Wait a fixed time."""

    def __init__(self, wait: Seconds) -> None:
        self.wait = _seconds(wait)

    def __call__(self, attempts: int, *, seed: int | None = None) -> float:
        return self.wait


class wait_none(wait_fixed):
    """Do not wait."""

    def __init__(self) -> None:
        super().__init__(0.0)


class wait_exponential(_Wait):
    """`multiplier * exp_base ** n` for the n-th retry, counted from 0, within `min` and `max`."""

    def __init__(self, multiplier: float = 1.0, exp_base: float = 2.0, max: Seconds = 60.0, min: Seconds = 0.0) -> None:
        self.multiplier, self.exp_base = float(multiplier), float(exp_base)
        self.max, self.min = _seconds(max), _seconds(min)

    def __call__(self, attempts: int, *, seed: int | None = None) -> float:
        return max(_power(self.multiplier, self.exp_base, attempts, self.max), self.min)


class wait_incrementing(_Wait):
    """`start`, and `increment` more before each further retry, up to `max` and never below 0."""

    def __init__(self, start: Seconds = 0.0, increment: Seconds = 100.0, max: Seconds = math.inf) -> None:
        self.start, self.increment, self.max = _seconds(start), _seconds(increment), _seconds(max)

    def __call__(self, attempts: int, *, seed: int | None = None) -> float:
        return max(0.0, min(self.start + self.increment * attempts, self.max))


class wait_random(_Wait):
    """A random wait from `min` to `max`."""

    def __init__(self, min: Seconds = 0.0, max: Seconds = 1.0) -> None:
        self.min, self.max = _seconds(min), _seconds(max)

    def __call__(self, attempts: int, *, seed: int | None = None) -> float:
        return self.min + (self.max - self.min) * _chance(seed, attempts)


class wait_exponential_jitter(_Wait):
    """`initial * exp_base ** n` with up to `jitter` added, and never more than `max`."""

    def __init__(self, initial: float = 1.0, exp_base: float = 2.0, max: float = 60.0, jitter: float = 1.0) -> None:
        self.initial, self.exp_base, self.max, self.jitter = initial, exp_base, max, jitter

    def __call__(self, attempts: int, *, seed: int | None = None) -> float:
        base = _power(self.initial, self.exp_base, attempts, self.max)
        return min(base + self.jitter * _chance(seed, attempts), self.max)


class wait_random_exponential(wait_exponential):
    """A random wait from `min` to the wait of `wait_exponential`."""

    def __call__(self, attempts: int, *, seed: int | None = None) -> float:
        return self.min + (super().__call__(attempts) - self.min) * _chance(seed, attempts)


wait_full_jitter = wait_random_exponential


class wait_chain(_Wait):
    """The first wait before the first retry, the second before the second; the last one repeats."""

    def __init__(self, *strategies: WaitStrategy) -> None:
        if not strategies:
            raise ValueError("wait_chain: give at least one wait")
        self.strategies = strategies

    def __call__(self, attempts: int, *, seed: int | None = None) -> float:
        return self.strategies[min(attempts, len(self.strategies) - 1)](attempts, seed=seed)


class wait_combine(_Wait):
    """The sum of several waits, each with its own randomness."""

    def __init__(self, *strategies: WaitStrategy) -> None:
        self.strategies = strategies

    def __call__(self, attempts: int, *, seed: int | None = None) -> float:
        return sum(
            wait(attempts, seed=None if seed is None else seed + place) for place, wait in enumerate(self.strategies)
        )


# -- stops


class _Stop:
    def __call__(self, attempts: int, elapsed_time: float, *, upcoming_sleep: float = 0.0) -> bool:
        raise NotImplementedError

    def __or__(self, other: StopCondition) -> stop_any:
        return stop_any(self, other)

    def __ror__(self, other: StopCondition) -> stop_any:
        return stop_any(other, self)

    def __and__(self, other: StopCondition) -> stop_all:
        return stop_all(self, other)

    def __rand__(self, other: StopCondition) -> stop_all:
        return stop_all(other, self)


class stop_after_attempt(_Stop):
    """Give up when this many attempts have failed."""

    def __init__(self, max_attempt_number: int) -> None:
        self.max_attempt_number = max_attempt_number

    def __call__(self, attempts: int, elapsed_time: float, *, upcoming_sleep: float = 0.0) -> bool:
        return attempts >= self.max_attempt_number


class stop_after_delay(_Stop):
    """Give up when this much time has passed since the first attempt began."""

    def __init__(self, max_delay: Seconds) -> None:
        self.max_delay = _seconds(max_delay)

    def __call__(self, attempts: int, elapsed_time: float, *, upcoming_sleep: float = 0.0) -> bool:
        return elapsed_time >= self.max_delay


class stop_before_delay(stop_after_delay):
    """Give up when the next attempt would begin after this much time."""

    def __call__(self, attempts: int, elapsed_time: float, *, upcoming_sleep: float = 0.0) -> bool:
        return elapsed_time + upcoming_sleep >= self.max_delay


class stop_any(_Stop):
    """Give up when one of the conditions is met."""

    def __init__(self, *stops: StopCondition) -> None:
        self.stops = stops

    def __call__(self, attempts: int, elapsed_time: float, *, upcoming_sleep: float = 0.0) -> bool:
        return any(stop(attempts, elapsed_time, upcoming_sleep=upcoming_sleep) for stop in self.stops)


class stop_all(_Stop):
    """Give up when all of the conditions are met."""

    def __init__(self, *stops: StopCondition) -> None:
        self.stops = stops

    def __call__(self, attempts: int, elapsed_time: float, *, upcoming_sleep: float = 0.0) -> bool:
        return all(stop(attempts, elapsed_time, upcoming_sleep=upcoming_sleep) for stop in self.stops)


class stop_never(_Stop):
    """Never give up."""

    def __call__(self, attempts: int, elapsed_time: float, *, upcoming_sleep: float = 0.0) -> bool:
        return False


# -- policies


class ComposedRetryPolicy:
    """A policy of a condition, a wait and a stop, which are evaluated in this order."""

    def __init__(self, retry: RetryCondition | None, wait: WaitStrategy, stop: StopCondition) -> None:
        self.retry, self.wait, self.stop = retry, wait, stop

    def next(self, elapsed_time: float, attempts: int, error: Exception, *, seed: int | None = None) -> float | None:
        if self.retry is not None and not self.retry(error):
            return None
        delay = self.wait(attempts - 1, seed=seed)
        return None if self.stop(attempts, elapsed_time, upcoming_sleep=delay) else delay


def retry_policy(
    retry: RetryCondition | None = None,
    wait: WaitStrategy = wait_fixed(5),  # noqa: B008 -- immutable
    stop: StopCondition = stop_after_attempt(3),  # noqa: B008 -- immutable
) -> StepRetryPolicy:
    """Create a policy from its parts; without a condition, every exception is retried."""
    for name, part, kind in (("retry", retry, _Condition), ("wait", wait, _Wait), ("stop", stop, _Stop)):
        if part is not None or name != "retry":
            _check_part(name, part, kind)
    return ComposedRetryPolicy(retry, wait, stop)


_CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "retry": ((Exception(),), {}),
    "wait": ((0,), {"seed": 0}),
    "stop": ((1, 0.0), {"upcoming_sleep": 0.0}),
}


def _check_part(name: str, part: Any, kind: type) -> None:
    """Raise if a part of a policy is of another kind, or cannot be called as that part is called."""
    parts = {_Condition: "retry", _Wait: "wait", _Stop: "stop"}
    if isinstance(part, kind):
        return
    where = f"retry_policy: {name}={part if isinstance(part, int | float | str | None) else type(part).__name__}"
    for each, place in parts.items():
        if isinstance(part, each):
            raise WorkflowValidationError(f"{where} belongs to another parameter; write retry_policy({place}=...)")
    args, kwargs = _CALLS[name]
    if not callable(part) or isinstance(part, type) or not _accepts_call(part, args, kwargs):
        expected = "one of the retry_if_…, wait_… and stop_… objects, or a function like them"
        raise WorkflowValidationError(f"{where} cannot be called as a {name} condition is called; pass {expected}")


def check_policy(policy: Any) -> str | None:
    """Return why an object is not a retry policy; None if it is one."""
    next = getattr(policy, "next", None)
    if not callable(next):
        return "has no method `next`"
    error = Exception()
    if _accepts_call(next, (0.0, 1, error), {}) or _accepts_call(next, (0.0, 1, error), {"seed": 0}):
        return None
    return "has a method `next` that does not take (elapsed_time, attempts, error)"


def _accepts_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # A built-in function without a signature.
        return True
    return True


def ConstantDelayRetryPolicy(maximum_attempts: int = 3, delay: float = 5) -> StepRetryPolicy:
    """Deprecated: use `retry_policy(wait=wait_fixed(...), stop=stop_after_attempt(...))`."""
    _point_to("ConstantDelayRetryPolicy", "wait_fixed")
    return retry_policy(wait=wait_fixed(delay), stop=stop_after_attempt(maximum_attempts))


def ExponentialBackoffRetryPolicy(
    maximum_attempts: int = 5,
    initial_delay: float = 1.0,
    multiplier: float = 2.0,
    max_delay: float = 60.0,
    jitter: bool = True,
) -> StepRetryPolicy:
    """Deprecated: use `retry_policy` with `wait_exponential` or `wait_random_exponential`."""
    _point_to("ExponentialBackoffRetryPolicy", "wait_random_exponential")
    kind = wait_random_exponential if jitter else wait_exponential
    wait = kind(multiplier=initial_delay, exp_base=multiplier, max=max_delay)
    return retry_policy(wait=wait, stop=stop_after_attempt(maximum_attempts))


def next_delay(policy: StepRetryPolicy, *, elapsed: float, attempts: int, error: Exception, seed: int) -> float | None:
    """Return the decision of a policy; its `next` may or may not take a seed."""
    if _takes_seed(policy):
        return policy.next(elapsed, attempts, error, seed=seed)
    return policy.next(elapsed, attempts, error)


def _takes_seed(policy: StepRetryPolicy) -> bool:
    if isinstance(policy, ComposedRetryPolicy):
        return True
    try:
        parameters = inspect.signature(policy.next).parameters
    except (TypeError, ValueError):
        return True
    return "seed" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _power(multiplier: float, base: float, exponent: int, cap: float) -> float:
    try:
        return min(multiplier * base**exponent, cap)
    except OverflowError:
        return cap


def _chance(seed: int | None, attempts: int) -> float:
    return random.random() if seed is None else jitter_fraction(seed, attempts)


def _point_to(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated; use retry_policy with {new}", DeprecationWarning, stacklevel=3)
