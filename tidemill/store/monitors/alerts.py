"""Alerts: opened and resolved with their entity, acknowledged by people, sent by notices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import asyncpg
import msgspec
from msgspec import Meta

from tidemill.core.codec import decode, encode
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.store.access.audit import targets
from tidemill.store.database import Database, Executor
from tidemill.store.monitors.notices import send_silenced_now
from tidemill.store.transaction import Reader, Transaction

ACKED_AT_ONCE = 500

#: The open alerts of these entities.
OPEN_ALERTS = """
SELECT id, trigger, entity, kind, severity, extract(epoch FROM started_at)::float8 AS started_at,
       extract(epoch FROM opened_at)::float8 AS opened_at, tick, extract(epoch FROM acked_at)::float8 AS acked_at,
       realert, realert_from, extract(epoch FROM realert_at)::float8 AS realert_at
FROM tidemill.alert WHERE monitor = $1 AND entity = ANY ($2) AND resolved_at IS NULL
"""

#: Resolves alerts, each once, and stores the reason.
RESOLVE_ALERTS = """
WITH done AS (
    UPDATE tidemill.alert AS a SET resolved_at = to_timestamp(n.at), resolution = n.why, realert_at = NULL
    FROM unnest($1::bigint[], $2::float8[], $3::text[]) AS n(id, at, why)
    WHERE a.id = n.id AND a.resolved_at IS NULL RETURNING a.id, a.resolved_at, a.resolution),
recorded AS (INSERT INTO tidemill.alert_history (alert, at, action, who, detail)
         SELECT id, resolved_at, 'resolved', 'monitor', resolution FROM done ORDER BY id)
SELECT id FROM done
"""

#: Stores new alerts; one whose occurrence was reported before is skipped.
OPEN_NEW = """
WITH made AS (
    INSERT INTO tidemill.alert (monitor, trigger, entity, kind, key, severity, started_at, opened_at, tick, resolved_at,
                                resolution, realert, realert_from, again_after, owner, silence, explain)
    SELECT n.monitor, n.trigger, n.entity, n.kind, n.key, n.severity, to_timestamp(n.started_at),
           to_timestamp(n.opened_at), n.tick, to_timestamp(n.resolved_at), n.resolution, n.realert, n.realert_from,
           n.again_after, n.owner, n.silence, n.unnest
    -- Explanations are of users' code and apart: they may hold characters that are in no text.
    FROM ROWS FROM (json_to_recordset($1::text::json) AS (
        monitor text, trigger text, entity text, kind text, key text, severity text, started_at float8,
        opened_at float8, tick bigint, resolved_at float8, resolution text, realert float8, realert_from text,
        again_after bigint, owner text, silence bigint), unnest($2::json[])) WITH ORDINALITY AS n ORDER BY n.ordinality
    ON CONFLICT DO NOTHING RETURNING *),
recorded AS (
    INSERT INTO tidemill.alert_history (alert, at, action, who, detail)
    SELECT id, opened_at, CASE WHEN again_after IS NULL THEN 'opened' ELSE 'opened again' END, 'monitor',
           CASE WHEN resolution = 'history' THEN 'from before it was followed: nothing to acknowledge'
                WHEN silence IS NOT NULL THEN 'silenced by ' || silence END FROM made ORDER BY id),
ended AS (
    INSERT INTO tidemill.alert_history (alert, at, action, who, detail)
    SELECT id, resolved_at, 'resolved', 'monitor', resolution FROM made
    WHERE resolved_at IS NOT NULL AND kind <> 'momentary' ORDER BY id)
SELECT id, trigger, entity, key, tick FROM made ORDER BY id
"""

_COLUMNS = """
    a.id, a.monitor, a.trigger, a.entity, a.kind, a.key, a.severity, a.started_at, a.opened_at, a.tick, a.resolved_at,
    a.resolution, a.acked_at, a.acked_by, a.realert, a.realert_at, a.again_after, a.owner, a.note, a.silence
