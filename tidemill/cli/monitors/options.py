"""What the commands of `tidemill monitor` have in common: which monitor is meant, and how names and values are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidemill.cli.connection_options import ServerOptions
from tidemill.core.errors import ConfigError
from tidemill.ops.monitors.monitors import ListMonitors, list_monitors
from tidemill.ops.operator.operation import Operator

T = TypeVar("T")


def with_monitor(
    place: ServerOptions, name: str | None, work: Callable[[Operator, str], Awaitable[T]], *, app: str | None = None
) -> T:
    """Do operations on a monitor: the named one, or the only one there is."""

    async def run(at: Operator) -> T:
        return await work(at, name or _only([each.name for each in (await at.do(list_monitors, ListMonitors())).items]))

    return place.run(run, app=app)


def _only(known: list[str]) -> str:
    if len(known) != 1:
        found = ", ".join(known) or "none yet: run `tidemill monitor run app.py`"
        raise ConfigError(f"say which monitor with --monitor; there is {found}")
    return known[0]


def some(given: tuple[Any, ...]) -> None:
    """Refuse a command that names nothing."""
    if not given:
        raise ConfigError("say at least one")


def pair(text: str) -> tuple[str, str]:
    """`name=value`, taken apart."""
    name, is_there, value = text.partition("=")
    if not is_there or not name:
        raise ConfigError(f"{text!r}: write it as name=value")
    return name, value


def value(text: str) -> Any:
    """A label's value from its text."""
    return {"true": True, "false": False}.get(text, text)
