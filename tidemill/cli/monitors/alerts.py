"""What people do with alerts: `tidemill monitor alerts`, `explain`, `ack`, `note`, `silence`."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from tidemill.cli.arguments import options_of
from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.monitors.options import pair, with_monitor
from tidemill.cli.monitors.view import alerts_table, print_alert
from tidemill.cli.paging import read_pages
from tidemill.cli.render import local, out, print_json
from tidemill.core.errors import ConfigError
from tidemill.ops.monitors.alerts import (
    AckAlerts,
    GetAlert,
    ListAlerts,
    ListSilences,
    NoteAlert,
    SilenceAlerts,
    SilenceRef,
    ack_alerts,
    end_silence,
    get_alert,
    list_alerts,
    list_silences,
    note_alert,
    preview_ack_alerts,
    silence_alerts,
)
from tidemill.ops.operator.operation import Operator
from tidemill.store.monitors.alerts import Unseen


@options_of(ListAlerts, without=("current",))
def alerts(
    args: ListAlerts, *, all: bool = False, limit: int = 50, json: bool = False, place: ServerOptions = ANYWHERE
) -> None:
    """List alerts, the newest first: open ones, and those resolved in the last two minutes.

    Parameters
    ----------
    all
        Those resolved before, too.
    limit
        How many to show.
    json
        Print one JSON document.
    """
    wanted = msgspec.structs.replace(args, current=not all)
    rows, cursor = place.run(lambda at: read_pages(at, list_alerts, wanted, limit))
    if json:
        return print_json(rows)
    out().print(alerts_table(rows, datetime.now(UTC)) if rows else "no alerts")
    if cursor is not None:
        out().print(f"\nolder ones: --cursor {cursor}", style="dim")
    return None


@options_of(GetAlert, positional=("id",))
def explain(args: GetAlert, *, json: bool = False, place: ServerOptions = ANYWHERE) -> None:
    """Why an alert was opened: the rule, the events, the state; and what has happened to it since.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    found = place.do(get_alert, args)
    return print_json(found) if json else print_alert(found)


@options_of(Unseen, without=("up_to",))
def ack(wanted: Unseen, *ids: int, note: str | None = None, yes: bool = False, place: ServerOptions = ANYWHERE) -> int:
    """Acknowledge alerts. A sustained one is opened again if nothing changes.

    Parameters
    ----------
    ids
        The alerts; or select those that are not acknowledged with the options.
    note
        A note to store with them.
    yes
        Do not ask, however many there are.
    """
    if bool(ids) == (wanted != Unseen()):
        raise ConfigError("say which alerts: either ids, or --monitor, --entity, --trigger, --severity")
    if ids:
        done = place.do(ack_alerts, AckAlerts(ids=list(ids), note=note)).ids
        for id in ids:
            out().print(f"alert {id} {'is acknowledged' if id in done else 'was acknowledged before'}")
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

    return place.run(work)


@options_of(NoteAlert, positional=("id", "note"))
def note(args: NoteAlert, *, place: ServerOptions = ANYWHERE) -> None:
    """Put a note on an alert."""
    place.do(note_alert, args)
    out().print(f"alert {args.id} has a note")


def silence(
    *matchers: str, until: str = "1h", comment: str = "", end: int | None = None, monitor: str | None = None,
    place: ServerOptions = ANYWHERE,
) -> None:  # fmt: skip
    """Send no notices of some alerts for a time; without matchers, list the silences.

    Parameters
    ----------
    matchers
        As in trigger=hot entity=press-*; all of them must fit.
    until
        For how long.
    comment
        Why.
    end
        End this silence now instead.
    monitor
        The monitor; needed when there are several.
    """
    if end is not None:
        place.do(end_silence, SilenceRef(id=end))
        return out().print(f"silence {end} has ended")
    if not matchers:
        for each in place.do(list_silences, ListSilences(monitor=monitor)).items:
            fits = " ".join(f"{name}={pattern}" for name, pattern in each.matchers.items())
            out().print(f"{each.id}  {each.monitor}  {fits}  until {local(each.ends_at)}")
        return None
    wanted = dict(pair(each) for each in matchers)
    made = with_monitor(
        place,
        monitor,
        lambda at, name: at.do(silence_alerts, SilenceAlerts(name=name, matchers=wanted, lasts=until, comment=comment)),
    )
    return out().print(f"silence {made.id} until {local(made.ends_at)}")


def _alerts(count: int) -> str:
    return "1 alert" if count == 1 else f"{count:,} alerts"


COMMANDS = (alerts, explain, ack, note, silence)