"""

#: Alerts, newest first.
LIST_ALERTS = f"""
SELECT {_COLUMNS} FROM tidemill.alert AS a
WHERE ($1::text IS NULL OR a.monitor = $1) AND ($2::text IS NULL OR a.entity = $2)
  AND ($3::text IS NULL OR a.trigger = $3)
  AND (NOT $4::boolean OR a.resolved_at IS NULL OR a.resolution IS DISTINCT FROM 'history'
       AND (a.kind = 'momentary' AND a.acked_at IS NULL OR a.resolved_at > now() - make_interval(secs => $5)))
  AND ($6::timestamptz IS NULL OR a.opened_at >= $6) AND ($9::timestamptz IS NULL OR a.opened_at < $9)
  AND ($8::bigint IS NULL OR (a.opened_at, a.id) < (SELECT opened_at, id FROM tidemill.alert WHERE id = $8))
ORDER BY a.opened_at DESC, a.id DESC LIMIT $7
"""

#: Alerts that are open, were resolved lately, or are recent momentary ones, at a cost independent of all others.
CURRENT_ALERTS = f"""
WITH wanted AS (
    SELECT id FROM tidemill.alert WHERE monitor = $1 AND resolved_at IS NULL
    UNION SELECT id FROM tidemill.alert WHERE monitor = $1 AND opened_at > now() - make_interval(secs => $3)
    UNION SELECT alert FROM (SELECT * FROM tidemill.alert_history ORDER BY id DESC LIMIT 2000) AS lately
          WHERE action = 'resolved' AND at > now() - make_interval(secs => $2))
SELECT {_COLUMNS} FROM wanted JOIN tidemill.alert AS a USING (id)
WHERE a.monitor = $1 AND (a.resolved_at IS NULL OR a.resolution IS DISTINCT FROM 'history'
    AND (a.resolved_at > now() - make_interval(secs => $2) OR a.kind = 'momentary' AND a.acked_at IS NULL))
ORDER BY a.opened_at DESC, a.id DESC LIMIT $4
"""
#: One alert, and its history.
SHOW_ALERT = f"SELECT {_COLUMNS}, a.explain FROM tidemill.alert AS a WHERE a.id = $1"
SHOW_HISTORY = "SELECT at, action, who, detail FROM tidemill.alert_history WHERE alert = $1 ORDER BY id"

#: Acknowledges unacknowledged alerts; sets when each is raised again.
ACK_ALERTS = """
WITH done AS (
    UPDATE tidemill.alert SET acked_at = to_timestamp($2), acked_by = $3,
        realert_at = CASE WHEN resolved_at IS NULL AND realert IS NOT NULL THEN
            CASE realert_from WHEN 'start' THEN started_at ELSE to_timestamp($2) END
            + make_interval(secs => realert) END,
        note = coalesce($4, note)
    WHERE id = ANY ($1) AND acked_at IS NULL RETURNING id, monitor),
recorded AS (INSERT INTO tidemill.alert_history (alert, at, action, who, detail)
         SELECT id, to_timestamp($2), 'acknowledged', $3, $4 FROM done ORDER BY id)
SELECT id FROM done ORDER BY id
"""

#: Locks alerts before a change.
HOLD_ALERTS = """
SELECT id, note, owner FROM tidemill.alert WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE
"""

#: Unacknowledged alerts: open ones and momentary ones that are not history.
_UNSEEN = """
a.acked_at IS NULL AND (a.resolved_at IS NULL OR a.kind = 'momentary' AND a.resolution IS DISTINCT FROM 'history')
AND ($1::text IS NULL OR a.monitor = $1)
AND ($2::text IS NULL OR a.entity = $2) AND ($3::text IS NULL OR a.trigger = $3)
AND ($4::text IS NULL OR a.severity = $4) AND ($5::bigint IS NULL OR a.id <= $5)
"""
MATCH_UNSEEN = f"SELECT a.id FROM tidemill.alert AS a WHERE {_UNSEEN} ORDER BY a.id LIMIT $6"
HOLD_UNSEEN = f"""
SELECT a.id, a.note, a.owner FROM tidemill.alert AS a WHERE {_UNSEEN} ORDER BY a.id LIMIT $6 FOR NO KEY UPDATE
"""
NEWEST_ALERT = "SELECT coalesce(max(id), 0) AS id FROM tidemill.alert"

#: Sets the note or the owner of an alert.
NOTE_ALERT = """
WITH done AS (
    UPDATE tidemill.alert SET note = coalesce($2, note), owner = coalesce($3, owner) WHERE id = $1 RETURNING id)
