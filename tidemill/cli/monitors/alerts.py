"""What people do with alerts: `tidemill monitor alerts`, `ack`, `note`, `silence`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from tidemill.cli.arguments import Json, Shown, Yes, id_parameter, options_of
from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.monitors.options import MonitorOption, pair, with_monitor
from tidemill.cli.monitors.view import alerts_table
from tidemill.cli.paging import read_pages
from tidemill.cli.render import local, out, show
from tidemill.core.errors import ConfigError
from tidemill.ops.monitors.alerts import (
    AckAlerts,
    ListAlerts,
    ListSilences,
    NoteAlert,
    SilenceAlerts,
    SilenceRef,
    ack_alerts,
    end_silence,
    list_alerts,
    list_silences,
    note_alert,
    preview_ack_alerts,
    silence_alerts,
)
from tidemill.ops.operator.operation import Operator
from tidemill.store.monitors.alerts import UnackedFilter


@options_of(ListAlerts, without=("current",))
def alerts(
    args: ListAlerts,
    *,
    all: Annotated[bool, Parameter(help="Those resolved before, too.")] = False,
    limit: Shown = 50,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """List alerts, the newest first: open ones, and those resolved in the last two minutes."""
    wanted = msgspec.structs.replace(args, current=not all)
    rows, cursor = connection.run(lambda at: read_pages(at, list_alerts, wanted, limit))
    show(rows, alerts_table, json=json, none="no alerts", cursor=cursor)


@options_of(UnackedFilter, without=("up_to",))
def ack(
    wanted: UnackedFilter,
    *ids: Annotated[
        int, id_parameter("alert", "The alerts; or select those that are not acknowledged with the options.")
    ],
    note: Annotated[str | None, Parameter(help="A note to store with them.")] = None,
    yes: Yes = False,
    connection: ServerOptions = ANYWHERE,
) -> int:
    """Acknowledge alerts. A sustained one is opened again if nothing changes."""
    if bool(ids) == (wanted != UnackedFilter()):
        raise ConfigError("say which alerts: either ids, or --monitor, --entity, --trigger, --severity")
    if ids:
        done = connection.do(ack_alerts, AckAlerts(ids=list(ids), note=note)).ids
        for id in ids:
            out().print(f"alert a{id} {'is acknowledged' if id in done else 'was acknowledged before'}")
        return 0

    async def work(at: Operator) -> int:
        found = await at.do(preview_ack_alerts, wanted)
        if not found.count:
            out().print("no alert to acknowledge matches")
            return 0
        if not (yes or agreed(f"acknowledge {_alerts(found.count)}")):
            return 1
        meant = msgspec.structs.replace(wanted, up_to=found.up_to)
        done = await at.do(ack_alerts, AckAlerts(filter=meant, note=note))
        out().print(f"{_alerts(done.count)} acknowledged now")
        return 0

    return connection.run(work)


@options_of(NoteAlert, positional=("id", "note"), ids={"id": "alert"})
def note(args: NoteAlert, *, connection: ServerOptions = ANYWHERE) -> None:
    """Put a note on an alert."""
    connection.do(note_alert, args)
    out().print(f"alert a{args.id} has a note")


def silence(
    *matchers: Annotated[str, Parameter(help="As in trigger=hot entity=press-*; all of them must fit.")],
    lasts: Annotated[str, Parameter(help="For how long: 30m, 1h, 2d.")] = "1h",
    comment: Annotated[str, Parameter(help="Why.")] = "",
    end: Annotated[int | None, Parameter(help="End this silence now instead.")] = None,
    monitor: MonitorOption = None,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Send no notices of some alerts for a time; without matchers, list the silences."""
    if end is not None:
        connection.do(end_silence, SilenceRef(id=end))
        return out().print(f"silence {end} has ended")
    if not matchers:
        for each in connection.do(list_silences, ListSilences(monitor=monitor)).items:
            fits = " ".join(f"{name}={pattern}" for name, pattern in each.matchers.items())
            why = f" ({each.comment})" if each.comment else ""
            out().print(f"{each.id}  {each.monitor}  {fits}  until {local(each.ends_at)} by {each.by}{why}")
        return None
    wanted = dict(pair(each) for each in matchers)
    made = with_monitor(
        connection,
        monitor,
        lambda at, name: at.do(silence_alerts, SilenceAlerts(name=name, matchers=wanted, lasts=lasts, comment=comment)),
    )
    return out().print(f"silence {made.id} until {local(made.ends_at)}")


def _alerts(count: int) -> str:
    return "1 alert" if count == 1 else f"{count:,} alerts"


COMMANDS = (alerts, ack, note, silence)
