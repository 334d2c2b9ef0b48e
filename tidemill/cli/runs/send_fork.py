"""What operators do to runs of workflows: `tidemill send`, `tidemill fork`, and a cancel.

What runs are made of is loaded where it is needed: it takes a while, and a server needs none of it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.cli.connection_options import ANYWHERE, ServerOptions, operator
from tidemill.cli.render import out
from tidemill.cli.runs.reported_run import run_number
from tidemill.core.codec import decode, encode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.store.audit import write_audit
from tidemill.store.database import Database
from tidemill.store.runs.runs import cancel_run, new_token, send_to_run, show_run

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient


def send(
    id: str, event: str, fields: str = "{}", /, *, app: str | None = None, place: ServerOptions = ANYWHERE
) -> None:
    """Send an event to a run: it is stored when this returns, and wakes the run if it sleeps.

    Parameters
    ----------
    id
        The run, as `tidemill runs` shows it: r12.
    event
        The name of the event's class.
    fields
        The event's fields as a JSON object.
    app
        The application that declares the workflow; with it, or by a server, the event is checked before it is sent.
    """
    number, values = run_number(id), _object(fields)

    async def stored(database: Database) -> None:
        from tidemill.dags.runner.runner import DAG_KIND
        from tidemill.flows.encoding.journal import TickRecord

        row = await show_run(database, number)
        if row["kind"] == DAG_KIND:
            raise ConfigError(
                f"run r{number} is of a dag, which takes no events: answer what it asks with `tidemill submit`, or "
                "repeat it with `tidemill dag rerun`"
            )
        data = _event_of(row["workflow"], event, values, app, place)
        token = new_token()
        record = TickRecord("received", time.time(), event=msgspec.Raw(data), token=token)
        await _note(database, "run.send", number, {"type": event, "step": None})
        await send_to_run(database, number, encode(record), token=token)

    def served(server: RowClient) -> None:
        server.post("runs", number, "events", body={"type": event, "fields": values})

    place.ask(stored, served)
    unchecked = app is None and place.server_url is None
    later = f"; whether it fits is seen when the run takes it: tidemill run r{number}" if unchecked else ""
    out().print(f"{event} sent to run r{number}{later}")


def fork(id: str, /, *, at: int, app: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Start a new run where another was after one of its ticks.

    Parameters
    ----------
    id
        The run, as `tidemill runs` shows it: r12.
    at
        The last tick that the new run shares with it.
    app
        The application that declares the workflow: app.py. A server has it.
    """
    number = run_number(id)
    if place.server_url is None:
        forked = asyncio.run(_fork(number, at, app, place))
    else:
        with place.remote() as server:
            forked = server.post("runs", number, "fork", body={"at": at})["id"]
    out().print(f"run r{forked} goes on from tick {at} of run r{number}")


def cancel_runs(ids: list[str], place: ServerOptions) -> None:
    """Ask runs to end; each is told by itself."""
    numbers = [run_number(each) for each in ids]

    async def stored(database: Database) -> None:
        from tidemill.runs import cancel_tick

        reason = f"cancelled by {operator()}"
        for number in numbers:
            row = await show_run(database, number)
            await cancel_run(database, number, cancel_tick(row["kind"], reason), reason=reason)
            await _note(database, "run.cancel", number, {"asked": True, "reason": None}, before={"state": row["state"]})
            out().print(f"run r{number} was asked to end")

    def served(server: RowClient) -> None:
        for number in numbers:
            server.post("runs", number, "cancel")
            out().print(f"run r{number} was asked to end")

    place.ask(stored, served)


async def _note(database: Database, action: str, number: int, after: object, *, before: object = None) -> None:
    """Write down what is done to a run, where the doing does not write it down itself."""
    async with database.transaction(patience=30.0) as connection:
        await write_audit(
            database, connection, who=operator(), action=action, target=f"r{number}", before=before, after=after
        )


async def _fork(number: int, at: int, app: str | None, place: ServerOptions) -> int:
    if app is None:
        raise ConfigError("a fork begins with the workflow's code: say --app app.py")
    from tidemill.cli.run.roles import application

    known = application(app, place)
    known.declarations.acting_as = operator()
    try:
        return (await known.runs.fork(number, at=at)).id
    finally:
        await known.close()


def _object(text: str) -> dict[str, Any]:
    try:
        values = decode(text)
    except PayloadError as error:
        raise ConfigError(f"the event's fields are not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError('the event\'s fields must be a JSON object, such as {"ok": true}')
    return values


def _event_of(workflow: str, event: str, values: dict[str, Any], app: str | None, place: ServerOptions) -> bytes:
    if app is None:
        return encode({"type": event, "value": values})
    from tidemill.cli.run.roles import application
    from tidemill.flows.encoding.events import encode_event
    from tidemill.flows.runner.sending import named_event

    known = application(app, place).runs.flows.get(workflow)
    if known is None:
        raise ConfigError(f"{app} declares no workflow {workflow!r}")
    return encode_event(named_event(known.workflow, event, values))
