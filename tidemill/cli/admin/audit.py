"""`tidemill audit`: which caller did what to which object."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table

from tidemill.cli.arguments import Json, Shown, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.paging import read_pages
from tidemill.cli.render import ago, show, table
from tidemill.core.codec import encode
from tidemill.ops.admin.audit import AuditEntry, ListAudit, list_audit


@options_of(ListAudit)
def audit(args: ListAudit, *, limit: Shown = 50, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """List what operators did, the newest first."""
    rows, cursor = connection.run(lambda at: read_pages(at, list_audit, args, limit))
    nothing = "nothing yet: pause, retry, cancel and the like are recorded here"
    none = nothing if args == ListAudit() else "no entry matches"
    show(rows, audit_table, json=json, none=none, cursor=cursor)


def audit_table(rows: Sequence[AuditEntry], now: datetime) -> Table:
    """Entries, with their application if there are several."""
    several = len({row.application for row in rows if row.application}) > 1
    made = table("when", *(["application"] if several else []), "who", "action", "target", "change", wide="change")
    for row in rows:
        application = [row.application or ""] if several else []
        made.add_row(ago(row.at, now), *application, row.who, row.action, row.target, change(row))
    return made


def change(entry: AuditEntry) -> str:
    """How something was before and is after."""
    before, after = (
        value if isinstance(value, str) else "" if value is None else encode(value).decode()
        for value in (entry.before, entry.after)
    )
    return f"{before} → {after}" if before else after