INSERT INTO tidemill.alert_history (alert, at, action, who, detail)
SELECT id, now(), CASE WHEN $2::text IS NULL THEN 'taken by ' || $3 ELSE 'note' END, $4, $2 FROM done RETURNING alert
"""

#: Adds, locks, ends and lists silences.
ADD_SILENCE = """
INSERT INTO tidemill.silence (monitor, matchers, starts_at, ends_at, by, comment)
VALUES ($1, $2, to_timestamp($3), to_timestamp($4), $5, $6) RETURNING id
"""
HOLD_SILENCE = """
SELECT monitor, matchers, extract(epoch FROM ends_at)::float8 AS until, comment FROM tidemill.silence
WHERE id = $1 AND ends_at > now() FOR NO KEY UPDATE
"""
END_SILENCE = "UPDATE tidemill.silence SET ends_at = now() WHERE id = $1"
LIST_SILENCES = """
SELECT id, monitor, matchers, starts_at, ends_at, by, comment FROM tidemill.silence
WHERE ($1::text IS NULL OR monitor = $1) AND ends_at > to_timestamp($2) ORDER BY ends_at
"""

#: The same, locked until the transaction ends: a concurrent end waits, and then finds the notices written meanwhile.
HOLD_SILENCES = f"{LIST_SILENCES} FOR SHARE"

#: Resolves the open alerts of a trigger that is switched off.
RESOLVE_TRIGGER = """
WITH done AS (
    UPDATE tidemill.alert SET resolved_at = now(), resolution = $3, realert_at = NULL
    WHERE monitor = $1 AND resolved_at IS NULL AND ($2::text IS NULL OR trigger = $2)
      AND ($4::text IS NULL OR entity = $4) RETURNING id)
INSERT INTO tidemill.alert_history (alert, at, action, who, detail) SELECT id, now(), 'resolved', $5, $3 FROM done
RETURNING alert
"""

#: Acknowledgements of a time span, for a replay.
READ_ACKS = """
SELECT trigger, entity, tick, extract(epoch FROM acked_at)::float8 AS acked_at FROM tidemill.alert
WHERE monitor = $1 AND acked_at IS NOT NULL AND kind <> 'momentary'
"""


class Silence(msgspec.Struct, frozen=True):
    """Suppresses notices of alerts until `ends_at`: those that match all matchers, which may contain `*` and `?`."""

    id: int
    monitor: str
    matchers: dict[str, str]
    starts_at: float
    ends_at: float
    by: str = ""
    comment: str = ""


class UnackedFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Alerts that are not acknowledged, open or momentary, and match every condition that is given."""

    monitor: Annotated[str | None, Meta(description="Alerts of this monitor.")] = None
    entity: Annotated[str | None, Meta(description="Alerts of this entity.")] = None
    trigger: Annotated[str | None, Meta(description="Alerts of this trigger.")] = None
    severity: Annotated[str | None, Meta(description="Alerts of this severity.")] = None
    up_to: Annotated[int | None, Meta(description="No alert above this id.")] = None

    def arguments(self) -> tuple[Any, ...]:
        return self.monitor, self.entity, self.trigger, self.severity, self.up_to


