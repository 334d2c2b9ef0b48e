"""What the commands of `tidemill monitor` have in common: which monitor is meant, and how its names are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidemill.cli.place import Place, with_database
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database
from tidemill.store.monitors import list_monitors

T = TypeVar("T")


def with_monitor(place: Place, name: str | None, work: Callable[[Database, str], Awaitable[T]]) -> T:
    """Do something for a monitor: the named one, or the only one there is."""

    async def go(database: Database) -> T:
        if name is not None:
            return await work(database, name)
        known = [row["name"] for row in await list_monitors(database)]
        if len(known) != 1:
            told = ", ".join(known) or "none yet: run `tidemill monitor run app.py`"
            raise ConfigError(f"say which monitor with --monitor; there is {told}")
        return await work(database, known[0])

    return with_database(place, go)


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
    """A value as people write it."""
    return {"true": True, "false": False}.get(text, text)
