"""`tidemill stream`: run streams, show them, change them while they run, and replay dead letters."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.live import Live

from tidemill.cli.arguments import Json, Metrics, Supervise, options_of
from tidemill.cli.connection_options import (
    ANYWHERE,
    HERE,
    ConnectionOptions,
    ServerOptions,
)
from tidemill.cli.open_database import require_database
from tidemill.cli.render import counted, listed, out, print_json, terminal
from tidemill.cli.run.process_tree import ProcessTree, child, run_processes
from tidemill.cli.run.processes import stream_part
from tidemill.cli.run.role_process import Part, application, handle_signals, run_role
from tidemill.cli.streams import control
from tidemill.cli.streams.control import AppOption
from tidemill.cli.streams.dead_letters import dead_letters, replay
from tidemill.cli.streams.view import streams_page
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.engine.settings import Settings
from tidemill.ops.operator.operation import Operator
from tidemill.ops.streams.streams import MOST_MESSAGES, ListStreams, PublishMessages, list_streams, publish_messages
from tidemill.ops.waiting import SAFETY_POLL
from tidemill.streams.definition.config import is_config, read_config
from tidemill.streams.definition.stream import Stream

commands = App(name="stream", help="Run streams, show and change them, replay dead letters.")
for command in control.COMMANDS:
    commands.command(command)
commands.command(dead_letters)
commands.command(replay)


class StreamTarget(msgspec.Struct, frozen=True):
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
    target: Annotated[
        str, Parameter(help="Where streams are declared: app.py, package.module, or a file in YAML or TOML.")
    ],
    stream: Annotated[str | None, Parameter(help="Only this one; all of them, if not given.")] = None,
    /,
    *,
    supervise: Supervise = True,
    metrics: Metrics = None,
    connection: ConnectionOptions = HERE,
) -> int:
    """Take messages and run them through their plans until stopped."""
    if not supervise:

        def make() -> Part:
            known = _load(target, connection, metrics)
            return stream_part(known.one(stream), target, known.settings)

        return run_role(make)

    def load() -> ProcessTree:
        known = _load(target, connection, metrics)
        wanted = known.only(stream)
        if not known.is_config:
            require_database(known.settings)
        specs = [
            child(
                "stream" if len(wanted) == 1 else f"stream-{each.name}",
                connection.arguments(),
                *("stream", "run", target, each.name, "--no-supervise"),
            )
            for each in wanted
        ]
        grace = max(each.drain for each in wanted)
        return ProcessTree(known.settings, specs, "tidemill stream", grace, migrates=is_config(target))

    return run_processes(load)


@commands.command
def status(
    stream: Annotated[str | None, Parameter(help="Only this one.")] = None,
    /,
    *,
    watch: Annotated[bool, Parameter(help="Keep showing it; Ctrl-C quits.")] = False,
    json: Json = False,
    app: AppOption = None,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Show sources and plans: rate, lag, in flight, retries, dead letters, latency."""
    args = ListStreams(name=stream)
    if watch and not json:
        if not sys.stdout.isatty():
            raise ConfigError("--watch needs a terminal to draw on: leave it out here")
        return connection.run(lambda at: _watch(at, args), app=app)
    found = connection.do(list_streams, args, app=app).items
    if stream is not None and not found:
        known = [each.name for each in connection.do(list_streams, ListStreams(), app=app).items]
        raise NotFoundError(f"no stream {stream!r} runs; there {listed(known)}{did_you_mean(stream, known)}")
    return print_json(found) if json else out().print(streams_page(found))


@commands.command
@options_of(PublishMessages, positional=("topic",), without=("messages", "headers"))
def publish(
    args: PublishMessages,
    payload: Annotated[list[str] | None, Parameter(help="The messages, as they are.")] = None,
    /,
    *,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Append messages to a topic of the PostgreSQL log; without any given, one per line of the standard input."""
    lines = payload if payload else [line.rstrip("\n") for line in sys.stdin if line.strip()]

    async def work(at: Operator) -> None:
        for first in range(0, len(lines), MOST_MESSAGES):
            some = lines[first : first + MOST_MESSAGES]
            await at.do(publish_messages, msgspec.structs.replace(args, messages=some))

    connection.run(work)
    is_one = len(lines) == 1
    out().print(f"{counted(len(lines), 'message')} {'is' if is_one else 'are'} in {args.topic}")


async def _watch(at: Operator, args: ListStreams) -> None:
    """Draw the streams again at every change of them, until a signal."""
    console = terminal()
    leaving = asyncio.Event()
    handle_signals(leaving.set)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        async with at.watch("streams") as changes:
            left = asyncio.create_task(leaving.wait())
            while not left.done():
                live.update(streams_page((await at.do(list_streams, args)).items), refresh=True)
                changed = asyncio.create_task(changes.wait(SAFETY_POLL))
                await asyncio.wait((left, changed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()


def _load(target: str, connection: ConnectionOptions, metrics: str | None) -> StreamTarget:
    if is_config(target):
        streams = {stream.name: stream for stream in read_config(target)}
        return StreamTarget(target, connection.settings(metrics=metrics), streams, True)
    known = application(target, connection.arguments(), metrics=metrics)
    return StreamTarget(target, known.settings, known.streams.declared, False)
