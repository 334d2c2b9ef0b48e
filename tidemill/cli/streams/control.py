"""Changes to streams while they run: `tidemill stream drain`, weights, limits, sources disabled and enabled."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from tidemill.cli.arguments import options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import out
from tidemill.core.errors import ConfigError
from tidemill.ops.operator.operation import Operator
from tidemill.ops.streams.streams import ControlStream, control_stream
from tidemill.ops.waiting import wait_for_drain

DRAIN_PATIENCE = 600.0

AppOption = Annotated[
    str | None, Parameter(help="The application, app.py: its streams are known even when they do not run.")
]
Wait = Annotated[bool, Parameter(negative="--no-wait", help="Return when nothing is in flight.")]


def _given(*positional: str) -> Any:
    return options_of(ControlStream, positional=positional, only_positional=True)


Burst = Annotated[float | None, Parameter(help="How many messages may pass at once after a quiet time.")]


@_given("name")
def drain(
    args: ControlStream, *, wait: Wait = True, app: AppOption = None, connection: ServerOptions = ANYWHERE
) -> None:
    """Take no more messages of a stream and finish those in flight; `resume` takes more again."""

    async def work(at: Operator) -> None:
        await at.do(control_stream, ControlStream(name=args.name, mode="drain"))
        if not wait:
            return
        try:
            async with asyncio.timeout(DRAIN_PATIENCE):
                await wait_for_drain(at, args.name, each=lambda left: out().print(f"{left} in flight", style="dim"))
        except TimeoutError as error:
            message = f"stream {args.name} has had messages in flight for {DRAIN_PATIENCE:g} s"
            raise ConfigError(f"{message}; see `tidemill stream status`") from error

    connection.run(work, app=app)
    ended = "is drained" if wait else "drains"
    out().print(f"stream {args.name} {ended}; `tidemill stream resume {args.name}` goes on")


@_given("name")
def resume(args: ControlStream, *, app: AppOption = None, connection: ServerOptions = ANYWHERE) -> None:
    """Take messages again, after `drain`."""
    connection.do(control_stream, msgspec.structs.replace(args, mode="run"), app=app)
    out().print(f"stream {args.name} takes messages again")


@_given("name", "source", "weight")
def set_weight(args: ControlStream, *, app: AppOption = None, connection: ServerOptions = ANYWHERE) -> None:
    """Give a source another share, at once."""
    connection.do(control_stream, args, app=app)
    out().print(f"{args.name}/{args.source} has weight {args.weight:g} now")


@_given("name", "source", "max_qps")
def set_limit(
    args: ControlStream, *, burst: Burst = None, app: AppOption = None, connection: ServerOptions = ANYWHERE
) -> None:
    """Give a source, or `live` requests, another limit of messages a second, at once."""
    connection.do(control_stream, msgspec.structs.replace(args, burst=burst), app=app)
    limit = f"at most {args.max_qps:g}/s" if args.max_qps else "without a limit"
    limit += "" if burst is None else f", {burst:g} at once"
    out().print(f"{args.name}/{args.source} sends {limit} now")


@_given("name", "source")
def enable(args: ControlStream, *, app: AppOption = None, connection: ServerOptions = ANYWHERE) -> None:
    """Take messages of a source again, or send the items of a sink."""
    connection.do(control_stream, msgspec.structs.replace(args, enabled=True), app=app)
    out().print(f"{args.name}/{args.source} is on")


@_given("name", "source")
def disable(args: ControlStream, *, app: AppOption = None, connection: ServerOptions = ANYWHERE) -> None:
    """Take no more messages of a source, those in flight finish; or send no more items to a sink, they wait."""
    connection.do(control_stream, msgspec.structs.replace(args, enabled=False), app=app)
    out().print(f"{args.name}/{args.source} is off")


COMMANDS = (drain, resume, set_weight, set_limit, enable, disable)
