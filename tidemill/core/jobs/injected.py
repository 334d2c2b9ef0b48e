"""Marks the parameters of a function that are not arguments of a call, but objects of the process.

    async def send_receipt(order_id: int, http: AsyncClient = INJECTED) -> None: ...

The annotation says which object is meant. The mark is a default, so that type checkers do not ask callers for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from tidemill.core.errors import ConfigError


class _Injected:
    """Stands in a parameter until the object is known."""

    def __repr__(self) -> str:
        return "INJECTED"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigError(
            f"INJECTED has no {name!r}: the function was called in place, and not by Tidemill; pass the object yourself"
        )


INJECTED: Any = _Injected()


class InjectedParameter(msgspec.Struct, frozen=True):
    """A parameter into which an object is injected, and the annotation that says which."""

    name: str
    annotation: Any


def is_injected(parameter: inspect.Parameter) -> bool:
    """Whether the default of a parameter is `INJECTED`."""
    return parameter.default is INJECTED


def injected_parameters(function: Callable[..., Any], *, where: str) -> tuple[InjectedParameter, ...]:
    """The parameters of a function whose default is `INJECTED`; a `ConfigError` if one of them has no annotation."""
    try:
        names = [each.name for each in inspect.signature(function).parameters.values() if is_injected(each)]
    except (TypeError, ValueError):
        return ()
    if not names:
        return ()
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{where}: the type hints cannot be read: {error}") from error
    for name in names:
        if name not in hints:
            raise ConfigError(f"{where}: {name} = INJECTED needs an annotation that says what to inject")
    return tuple(InjectedParameter(name, hints[name]) for name in names)
