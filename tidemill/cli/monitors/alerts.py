"""What people do with alerts: `tidemill monitor alerts`, `explain`, `ack`, `note`, `silence`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, ServerOptions, operator
from tidemill.cli.monitors.options import pair, with_monitor
from tidemill.cli.monitors.view import alerts_table, print_alert, told_alert
from tidemill.cli.render import local, out, print_json, read_json, timely
from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database
from tidemill.store.monitors import alerts as alert_store

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient

MOST_COUNTED = 100_000


def alerts(
    *,
    monitor: str | None = None,
    entity: str | None = None,
    trigger: str | None = None,
    all: bool = False,
    limit: int = 50,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """List alerts, the newest first: open ones, and those resolved in the last two minutes.

    Parameters
    ----------
    monitor
        Only of this monitor.
    entity
        Only of this entity.
    trigger
        Only of this trigger.
    all
        Those resolved before, too.
    limit
        How many to show.
    json
        Print one JSON document.
    """

    async def stored(database: Database) -> list[dict[str, Any]]:
        rows = await alert_store.list_alerts(
            database, monitor, entity=entity, trigger=trigger, current=not all, limit=limit
        )
        return [told_alert(dict(row)) for row in rows]

    def served(server: RowClient) -> list[dict[str, Any]]:
        return server.pages("alerts", limit=limit, monitor=monitor, entity=entity, trigger=trigger, current=not all)

    rows = place.ask(stored, served)
    if json:
        return print_json(rows)
    return out().print(alerts_table(rows, datetime.now(UTC)) if rows else "no alerts")


def explain(id: int, /, *, json: bool = False, place: ServerOptions = ANYWHERE) -> None:
    """Why an alert was opened: the rule, the events, the state; and what has happened to it since.

    Parameters
    ----------
    id
        The alert.
    json
        Print one JSON document.
    """

    async def stored(database: Database) -> dict[str, Any]:
        row = dict(await alert_store.show_alert(database, id))
        history = [dict(each) for each in await alert_store.show_history(database, id)]
        return {**told_alert(row), "explain": read_json(row["explain"]), "history": history}

    def served(server: RowClient) -> dict[str, Any]:
        story = server.get("alerts", id)
        history = [timely(each) for each in story["history"]]
        return {**timely(story["alert"]), "explain": story["explain"], "history": history}

    alert = place.ask(stored, served)
    return print_json(alert) if json else print_alert(alert)


def ack(
    *ids: int,
    monitor: str | None = None,
    entity: str | None = None,
    trigger: str | None = None,
    severity: str | None = None,
    note: str | None = None,
    yes: bool = False,
    place: ServerOptions = ANYWHERE,
) -> int:
    """Acknowledge alerts: somebody has seen them. A lasting one comes back if nothing changes.

    Parameters
    ----------
    ids
        The alerts; or say with the options which, of those that nobody has acknowledged.
    monitor
        Alerts of this monitor.
    entity
        Alerts of this entity.
    trigger
        Alerts of this trigger.
    severity
        Alerts of this severity.
    note
        A note to keep with them.
    yes
        Do not ask, however many there are.
    """
    wanted = alert_store.Unseen(monitor, entity, trigger, severity)
    if bool(ids) == (wanted != alert_store.Unseen()):
        raise ConfigError("say which alerts: either ids, or --monitor, --entity, --trigger, --severity")
    if ids:
        done = set(_ack_named(ids, note, place))
        for id in ids:
            out().print(f"alert {id} {'is acknowledged' if id in done else 'was acknowledged before'}")
        return 0
    return _ack_matching(wanted, note, place, yes=yes)


def note(id: int, text: str, /, *, owner: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Put a note on an alert.

    Parameters
    ----------
    id
        The alert.
    text
        The note.
    owner
        Whose alert it is from now on.
    """

    async def stored(database: Database) -> None:
        await alert_store.note_alert(database, id, by=operator(), note=text, owner=owner)

    place.ask(stored, lambda server: server.post("alerts", id, "note", body={"note": text, "owner": owner}))
    out().print(f"alert {id} has a note")


