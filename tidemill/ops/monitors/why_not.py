"""Why a trigger has not opened an alert for an entity: what was checked last, with which state, and what comes next."""

from __future__ import annotations

import shlex
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.codec import decode
from tidemill.core.duration import format_duration
from tidemill.core.encoding.json_rows import value_of
from tidemill.monitors.reducer.entity_state import EventMark, EventMarks
from tidemill.monitors.reducer.silences import find_silence
from tidemill.ops.monitors.alerts import Alert
from tidemill.ops.monitors.monitors import MonitorLine
from tidemill.ops.operator.operation import doc
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import read_silences
from tidemill.store.monitors.problems import list_problems_of
from tidemill.store.monitors.roster import show_entity


class TriggerCheck(msgspec.Struct, frozen=True):
    """The last check of a trigger for an entity."""

    checked_at: Annotated[datetime | None, doc("The time of the tick that it was last checked at.")]
    tick: int
    last_event_at: datetime | None
    next_check_at: Annotated[datetime | None, doc("The entity's next timer; null: at its next event.")]
    state: Annotated[Any, doc("The entity's state at that check.")]
    rule: Annotated[Any, doc("The trigger as text.")]


async def explain_trigger(
    database: Database, monitor: MonitorLine, trigger: str, entity: str, alerts: list[Alert]
) -> tuple[str, list[str], TriggerCheck]:
    """The state of a trigger for an entity, sentences that say why, and its last check. `alerts` are its newest."""
    row = await show_entity(database, monitor.name, entity)
    marks = EventMarks() if row["marks"] is None else decode(row["marks"], EventMarks)
    rule = ((monitor.status or {}).get("rules") or {}).get(trigger) or {}
    check = TriggerCheck(
        _moment(row["checked_at"]), row["folded"], _moment(row["last_at"]), _moment(row["due_at"]),
        value_of(row["state"]), rule or None,
    )  # fmt: skip
    is_open = next((each for each in alerts if each.resolved_at is None), None)
    is_off = trigger in monitor.off
    state = "off" if is_off else is_open.state if is_open is not None else "quiet"
    why: list[str] = []
    if is_off:
        why.append(
            f"Trigger {trigger} is switched off: `tidemill monitor trigger {shlex.quote(trigger)} on` switches it on."
        )
    elif is_open is not None:
        acked = ", and acknowledged" if is_open.acked_at is not None else ""
        why.append(
            f"Alert a{is_open.id} has been open since {_text(is_open.opened_at)}{acked}; no other opens meanwhile."
        )
    else:
        why.append("No alert of it is open.")
    why += _about_monitor(monitor)
    why += _about_entity(row, monitor.name, entity, check)
    mark = marks.triggers.get(trigger, EventMark())
    if is_open is None and not is_off:
        why += _about_condition(rule, row, marks, mark, check)
    for problem in await list_problems_of(database, monitor.name, entity, ("fold", "entity", f"trigger {trigger}")):
        why.append(f"Code failed {problem['count']}×, last at {_text(problem['last_at'])}: {problem['error']}.")
    if mark.failures and row["due_at"] is not None:
        why.append(f"Its check failed {mark.failures}× in a row and is repeated at {_text(check.next_check_at)}.")
    if mark.tries:
        why.append(f"Occurrences whose check failed, and that are checked again: {len(mark.tries)}.")
    why.append(
        "No timer is set: it is checked again at the next event."
        if check.next_check_at is None
        else f"The next timer of {entity} is at {_text(check.next_check_at)}."
    )
    if is_open is None and alerts:
        last = alerts[0]
        why.append(f"Its last alert is a{last.id}, {last.state}, opened at {_text(last.opened_at)}.")
    now = time.time()
    facts = {"trigger": trigger, "entity": entity, "severity": str(rule.get("severity", ""))}
    silence = find_silence(await read_silences(database, monitor.name, now), facts, now)
    if silence is not None:
        ends = _text(_moment(silence.ends_at))
        why.append(f"Silence {silence.id} keeps notices back until {ends}; alerts open all the same.")
    return state, why, check


def _about_monitor(monitor: MonitorLine) -> list[str]:
    status = monitor.status or {}
    return {
        "healthy": [],
        "paused": [f"Monitor {monitor.name} is paused: `tidemill monitor resume` continues it."],
        "not_running": [f"No process follows monitor {monitor.name}: start one with `tidemill monitor run app.py`."],
        "not_started": [f"Monitor {monitor.name} has not completed a tick yet."],
        "unhealthy": [f"Monitor {monitor.name} is unhealthy: {status.get('error')}. Timers wait for its source."],
    }[monitor.health]


def _about_entity(row: Any, monitor: str, entity: str, check: TriggerCheck) -> list[str]:
    sentences = []
    if not row["active"]:
        sentences.append(
            f"Monitor {monitor} no longer follows {entity}: "
            f"`tidemill monitor roster add {shlex.quote(entity)}` adds it."
        )
    if row["head"] > row["folded"]:
        sentences.append("Events of it have arrived that are not evaluated yet.")
    if row["backfill"] is not None:
        sentences.append("Its past is still being read.")
    checked = "has not been checked yet"
    if check.checked_at is not None:
        checked = f"was last checked at {_text(check.checked_at)} (tick {row['folded']:,})"
    seen = "no event of it was evaluated"
    if row["last_at"] is not None:
        events = "1 event" if row["count"] == 1 else f"{row['count']:,} events"
        seen = f"{events} of it evaluated, the last at {_text(check.last_event_at)}"
    sentences.append(f"{entity} {checked}; {seen}.")
    if row["problem"]:
        sentences.append(f"Its last evaluation had a problem: {row['problem']}.")
    return sentences


def _about_condition(
    rule: dict[str, Any], row: Any, marks: EventMarks, mark: EventMark, check: TriggerCheck
) -> list[str]:
    """Why the condition of a trigger has not opened an alert."""
    kind = rule.get("kind")
    if mark.since is not None:
        since, opens = _text(_moment(mark.since)), _text(_moment(mark.since + (rule.get("hold") or 0)))
        return [
            f"Its condition has held since {since}; it has to hold for {_length(rule, 'hold')}: it opens at {opens}."
        ]
    if kind == "sustained":
        return [f"Its condition was false at that check: `{rule.get('when', '')}`."]
    if kind == "momentary":
        return [f"No new occurrence was in `{rule.get('of', '')}` at that check; each is reported once, by its key."]
    if kind != "absent":
        return []
    if (value_of(row["labels"]) or {}).get("present") is False:
        return ["It is labelled present=false, and never absent."]
    start = row["last_at"] if marks.expected_from is None else max(row["last_at"] or 0.0, marks.expected_from)
    if start is None:
        return ["No event of it has arrived, and it is not on the roster: its silence has no beginning."]
    if row["last_at"] is None and rule.get("from_start") is False:
        return ["No event of it has arrived, and the trigger has from_start=False."]
    until = _moment(start + (rule.get("after") or 0))
    if check.next_check_at is not None and until is not None and check.next_check_at <= until:
        return [f"It is absent after {_length(rule, 'after')}: at {_text(until)}, unless an event comes before."]
    limits = [f"{name}={rule[name]}" for name in ("hours", "only_while") if rule.get(name)]
    return (
        [f"It has been silent since {_text(_moment(start))}, but not within {' and '.join(limits)}."] if limits else []
    )


def _length(rule: dict[str, Any], name: str) -> str:
    return format_duration(rule.get(name) or 0)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _text(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
