"""One case for an operation: what there is before it, its arguments, and its command line where it has one.

A new operation needs a line in one of the `CASES` beside this file. `prepare` makes what the operation works on; ids
begin at 1 in each case. The arguments in `wrong` must be refused with the same error wherever the operation is done.
`command` is what a user types; `items` says that the command prints the list in the result rather than the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from msgspec import Struct

from tidemill import App
from tidemill.store.database import Database


class World(NamedTuple):
    """What a case prepares: the application and its empty database; and the address of the server."""

    app: App
    database: Database
    url: str


Prepare = Callable[[World], Awaitable[Any]]


async def nothing(world: World) -> None:
    """An empty database."""


class Case(NamedTuple):
    """How one operation is tried."""

    args: Struct
    prepare: Prepare = nothing
    wrong: tuple[Struct, ...] = ()
    command: str | None = None
    items: bool = False
