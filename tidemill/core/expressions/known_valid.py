"""Which conditions and schemas are known to be valid: a process that never evaluates them need not compile them.

The engines that compile them take ten megabytes in every process that loads them. A supervisor learns from the copy
that has loaded the application what was compiled there; its children then compile such an expression when they first
evaluate it. Everything else is compiled when it is declared.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

_known: set[bytes] = set()
_found: set[bytes] | None = None


def is_known_valid(*parts: Any) -> bool:
    """Whether what these parts describe has been compiled elsewhere."""
    return bool(_known) and _digest(parts) in _known


def found_valid(*parts: Any) -> None:
    """What these parts describe has been compiled."""
    if _found is not None and (digest := _digest(parts)) is not None:
        _found.add(digest)


def record_valid() -> set[bytes]:
    """The set to which everything is added that is compiled from now on."""
    global _found
    _found = set()
    return _found


def learn_valid(found: set[bytes]) -> None:
    """Another process has compiled these."""
    _known.update(found)


def _digest(parts: tuple[Any, ...]) -> bytes | None:
    """What identifies these parts; None where they are no plain data, and are compiled in each process."""
    try:
        return blake2b(msgspec.msgpack.encode(parts), digest_size=16).digest()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
