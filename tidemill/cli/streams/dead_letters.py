"""`tidemill stream dead-letters` and `tidemill stream replay`: messages that were given up, and another chance."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, ServerOptions, operator
from tidemill.cli.render import out, print_json, read_json
from tidemill.cli.streams.view import dead_page, dead_table
from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database
from tidemill.store.streams.streams import DeadFilter, list_dead, replay_dead

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient


def dead_letters(
    stream: str | None = None,
    /,
    *,
    source: str | None = None,
    plan: str | None = None,
    why: str | None = None,
    error: str | None = None,
    since: str | None = None,
    id: list[int] | None = None,
    limit: int = 25,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """List messages that were given up, the newest first; one alone is shown in full.

    Parameters
    ----------
    stream
        Only of this stream.
    source
        Only of this source.
    plan
        Only those that this plan failed for.
    why
        Only failed, undecodable or lost ones.
    error
        Only those whose error contains this text.
    since
        Only those given up within this time, such as 2h.
    id
        Only this one; say it again for more.
    limit
        How many to show.
    json
        Print one JSON document.
    """
    which = _which(stream, source, plan, why, error, since, id)

    async def stored(database: Database) -> list[dict[str, Any]]:
        return [_letter(dict(row)) for row in await list_dead(database, which, limit=limit)]

    def served(server: RowClient) -> list[dict[str, Any]]:
        asked = msgspec.structs.asdict(which)
        rows = server.pages("dead-letters", limit=limit, id=asked.pop("ids"), **asked)
        return [_whole(server, row) for row in rows]

    rows = place.ask(stored, served)
    if json:
        return print_json(rows)
    if not rows:
        return out().print("no dead letters", style="dim")
    return out().print(dead_page(rows[0]) if id and len(rows) == 1 else dead_table(rows))


def replay(
    stream: str | None = None,
    /,
    *,
    source: str | None = None,
    plan: str | None = None,
    why: str | None = None,
    error: str | None = None,
    since: str | None = None,
    id: list[int] | None = None,
    yes: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """Try dead letters again, with all their attempts; prints how many.

    Parameters
    ----------
    stream
        Only of this stream.
    source
        Only of this source.
    plan
        Only those that this plan failed for.
    why
        Only failed, undecodable or lost ones.
    error
        Only those whose error contains this text.
    since
        Only those given up within this time, such as 2h.
    id
        Only this one; say it again for more.
    yes
        Do not ask, even if this means all of them.
    """
    which = _which(stream, source, plan, why, error, since, id)
    if which == DeadFilter() and not yes and not agreed("replay all dead letters of all streams"):
        return
    count = place.ask(
        lambda database: replay_dead(database, which, by=operator()),
        lambda server: server.post("dead-letters", "replay", body=which)["count"],
    )
    out().print(f"{count} dead letters are tried again")


def _which(
    stream: str | None,
    source: str | None,
    plan: str | None,
    why: str | None,
    error: str | None,
    since: str | None,
    ids: list[int] | None,
) -> DeadFilter:
    if why not in (None, "failed", "undecodable", "lost"):
        raise ConfigError(f"--why {why}: it is one of failed, undecodable, lost")
    moment = None
    if since is not None:
        moment = datetime.fromtimestamp(time.time() - parse_duration(since, what="--since"), UTC)
    return DeadFilter(stream, source, plan, why, error, moment, tuple(ids) if ids else None)


def _letter(row: dict[str, Any]) -> dict[str, Any]:
    """A letter from its row."""
    key = None if row["key"] is None else row["key"].decode(errors="replace")
    return {
        **row,
        "key": key,
        "headers": read_json(row["headers"]),
        "payload": row["payload"].decode(errors="replace"),
    }


def _whole(server: RowClient, row: dict[str, Any]) -> dict[str, Any]:
    """A letter of a server's list, with all of its payload."""
    told = server.row("dead-letters", row["id"]) if row["truncated"] else row
    return {name: value for name, value in told.items() if name != "truncated"}