def silence(
    *matchers: str, until: str = "1h", comment: str = "", end: int | None = None, monitor: str | None = None,
    place: ServerOptions = ANYWHERE,
) -> None:  # fmt: skip
    """Tell nobody of some alerts for a time; without matchers, list the silences.

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
        number = end
        place.ask(
            lambda database: alert_store.end_silence(database, number, by=operator()),
            lambda server: server.delete("silences", number),
        )
        return out().print(f"silence {end} has ended")
    if not matchers:
        for each in _silences(place, monitor):
            fits = " ".join(f"{name}={pattern}" for name, pattern in each["matchers"].items())
            out().print(f"{each['id']}  {each['monitor']}  {fits}  until {local(each['ends_at'])}")
        return None
    wanted = dict(pair(each) for each in matchers)
    now = time.time()
    ends = now + parse_duration(until, what="--until")

    async def stored(database: Database, name: str) -> int:
        return await alert_store.add_silence(
            database, name, wanted, starts_at=now, ends_at=ends, by=operator(), comment=comment
        )

    def served(server: RowClient, name: str) -> int:
        body = {"matchers": wanted, "lasts": until, "comment": comment}
        return server.post("monitors", name, "silences", body=body)["id"]

    number = with_monitor(place, monitor, stored, served)
    return out().print(f"silence {number} until {local(datetime.fromtimestamp(ends, UTC))}")


def _ack_named(ids: tuple[int, ...], note: str | None, place: ServerOptions) -> Iterable[int]:
    """Acknowledge alerts by their ids; returns those that nobody had acknowledged before."""
    return place.ask(
        lambda database: alert_store.ack_alerts(database, ids, by=operator(), at=time.time(), note=note),
        lambda server: server.post("alerts", "ack", body={"ids": ids, "note": note})["ids"],
    )


def _ack_matching(wanted: alert_store.Unseen, note: str | None, place: ServerOptions, *, yes: bool) -> int:
    """Acknowledge all that match once somebody has agreed to how many; returns the exit status."""

    async def stored(database: Database) -> int | None:
        ids = await alert_store.match_unseen(database, wanted, limit=MOST_COUNTED)
        if not _goes_on(len(ids), yes=yes):
            return None
        meant = msgspec.structs.replace(wanted, up_to=ids[-1]) if ids else wanted
        return len(await alert_store.ack_unseen(database, meant, by=operator(), at=time.time(), note=note))

    def served(server: RowClient) -> int | None:
        found = server.preview("alerts", "ack", "preview", body=wanted)
        if not _goes_on(found["count"], yes=yes):
            return None
        meant = msgspec.structs.replace(wanted, up_to=found["up_to"])
        return server.post("alerts", "ack", body={"filter": meant, "note": note})["count"]

    done = place.ask(stored, served)
    if done is None:
        return 1
    out().print(f"{_alerts(done)} acknowledged now" if done else "no alert to acknowledge matches")
    return 0


def _goes_on(count: int, *, yes: bool) -> bool:
    return not count or yes or agreed(f"acknowledge {_alerts(count)}")


def _alerts(count: int) -> str:
    return "1 alert" if count == 1 else f"{count:,} alerts"


def _silences(place: ServerOptions, monitor: str | None) -> list[dict[str, Any]]:
    async def stored(database: Database) -> list[dict[str, Any]]:
        return [
            {**msgspec.structs.asdict(each), "ends_at": datetime.fromtimestamp(each.ends_at, UTC)}
            for each in await alert_store.read_silences(database, monitor, time.time())
        ]

    return place.ask(stored, lambda server: server.items("silences", monitor=monitor))


COMMANDS = (alerts, explain, ack, note, silence)