async def read_open(
    database: Database, connection: Executor, monitor: str, entities: Sequence[str]
) -> list[asyncpg.Record]:
    return await connection.fetch(database.sql(OPEN_ALERTS), monitor, list(entities))


async def resolve_alerts(
    database: Database, connection: Executor, alerts: Sequence[tuple[int, float, str]]
) -> set[int]:
    """Resolve alerts, each with a time and a reason; returns those that were still open."""
    if not alerts:
        return set()
    rows = await connection.fetch(database.sql(RESOLVE_ALERTS), *map(list, zip(*alerts, strict=True)))
    return {row["id"] for row in rows}


async def open_alerts(
    database: Database, connection: Executor, alerts: Sequence[Mapping[str, Any]], explanations: Sequence[bytes | None]
) -> list[asyncpg.Record]:
    """Store new alerts, each with its explanation; returns those that were not reported before."""
    if not alerts:
        return []
    return await connection.fetch(database.sql(OPEN_NEW), encode(alerts).decode(), database.seal_each(explanations))


async def list_alerts(
    database: Database,
    monitor: str | None = None,
    *,
    entity: str | None = None,
    trigger: str | None = None,
    current: bool = False,
    linger: float = 120.0,
    since: datetime | None = None,
    until: datetime | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[asyncpg.Record]:
    """Alerts, newest first, starting below one; `current` excludes those resolved longer ago than `linger`."""
    return await database.fetch(LIST_ALERTS, monitor, entity, trigger, current, linger, since, limit, before, until)


async def list_current(
    database: Database, monitor: str, *, linger: float = 120.0, news: float = 600.0, limit: int = 1000
) -> list[asyncpg.Record]:
    """Alerts for a live page: open ones, those resolved within `linger`, momentary ones of the last `news` s."""
    return await database.fetch(CURRENT_ALERTS, monitor, linger, news, limit)


async def show_alert(database: Database, id: int) -> asyncpg.Record:
    row = await database.fetchrow(SHOW_ALERT, id)
    if row is None:
        raise NotFoundError(f"there is no alert {id}: `tidemill monitor alerts` lists them")
    return row


async def show_history(database: Database, id: int) -> list[asyncpg.Record]:
    return await database.fetch(SHOW_HISTORY, id)


async def ack_alerts(
    tx: Transaction, ids: Sequence[int], *, at: float, note: str | None = None, said: str = ""
) -> list[int]:
    """Acknowledge alerts; returns those that were not acknowledged before. One that does not exist is an error.

    `said` is the name by which a person introduces themselves: the alert shows it, and the audit names the caller.
    """
    known = await tx.fetch(HOLD_ALERTS, list(ids))
    if missing := set(ids) - {row["id"] for row in known}:
        raise NotFoundError(f"there is no alert {min(missing)}: `tidemill monitor alerts` lists them")
    return await _ack(tx, known, at=at, note=note, said=said)


async def match_unacked(database: Database, which: UnackedFilter, *, limit: int) -> list[int]:
    """The matching unacknowledged alerts, oldest first."""
    return [row["id"] for row in await database.fetch(MATCH_UNSEEN, *which.arguments(), limit)]


async def ack_unacked(reader: Reader, which: UnackedFilter, *, at: float, note: str | None) -> list[int]:
    """Acknowledge all that match now, in batches; returns which. Alerts that are opened meanwhile are left alone."""
    if which.up_to is None:
        newest = (await reader.fetch(NEWEST_ALERT))[0]["id"]
        which = msgspec.structs.replace(which, up_to=newest)
    done: list[int] = []
    while True:
        async with reader.transaction() as tx:
            known = await tx.fetch(HOLD_UNSEEN, *which.arguments(), ACKED_AT_ONCE)
            done += await _ack(tx, known, at=at, note=note)
        if len(known) < ACKED_AT_ONCE:
            return done


async def _ack(
    tx: Transaction, known: Sequence[asyncpg.Record], *, at: float, note: str | None, said: str = ""
) -> list[int]:
    """Acknowledge alerts that are locked; returns those that were not acknowledged before."""
    ids = [row["id"] for row in known]
    rows = await tx.fetch(ACK_ALERTS, ids, at, _display_name(tx.by, said), note)
    done = [row["id"] for row in rows]
    if done:
        before = {row["id"]: _held(row) for row in known if row["id"] in set(done)}
        await tx.audit(
            "alert.ack", targets(done), before=before, after=_with_speaker({"ids": done, "note": note}, said)
        )
    return done


async def note_alert(
    tx: Transaction, id: int, *, note: str | None = None, owner: str | None = None, said: str = ""
) -> None:
    """Put a note on an alert, or name its owner."""
    if note is None and owner is None:
        raise ConfigError("give a note or an owner")
    known = await tx.fetchrow(HOLD_ALERTS, [id])
    if known is None:
        raise NotFoundError(f"there is no alert {id}: `tidemill monitor alerts` lists them")
    await tx.fetch(NOTE_ALERT, id, note, owner, _display_name(tx.by, said))
    before = _held(known)
    given = {"note": note, "owner": owner}
    after = before | {name: value for name, value in given.items() if value is not None}
    await tx.audit("alert.note", str(id), before=before, after=_with_speaker(after, said))


def _held(row: asyncpg.Record) -> dict[str, Any]:
    return {"note": row["note"], "owner": row["owner"]}


def _display_name(by: str, said: str) -> str:
    """The name that people see on an alert."""
    return f"{said}, {by}" if said and said != by else by


def _with_speaker(after: dict[str, Any], said: str) -> dict[str, Any]:
    return {**after, "said": said} if said else after


async def add_silence(
    tx: Transaction, monitor: str, matchers: Mapping[str, str], *, starts_at: float, ends_at: float, comment: str = ""
) -> int:
    """Send no notices of the alerts that these matchers fit, for a time."""
    if unknown := set(matchers) - {"trigger", "entity", "severity"}:
        raise ConfigError(f"a silence matches by trigger, entity or severity, not by {min(unknown)!r}")
    if not matchers:
        raise ConfigError("a silence without a matcher would silence everything: use trigger=* to do that on purpose")
    number: int = await tx.fetchval(ADD_SILENCE, monitor, encode(dict(matchers)), starts_at, ends_at, tx.by, comment)
    after = {"silence": number, "matchers": dict(matchers), "until": ends_at, "comment": comment}
    await tx.audit("monitor.silence", monitor, after=after)
    return number


async def end_silence(tx: Transaction, id: int) -> None:
    """End a silence now: notices of alerts that are still open are sent at once."""
    held = await tx.fetchrow(HOLD_SILENCE, id)
    if held is None:
        raise NotFoundError(f"there is no silence {id} that has not ended: `tidemill monitor silence` lists them")
    await tx.execute(END_SILENCE, id)
    await send_silenced_now(tx.database, tx.connection, held["monitor"], id)
    before = {"matchers": decode(held["matchers"]), "until": held["until"], "comment": held["comment"]}
    await tx.audit("monitor.unsilence", held["monitor"], before={"silence": id, **before}, after={"silence": id})


async def read_silences(database: Database, monitor: str | None, now: float) -> list[Silence]:
    """Silences that have not ended, including those that have not begun."""
    return _silences(await database.fetch(LIST_SILENCES, monitor, now))


async def hold_silences(database: Database, connection: Executor, monitor: str, now: float) -> list[Silence]:
    """The same, locked until the transaction ends."""
    return _silences(await connection.fetch(database.sql(HOLD_SILENCES), monitor, now))


def _silences(rows: Sequence[Any]) -> list[Silence]:
    return [
        Silence(
            row["id"],
            row["monitor"],
            msgspec.json.decode(row["matchers"], type=dict[str, str]),
            row["starts_at"].timestamp(),
            row["ends_at"].timestamp(),
            row["by"] or "",
            row["comment"] or "",
        )
        for row in rows
    ]
