"""How large what is stored may be. One value for each process, set from its settings.

A value that is too large is refused where it comes from: an enqueue or a publish raises, a task, step or build fails.
"""

from __future__ import annotations

import msgspec

from tidemill.core.errors import PayloadError
from tidemill.core.limits.memory_size import format_memory


class SizeLimits(msgspec.Struct, frozen=True):
    """The settings of this name."""

    max_payload: int = 32 << 20
    """Of the arguments or the result of a job, an event of a flow, a message of a stream."""
    max_state: int = 64 << 20
    """Of the state of a run, or of an entity that a monitor follows."""
    max_output: int = 1 << 30
    """Of an output that a build returns as a whole."""


_limits = SizeLimits()


def use_size_limits(limits: SizeLimits) -> None:
    """Hold these from now on, in this process."""
    global _limits
    _limits = limits


def is_large_payload(data: bytes) -> bool:
    """Whether arguments, a result, an event or a message are too large."""
    return len(data) > _limits.max_payload


def check_payload(data: bytes, what: str) -> bytes:
    """Raise a `PayloadError` if arguments, a result, an event or a message are too large."""
    if is_large_payload(data):
        _refuse(len(data), what, "max_payload", _limits.max_payload)
    return data


def check_state(data: bytes, what: str) -> bytes:
    """Raise a `PayloadError` if a state is too large."""
    check_state_size(len(data), what)
    return data


def is_large_state(size: int) -> bool:
    """Whether a state of this size is too large."""
    return size > _limits.max_state


def check_state_size(size: int, what: str) -> None:
    """Raise a `PayloadError` if a state of this size is too large."""
    if is_large_state(size):
        _refuse(size, what, "max_state", _limits.max_state)


def check_output(data: bytes, what: str) -> bytes:
    """Raise a `PayloadError` if an output is too large."""
    if len(data) > _limits.max_output:
        _refuse(len(data), what, "max_output", _limits.max_output)
    return data


def _refuse(size: int, what: str, setting: str, limit: int) -> None:
    raise PayloadError(
        f"{what} would take {format_memory(size)}, and the limit is {format_memory(limit)}: store it as a file or "
        f"an object and pass its address, or raise the setting {setting}"
    )
