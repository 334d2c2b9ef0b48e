"""Changes to streams while they run: `tidemill stream drain`, weights, limits, sources disabled and enabled."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from cyclopts import Parameter

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


def drain(
    stream: str,
    /,
    *,
    wait: Annotated[bool, Parameter(negative="--no-wait")] = True,
    app: AppOption = None,
    place: ServerOptions = ANYWHERE,
) -> None:
    """Take no more messages of a stream and finish those in flight; `resume` takes more again.

    Parameters
    ----------
    stream
        The stream.
    wait
        Return when nothing is in flight any more.
    """

    async def work(at: Operator) -> None:
        await at.do(control_stream, ControlStream(name=stream, mode="drain"))
        if not wait:
            return
        try:
            async with asyncio.timeout(DRAIN_PATIENCE):
                await wait_for_drain(at, stream, each=lambda left: out().print(f"{left} in flight", style="dim"))
        except TimeoutError as error:
            told = f"stream {stream} has had messages in flight for {DRAIN_PATIENCE:g} s"
            raise ConfigError(f"{told}; see `tidemill stream status`") from error

    place.run(work, app=app)
    out().print(f"stream {stream} {'is drained' if wait else 'drains'}; `tidemill stream resume {stream}` goes on")


def resume(stream: str, /, *, app: AppOption = None, place: ServerOptions = ANYWHERE) -> None:
    """Take messages again, after `drain`.

    Parameters
    ----------
    stream
        The stream.
    """
    _control(place, app, stream, mode="run")
    out().print(f"stream {stream} takes messages again")


def set_weight(
    stream: str, source: str, weight: float, /, *, app: AppOption = None, place: ServerOptions = ANYWHERE
) -> None:
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
    _control(place, app, stream, source=source, weight=weight)
    out().print(f"{stream}/{source} has weight {weight:g} now")


def set_limit(
    stream: str, source: str, max_qps: float, /, *, app: AppOption = None, place: ServerOptions = ANYWHERE
) -> None:
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
    _control(place, app, stream, source=source, max_qps=max_qps)
    out().print(f"{stream}/{source} sends {f'at most {max_qps:g}/s' if max_qps else 'without a limit'} now")


def enable(stream: str, source: str, /, *, app: AppOption = None, place: ServerOptions = ANYWHERE) -> None:
    """Take messages of a source again.

    Parameters
    ----------
    stream
        The stream.
    source
        The source.
    """
    _control(place, app, stream, source=source, enabled=True)
    out().print(f"{stream}/{source} is on")


def disable(stream: str, source: str, /, *, app: AppOption = None, place: ServerOptions = ANYWHERE) -> None:
    """Take no more messages of a source; those in flight finish.

    Parameters
    ----------
    stream
        The stream.
    source
        The source.
    """
    _control(place, app, stream, source=source, enabled=False)
    out().print(f"{stream}/{source} is off")


def _control(place: ServerOptions, app: str | None, stream: str, **wanted: Any) -> None:
    place.do(control_stream, ControlStream(name=stream, **wanted), app=app)


COMMANDS = (drain, resume, set_weight, set_limit, enable, disable)
