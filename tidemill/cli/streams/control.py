"""What operators want of streams while they run: `tidemill stream drain`, weights, limits, sources off and on."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from tidemill.cli.connection_options import ANYWHERE, ServerOptions, operator
from tidemill.cli.render import out
from tidemill.cli.streams.status import EVERY, look, look_there
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.store.database import Database
from tidemill.store.streams import streams as store

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient

DRAIN_PATIENCE = 600.0


def drain(
    stream: str, /, *, wait: Annotated[bool, Parameter(negative="--no-wait")] = True, place: ServerOptions = ANYWHERE
) -> None:
    """Take no more messages of a stream and finish what is under way; `resume` takes more again.

    Parameters
    ----------
    stream
        The stream.
    wait
        Return when nothing is under way any more.
    """
    give_up = time.monotonic() + DRAIN_PATIENCE

    def is_over(found: dict[str, Any]) -> bool:
        left = sum(each["in_flight"] for each in found["dispatchers"])
        if all(each["mode"] == "drain" for each in found["dispatchers"]) and not left:
            return True
        if time.monotonic() > give_up:
            raise ConfigError(f"stream {stream} still has {left} messages under way; see `tidemill stream status`")
        out().print(f"{left} under way", style="dim")
        return False

    async def stored(database: Database) -> None:
        await _say(database, stream, "", mode="drain")
        while wait:
            if is_over(await look(database, stream)):
                break
            await asyncio.sleep(EVERY / 2)

    def served(server: RowClient) -> None:
        server.post("streams", stream, "control", body={"mode": "drain"})
        while wait and not is_over(look_there(server, stream)):
            time.sleep(EVERY / 2)

    place.ask(stored, served)
    out().print(f"stream {stream} {'is drained' if wait else 'drains'}; `tidemill stream resume {stream}` goes on")


def resume(stream: str, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Take messages again, after `drain`.

    Parameters
    ----------
    stream
        The stream.
    """
    _control(place, stream, mode="run")
    out().print(f"stream {stream} takes messages again")


def set_weight(stream: str, source: str, weight: float, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Give a source another share, at once.

    Parameters
    ----------
    stream
        The stream.
    source
        The source.
    weight
        Its weight against those of the others.
    """
    if not weight > 0:
        raise ConfigError(f"a weight of {weight:g} would never let a message through; use `tidemill stream disable`")
    _control(place, stream, source, weight=weight)
    out().print(f"{stream}/{source} has weight {weight:g} now")


def set_limit(stream: str, source: str, max_qps: float, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Give a source another limit of messages a second, at once.

    Parameters
    ----------
    stream
        The stream.
    source
        The source.
    max_qps
        Messages a second; 0 for no limit.
    """
    if max_qps < 0:
        raise ConfigError(f"{max_qps:g} is not a number of messages a second")
    _control(place, stream, source, max_qps=max_qps)
    out().print(f"{stream}/{source} sends {f'at most {max_qps:g}/s' if max_qps else 'without a limit'} now")


def enable(stream: str, source: str, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Take messages of a source again.

    Parameters
    ----------
    stream
        The stream.
    source
        The source.
    """
    _control(place, stream, source, enabled=True)
    out().print(f"{stream}/{source} is on")


def disable(stream: str, source: str, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Send no message of a source any more; what is under way ends.

    Parameters
    ----------
    stream
        The stream.
    source
        The source.
    """
    _control(place, stream, source, enabled=False)
    out().print(f"{stream}/{source} is off")


def _control(place: ServerOptions, stream: str, source: str = "", **wanted: Any) -> None:
    place.ask(
        lambda database: _say(database, stream, source, **wanted),
        lambda server: server.post("streams", stream, "control", body={"source": source, **wanted}),
    )


async def _say(database: Database, stream: str, source: str, **wanted: Any) -> None:
    """Say what is wanted; an error for a name that no running dispatcher knows: a slip of the pen must not look like
    success."""
    rows = await store.read_status(database, stream)
    if not rows:
        raise NotFoundError(f"no stream {stream!r} is running; see `tidemill stream status`")
    known = [each["name"] for each in msgspec.json.decode(rows[0]["status"])["sources"]]
    if source and source not in known:
        raise NotFoundError(f"stream {stream} has no source {source!r}; its sources are {', '.join(known)}")
    await store.set_control(database, stream, source, by=operator(), **wanted)


COMMANDS = (drain, resume, set_weight, set_limit, enable, disable)
