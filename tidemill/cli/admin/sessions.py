"""`tidemill session`: list the browsers that are logged in, and log one out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cyclopts import App
from rich.table import Table

from tidemill.cli.arguments import Json, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import ago, out, show, table
from tidemill.core.accounts import EVERY_APPLICATION, Grants
from tidemill.ops.admin.sessions import BrowserSession, SessionRef, end_session, list_sessions
from tidemill.ops.operator.operation import Nothing

session = App(name="session", help="List the browsers that are logged in, and log one out.")


@session.command(name="list")
def list_command(*, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """List the sessions of browsers, newest first: your own, or all if you are an admin."""
    rows = connection.do(list_sessions, Nothing()).items
    show(rows, sessions_table, json=json, none="no sessions: no browser is logged in")


@session.command
@options_of(SessionRef, positional=("id",))
def end(args: SessionRef, *, connection: ServerOptions = ANYWHERE) -> None:
    """End a session: its browser is logged out."""
    connection.do(end_session, args)
    out().print(f"session {args.id} is ended")


def sessions_table(rows: Sequence[BrowserSession], now: datetime) -> Table:
    made = table("id", "account", "role", "from", "opened", "used", "expires", numbers=("id",))
    for row in rows:
        name = row.name if row.token_id is None else f"{row.name} (token {row.token_id})"
        times = (ago(each, now) for each in (row.created_at, row.used_at, row.expires_at))
        made.add_row(str(row.id), name, roles_in_words(row.grants), row.address or "", *times)
    return made


def roles_in_words(grants: Grants) -> str:
    """Roles for people: `operator`, or `viewer, admin of shop`."""
    return ", ".join(role if where == EVERY_APPLICATION else f"{role} of {where}" for where, role in grants.items())
