"""`tidemill send` and `tidemill fork`; what `tidemill cancel` and `tidemill retry` do with runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from tidemill.cli.arguments import AppOption, RunId, run_number
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import out
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.ops.operator.operation import A, Operation, Operator
from tidemill.ops.runs.cancel import CancelRun, cancel_run, retry_run
from tidemill.ops.runs.events import ForkRun, SendEvent, fork_run, send_event
from tidemill.ops.runs.runs import RunRef


def send(
    id: RunId,
    event: Annotated[str, Parameter(help="The name of the event's class.")],
    fields: Annotated[str, Parameter(help="The event's fields as a JSON object.")] = "{}",
    /,
    *,
    step: Annotated[
        str | None, Parameter(help="The step that receives it; by default every step that accepts it.")
    ] = None,
    app: AppOption = None,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Send an event to a run: it is stored when this returns, and wakes the run if it sleeps.

    With the application, or through a server, the event is checked before it is sent; otherwise only its class is.
    """
    sent = connection.do(
        send_event, SendEvent(id=run_number(id), type=event, fields=_object(fields), step=step), app=app
    )
    unchecked = app is None and connection.server_url is None
    later = f"; whether it fits is seen when the run takes it: tidemill run r{sent.run_id}" if unchecked else ""
    out().print(f"{event} sent to run r{sent.run_id}{later}")


def fork(
    id: RunId,
    /,
    *,
    at: Annotated[int, Parameter(help="The last tick that the new run shares with it.")],
    app: AppOption = None,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Start a new run where another was after one of its ticks."""
    number = run_number(id)
    if app is None and connection.server_url is None:
        raise ConfigError("a fork needs the workflow's code: add --app app.py")
    forked = connection.do(fork_run, ForkRun(id=number, at=at), app=app)
    out().print(f"run r{forked.id} goes on from tick {at} of run r{number}")


def cancel_runs(ids: Sequence[str], connection: ServerOptions) -> None:
    """Ask runs to end, one after the other."""
    _for_each(ids, connection, cancel_run, CancelRun, "was asked to end")


def retry_runs(ids: Sequence[str], connection: ServerOptions) -> None:
    """Start runs again that need attention, one after the other."""
    _for_each(ids, connection, retry_run, RunRef, "goes on: its steps in progress are tried again")


def _for_each(
    ids: Sequence[str], connection: ServerOptions, operation: Operation[A, Any], arguments: Callable[..., A], done: str
) -> None:
    numbers = [run_number(each) for each in ids]

    async def work(at: Operator) -> None:
        for number in numbers:
            await at.do(operation, arguments(id=number))
            out().print(f"run r{number} {done}")

    connection.run(work)


def _object(text: str) -> dict[str, Any]:
    try:
        values = decode(text)
    except PayloadError as error:
        raise ConfigError(f"the event's fields are not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError('the event\'s fields must be a JSON object, such as {"ok": true}')
    return values
