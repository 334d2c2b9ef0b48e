"""`tidemill audit`: which caller did what to which object."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemill.cli.arguments import options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.paging import read_pages
from tidemill.cli.render import ago, out, print_json, table
from tidemill.core.codec import encode
from tidemill.ops.admin.audit import AuditEntry, ListAudit, list_audit


@options_of(ListAudit)
def audit(args: ListAudit, *, limit: int = 50, json: bool = False, place: ServerOptions = ANYWHERE) -> None:
    """List what operators did, the newest first.

    Parameters
    ----------
    limit
        How many entries to show.
    json
        Print one JSON document.
    """
    rows, cursor = place.run(lambda at: read_pages(at, list_audit, args, limit))
    if json:
        return print_json(rows)
    if not rows:
        return out().print("nothing yet: pause, retry, cancel and the like are recorded here", style="dim")
    several = len({row.application for row in rows if row.application}) > 1
    made = table("when", *(["application"] if several else []), "who", "action", "target", "change", wide="change")
    now = datetime.now(UTC)
    for row in rows:
        application = [row.application or ""] if several else []
        made.add_row(ago(row.at, now), *application, row.who, row.action, row.target, change(row))
    out().print(made)
    if cursor is not None:
        out().print(f"\nolder ones: --cursor {cursor}", style="dim")
    return None


def change(entry: AuditEntry) -> str:
    """How something was before and is after."""
    before, after = (
        value if isinstance(value, str) else "" if value is None else encode(value).decode()
        for value in (entry.before, entry.after)
    )
    return f"{before} → {after}" if before else after
