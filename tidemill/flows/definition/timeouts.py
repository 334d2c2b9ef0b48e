"""Default timeouts: they hold for runs in memory, and not for durable runs, which wait as long as they have to."""

from __future__ import annotations


class DefaultTimeout(float):
    """A timeout in seconds that the user has not given."""


RUN_TIMEOUT_IN_MEMORY = DefaultTimeout(45.0)
WAIT_TIMEOUT_IN_MEMORY = DefaultTimeout(2000.0)


def durable_timeout(timeout: float | None) -> float | None:
    """Return the timeout of a durable run or wait: none unless the user has given one."""
    return None if isinstance(timeout, DefaultTimeout) else timeout
