"""What the commands of `tidemill monitor` have in common: which monitor is meant, and how its names are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.cli.connection_options import ServerOptions
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database
from tidemill.store.monitors.monitors import list_monitors

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient

T = TypeVar("T")


def with_monitor(
    place: ServerOptions,
    name: str | None,
    stored: Callable[[Database, str], Awaitable[T]],
    served: Callable[[RowClient, str], T],
) -> T:
    """Do something for a monitor in the database or by a server: the named one, or the only one there is."""

    def there(server: RowClient) -> T:
        return served(server, name or _only([each["name"] for each in server.items("monitors")]))

    return place.ask(lambda database: for_monitor(database, name, stored), there)


async def for_monitor(database: Database, name: str | None, work: Callable[[Database, str], Awaitable[T]]) -> T:
    """Do something for a monitor of the database: the named one, or the only one there is."""
    return await work(database, name or _only([row["name"] for row in await list_monitors(database)]))


def _only(known: list[str]) -> str:
    if len(known) != 1:
        told = ", ".join(known) or "none yet: run `tidemill monitor run app.py`"
        raise ConfigError(f"say which monitor with --monitor; there is {told}")
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
    """A value as people write it."""
    return {"true": True, "false": False}.get(text, text)
