"""Refuse what a program declares with the wrong kind of value, or with a function that cannot be called as it will be.

Both are mistakes that would otherwise come to light when the first job, message or event arrives, or never.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tidemill.core.errors import ConfigError


def check_kind(what: str, given: object, kind: type | tuple[type, ...], meant: str) -> None:
    """Raise a `ConfigError` unless a value is of this kind; `meant` says what to write instead."""
    if not isinstance(given, kind):
        raise ConfigError(f"{what} takes {meant}, and not {given!r:.100}")


def check_function(what: str, function: Any, *takes: str, plain: bool = True) -> Any:
    """The function, or a `ConfigError` unless it takes these arguments by position; `plain` refuses async functions."""
    if not callable(function):
        raise ConfigError(f"{what} takes a function, such as lambda {', '.join(takes)}: ..., and not {function!r:.100}")
    name = getattr(function, "__qualname__", None) or repr(function)
    if plain and _is_async(function):
        raise ConfigError(f"{what}: {name} is async, and nothing would await it: write it with def")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # Some built-in functions have none.
        return function
    try:
        signature.bind(*takes)
    except TypeError as error:
        raise ConfigError(f"{what}: {name} must take ({', '.join(takes)}): {error}") from None
    return function


def _is_async(function: Callable[..., Any]) -> bool:
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return any(
        check(each)
        for each in (function, called)
        for check in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    )
