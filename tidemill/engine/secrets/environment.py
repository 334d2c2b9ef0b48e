"""The environment variables that workflow files may read as `$env.NAME`: those that `App(allow_env=[...])` names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allowed: ContextVar[tuple[str, ...]] = ContextVar("tidemill_allowed_env", default=())


def allow_env(names: Iterable[str]) -> None:
    """Allow variables for everything that starts from here on."""
    _allowed.set(tuple(names))


@contextmanager
def allowing_env(names: Iterable[str]) -> Iterator[None]:
    """Allow variables for what starts within the block."""
    token = _allowed.set(tuple(names))
    try:
        yield
    finally:
        _allowed.reset(token)


def allowed_env() -> dict[str, str]:
    """The allowed variables that are set, by name."""
    return {name: os.environ[name] for name in _allowed.get() if name in os.environ}
