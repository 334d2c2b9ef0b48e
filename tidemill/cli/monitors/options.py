"""What the commands of `tidemill monitor` have in common: which monitor is meant, and how names and values are read."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from tidemill.cli.arguments import Command, parameters_of, with_parameters
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.core.errors import ConfigError
from tidemill.ops.monitors.monitors import ListMonitors, list_monitors
from tidemill.ops.operator.operation import Operator

T = TypeVar("T")

MonitorOption = Annotated[str | None, Parameter(help="The monitor; needed when there are several.")]
Entities = Annotated[str, Parameter(help="The entities; all of them, if none is named.")]
Past = Annotated[str, Parameter(help="How far back to read.")]


def on_monitor(command: Callable[..., Awaitable[Any]]) -> Command:
    """A command that is called with an operator and the name of a monitor: `--monitor`, or the only one there is."""
    own = parameters_of(command)[2:]
    named = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter("monitor", named, default=None, annotation=MonitorOption),
        inspect.Parameter("connection", named, default=ANYWHERE, annotation=ServerOptions),
    ]

    def run(*values: Any, monitor: str | None = None, connection: ServerOptions = ANYWHERE, **options: Any) -> Any:
        return with_monitor(connection, monitor, lambda at, name: command(at, name, *values, **options))

    return with_parameters(run, command, [*own, *more])


def with_monitor(
    connection: ServerOptions,
    name: str | None,
    work: Callable[[Operator, str], Awaitable[T]],
    *,
    app: str | None = None,
) -> T:
    """Do operations on a monitor: the named one, or the only one there is."""

    async def run(at: Operator) -> T:
        return await work(at, name or _only([each.name for each in (await at.do(list_monitors, ListMonitors())).items]))

    return connection.run(run, app=app)


def _only(known: list[str]) -> str:
    if len(known) != 1:
        found = ", ".join(known) or "none yet: run `tidemill monitor run app.py`"
        raise ConfigError(f"say which monitor with --monitor; there is {found}")
    return known[0]


def require_some(given: tuple[Any, ...]) -> None:
    """Raise if a command names nothing."""
    if not given:
        raise ConfigError("give at least one")


def pair(text: str) -> tuple[str, str]:
    """`name=value`, taken apart."""
    name, is_there, value = text.partition("=")
    if not is_there or not name:
        raise ConfigError(f"{text!r} is not NAME=VALUE, such as trigger=hot")
    return name, value


def value(text: str) -> Any:
    """A label's value from its text."""
    return {"true": True, "false": False}.get(text, text)
