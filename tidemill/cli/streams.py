"""`tidemill stream`: run streams, look at them, change them while they run, and bring dead letters back."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.live import Live

from tidemill.cli.confirm import agreed
from tidemill.cli.place import HERE, Place, open_soon, opened, operator, require_database
from tidemill.cli.render import out, plain, print_json
from tidemill.cli.roles import Part, application, hear_signals, play, role_command
from tidemill.cli.streamview import dead_page, dead_table, picture
from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.engine.logs import configure_logs
from tidemill.engine.settings import Settings
from tidemill.engine.supervisor import ChildSpec, Supervisor
from tidemill.engine.telemetry.endpoint import serving_metrics
from tidemill.store import streams as store
from tidemill.store.database import Database
from tidemill.store.eventlog import Entry, append
from tidemill.store.migrate import migrate
from tidemill.streams.config import is_config, read_config
from tidemill.streams.dispatcher import Dispatcher
from tidemill.streams.model import Stream

commands = App(name="stream", help="Run streams; look at them, change them, replay dead letters.")

EVERY = 1.0
DRAIN_PATIENCE = 600.0


class Target(msgspec.Struct, frozen=True):
    """What a command names: the streams of an application, or of a configuration file."""

    path: str
    settings: Settings
    streams: dict[str, Stream]
    is_config: bool

    def only(self, name: str | None) -> list[Stream]:
        if not self.streams:
            raise ConfigError(f"{self.path} declares no stream: add app.stream(Stream(...))")
        if name is None:
            return list(self.streams.values())
        if name not in self.streams:
            raise ConfigError(f"{self.path} declares no stream {name!r}; it declares {', '.join(self.streams)}")
        return [self.streams[name]]

    def one(self, name: str | None) -> Stream:
        found = self.only(name)
        if len(found) > 1:
            raise ConfigError(f"{self.path} declares several streams: say which one, of {', '.join(self.streams)}")
        return found[0]


@commands.command
def run(
    target: str,
    stream: str | None = None,
    /,
    *,
    supervise: Annotated[bool, Parameter(negative="--no-supervise")] = True,
    metrics: str | None = None,
    place: Place = HERE,
) -> int:
    """Take messages and run them through their plans until stopped.

    Parameters
    ----------
    target
        Where streams are declared: app.py, package.module, or a file in YAML or TOML.
    stream
        Only this one; all of them, if not given.
    supervise
        Start a dispatcher again when it has died.
    metrics
        Serve Prometheus metrics at this address, such as 127.0.0.1:9464.
    """
    if not supervise:

        def cast() -> Part:
            known = _load(target, place, metrics)
            wanted = known.one(stream)
            database = Database(known.settings.database(), application=f"tidemill stream {wanted.name}")
            return Part(Dispatcher(wanted, database, target=target), database, known.settings, patience=None)

        return play(cast)
    known = _load(target, place, metrics)
    wanted = known.only(stream)
    if not known.is_config:
        require_database(known.settings)
    specs = [
        ChildSpec(
            "stream" if len(wanted) == 1 else f"stream-{each.name}",
            role_command("stream", "run", target, each.name, "--no-supervise", *place.options()),
        )
        for each in wanted
    ]
    configure_logs(known.settings.log_level, known.settings.log_format)
    return asyncio.run(_supervise(known, specs, grace=max(each.drain for each in wanted)))


@commands.command
def status(stream: str | None = None, /, *, watch: bool = False, json: bool = False, place: Place = HERE) -> None:
    """Show sources and plans: rate, lag, in flight, retries, dead letters, latency.

    Parameters
    ----------
    stream
        Only this one.
    watch
        Keep showing it; Ctrl-C leaves.
    json
        Print one JSON document.
    """
    if watch and not json:
        if not sys.stdout.isatty():
            raise ConfigError("--watch needs a terminal to draw on: leave it out here")
        asyncio.run(_watch(stream, place))
        return None
    found = asyncio.run(_with_database(place, lambda database: look(database, stream)))
    if json:
        return print_json(found)
    if not found["dispatchers"]:
        return out().print("no stream is running: start one with `tidemill stream run app.py`", style="dim")
    return out().print(picture(found))


@commands.command
def drain(stream: str, /, *, wait: Annotated[bool, Parameter(negative="--no-wait")] = True, place: Place = HERE) -> int:
    """Take no more messages of a stream and finish what is under way; `resume` takes more again.

    Parameters
    ----------
    stream
        The stream.
    wait
        Return when nothing is under way any more.
    """
    return asyncio.run(_drain(stream, wait, place))


@commands.command
def resume(stream: str, /, *, place: Place = HERE) -> None:
    """Take messages again, after `drain`.

    Parameters
    ----------
    stream
        The stream.
    """
    _control(place, stream, mode="run")
    out().print(f"stream {stream} takes messages again")


@commands.command(name="set-weight")
def set_weight(stream: str, source: str, weight: float, /, *, place: Place = HERE) -> None:
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


@commands.command(name="set-limit")
def set_limit(stream: str, source: str, max_qps: float, /, *, place: Place = HERE) -> None:
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


@commands.command
def enable(stream: str, source: str, /, *, place: Place = HERE) -> None:
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


@commands.command
def disable(stream: str, source: str, /, *, place: Place = HERE) -> None:
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


@commands.command(name="dead-letters")
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
    place: Place = HERE,
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
    rows = asyncio.run(_with_database(place, lambda database: store.list_dead(database, which, limit=limit)))
    if json:
        return print_json([_plain_dead(row) for row in rows])
    if not rows:
        return out().print("no dead letters", style="dim")
    return out().print(dead_page(rows[0]) if id and len(rows) == 1 else dead_table(rows))


@commands.command
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
    place: Place = HERE,
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
    if which == store.DeadFilter() and not yes and not agreed("replay all dead letters of all streams"):
        return
    count = asyncio.run(_with_database(place, lambda database: store.replay_dead(database, which, by=operator())))
    out().print(f"{count} dead letters are tried again")


@commands.command
def publish(topic: str, payload: list[str] | None = None, /, *, key: str | None = None, place: Place = HERE) -> None:
    """Append messages to a topic of the PostgreSQL log; without any given, one per line of the standard input.

    Parameters
    ----------
    topic
        The topic.
    payload
        The messages, as they are.
    key
        The key of them all.
    """
    lines = payload if payload else [line.rstrip("\n") for line in sys.stdin if line.strip()]

    async def put(database: Database) -> None:
        async with database.transaction(patience=30.0) as connection:
            await append(connection, database.schema, [Entry(topic, line.encode(), key) for line in lines])

    asyncio.run(_with_database(place, put))
    out().print(f"{len(lines)} messages are in {topic}")


# -- inner parts ----------------------------------------------------------------------------------


async def look(database: Database, stream: str | None = None) -> dict[str, Any]:
    """Everything that `status` shows, as plain data."""
    rows = await store.read_status(database, stream)
    dispatchers = [{**plain(dict(row), "status", "dispatcher"), **msgspec.json.decode(row["status"])} for row in rows]
    names = sorted({row["stream"] for row in rows})
    kept = {row["stream"]: dict(row) for row in await database.fetch(store.COUNT_KEPT, names)}
    return {"dispatchers": dispatchers, "kept": kept}


async def _watch(stream: str | None, place: Place) -> None:
    console = Console(file=sys.stdout, highlight=False, emoji=False, markup=False)
    leaving = asyncio.Event()
    hear_signals(leaving.set)
    async with opened(place.settings()) as database:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while not leaving.is_set():
                live.update(picture(await look(database, stream)), refresh=True)
                try:
                    async with asyncio.timeout(EVERY):
                        await leaving.wait()
                except TimeoutError:
                    continue


async def _drain(stream: str, wait: bool, place: Place) -> int:
    async with opened(place.settings()) as database:
        await _require(database, stream)
        await store.set_control(database, stream, mode="drain", by=operator())
        began = time.monotonic()
        while wait:
            found = await look(database, stream)
            left = sum(each["in_flight"] for each in found["dispatchers"])
            if all(each["mode"] == "drain" for each in found["dispatchers"]) and not left:
                break
            if time.monotonic() - began > DRAIN_PATIENCE:
                raise ConfigError(f"stream {stream} still has {left} messages under way; see `tidemill stream status`")
            out().print(f"{left} under way", style="dim")
            await asyncio.sleep(EVERY / 2)
    out().print(f"stream {stream} {'is drained' if wait else 'drains'}; `tidemill stream resume {stream}` goes on")
    return 0


def _control(place: Place, stream: str, source: str = "", **wanted: Any) -> None:
    async def say(database: Database) -> None:
        await _require(database, stream, source)
        await store.set_control(database, stream, source, by=operator(), **wanted)

    asyncio.run(_with_database(place, say))


async def _require(database: Database, stream: str, source: str = "") -> None:
    """An error for a name that no running dispatcher knows: a slip of the pen must not look like success."""
    rows = await store.read_status(database, stream)
    if not rows:
        raise NotFoundError(f"no stream {stream!r} is running; see `tidemill stream status`")
    known = [each["name"] for each in msgspec.json.decode(rows[0]["status"])["sources"]]
    if source and source not in known:
        raise NotFoundError(f"stream {stream} has no source {source!r}; its sources are {', '.join(known)}")


async def _with_database(place: Place, work: Any) -> Any:
    async with opened(place.settings()) as database:
        return await work(database)


def _which(
    stream: str | None,
    source: str | None,
    plan: str | None,
    why: str | None,
    error: str | None,
    since: str | None,
    ids: list[int] | None,
) -> store.DeadFilter:
    if why not in (None, "failed", "undecodable", "lost"):
        raise ConfigError(f"--why {why}: it is one of failed, undecodable, lost")
    moment = None
    if since is not None:
        moment = datetime.fromtimestamp(time.time() - parse_duration(since, what="--since"), UTC)
    return store.DeadFilter(stream, source, plan, why, error, moment, tuple(ids) if ids else None)


def _plain_dead(row: Any) -> dict[str, Any]:
    made = plain(row, "payload", "key")
    made["payload"] = row["payload"].decode(errors="replace")
    made["key"] = None if row["key"] is None else row["key"].decode(errors="replace")
    return made


def _load(target: str, place: Place, metrics: str | None) -> Target:
    if is_config(target):
        streams = {stream.name: stream for stream in read_config(target)}
        return Target(target, place.settings(metrics=metrics), streams, True)
    known = application(target, place, metrics=metrics)
    return Target(target, known.settings, known.streams.declared, False)


async def _supervise(known: Target, specs: list[ChildSpec], *, grace: float) -> int:
    """The dispatchers' parent: holds the embedded server, and starts again whoever dies."""
    database = Database(known.settings.database(), application="tidemill stream")
    try:
        await open_soon(database)
        if known.is_config:
            await migrate(database)
        supervisor = Supervisor(specs, grace=grace)
        hear_signals(supervisor.stop)
        async with serving_metrics(database, known.settings.metrics):
            return await supervisor.run()
    finally:
        await database.close()
