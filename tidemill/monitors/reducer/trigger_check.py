"""Checks the triggers of an entity: opens, keeps and resolves its alerts, and sets its next timer. Pure.

Every function of a user is called by itself: an exception is a problem of that trigger or occurrence, which is tried
again later, and the others go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from tidemill.core.codec import encode
from tidemill.monitors.definition.event import Event, MonitorTick
from tidemill.monitors.definition.triggers import Absent, Momentary, Sustained, Trigger
from tidemill.monitors.reducer.entity_state import HISTORY, AlertRecord, EntityProblem, EntityState, EventMark
from tidemill.monitors.reducer.fold import describe, restore_state
from tidemill.monitors.reducer.new_alert import new_alert
from tidemill.monitors.reducer.rules import EntityOutcome, MonitorRules
from tidemill.monitors.reducer.state import write_state

RETRY_FIRST, RETRY_MOST = 5.0, 3600.0
MOST_TRIES = 8  # of an occurrence whose check fails
MOST_FAILED = 100  # occurrences that wait for another try


class TriggerVerdict(msgspec.Struct, frozen=True):
    """Whether the condition of a trigger holds now, since when, and when to check it again."""

    holds: bool
    since: float | None = None
    due: float | None = None


def check_triggers(
    rules: MonitorRules, entity_state: EntityState, tick: MonitorTick, outcome: EntityOutcome, came: Sequence[Event]
) -> None:
    """Call the fold's `on_tick`, check every trigger by itself, and set the next timer."""
    now, folded = tick.at, bool(came)
    if entity_state.state is None:
        entity_state.state = rules.fold.start()
    dues: list[float | None] = []
    off = rules.off.at(tick.number)
    if folded:
        dues.append(_call_on_tick(rules, entity_state, now, outcome))
    failed: dict[str, list[Any] | None] = {}
    for trigger in rules.triggers:
        if trigger.name in off:
            continue
        problems = len(outcome.problems)
        try:
            rules.begin(f"trigger {trigger.name}")
            if isinstance(trigger, Momentary):
                failed[trigger.name] = None  # Unless its occurrences can be listed.
                failed[trigger.name] = _raise_occurrences(rules, entity_state, trigger, tick, outcome, came)
            elif isinstance(trigger, Sustained | Absent):
                dues.append(_follow(rules, entity_state, trigger, tick, outcome, folded=folded))
        except BaseException as error:  # noqa: BLE001 - user code: the other triggers go on
            outcome.note(trigger, entity_state, error)
        dues.append(_retry_at(entity_state, trigger, now, is_failing=len(outcome.problems) > problems))
        dues.append(_next_try(entity_state, trigger))
    forget_occurrences(rules, entity_state, failed)
    later = [due for due in dues if due is not None and due > now]
    entity_state.due = min(later, default=None)


def _call_on_tick(rules: MonitorRules, entity_state: EntityState, now: float, outcome: EntityOutcome) -> float | None:
    try:
        due = rules.fold.on_tick(entity_state.state, now)
        if entity_state.check_each:
            write_state(entity_state.state)
        return None if due is None else _time(due, "on_tick")
    except BaseException as error:  # noqa: BLE001 - user code
        outcome.problems.append(EntityProblem("fold", entity_state.entity, f"on_tick: {describe(error)}"))
        restore_state(rules.fold, entity_state)
        return None


def _retry_at(entity_state: EntityState, trigger: Trigger, now: float, *, is_failing: bool) -> float | None:
    """When to check a trigger again whose code has failed: its timers are lost with the error."""
    marks = entity_state.marks.triggers
    if not is_failing:
        mark = marks.get(trigger.name)
        if mark is not None and mark.failures:
            mark.failures = 0
            if mark == EventMark():
                del marks[trigger.name]
        return None
    mark = marks.setdefault(trigger.name, EventMark())
    mark.failures += 1
    return now + _pause_after(mark.failures)


def _pause_after(failures: int) -> float:
    return min(RETRY_FIRST * 2.0 ** min(failures - 1, 16), RETRY_MOST)


def _next_try(entity_state: EntityState, trigger: Trigger) -> float | None:
    """When the next occurrence whose check has failed is checked again."""
    mark = entity_state.marks.triggers.get(trigger.name)
    return None if mark is None else min((at for _, at in mark.tries.values()), default=None)


def forget_occurrences(
    rules: MonitorRules, entity_state: EntityState, failed: Mapping[str, Sequence[Any] | None] = MappingProxyType({})
) -> None:
    """Clear the lists of occurrences that have been checked; those whose check has failed stay for another try.

    None stands for all occurrences of a trigger: its `of` has failed, so that none of them was checked.
    """
    for trigger in rules.triggers:
        again = failed.get(trigger.name, ())
        if isinstance(trigger, Momentary) and again is not None:
            try:
                rules.begin(f"trigger {trigger.name}")
                seen = trigger.of(entity_state.state)
            except BaseException:  # noqa: BLE001, S112 - reported where the trigger was checked
                continue
            if isinstance(seen, list):
                seen[:] = again


def _raise_occurrences(
    rules: MonitorRules,
    entity_state: EntityState,
    trigger: Momentary,
    tick: MonitorTick,
    outcome: EntityOutcome,
    came: Sequence[Event],
) -> list[Any]:
    """Open an alert for each occurrence; returns those whose check has failed and is tried again."""
    failed: dict[str, Any] = {}
    mark = entity_state.marks.triggers.get(trigger.name, EventMark())
    tries: dict[str, tuple[int, float]] = {}
    past = [event.at for event in came if event.past]
    for occurrence in list(trigger.of(entity_state.state) or ()):
        name = _name_of(occurrence)
        count, due = mark.tries.get(name, (0, tick.at))
        if due > tick.at:
            failed[name], tries[name] = occurrence, (count, due)
            continue
        try:
            rules.begin(f"trigger {trigger.name}")
            if trigger.when is not None and not trigger.when(occurrence):
                continue
            key = trigger.key_of(occurrence)
            moment = _or_none(trigger.moment_of, occurrence, "at", trigger, entity_state, outcome)
            began = tick.at if moment is None else moment
            alert = new_alert(rules, entity_state, trigger, tick, began, outcome, about=occurrence)
            alert.key = key
            is_history = bool(past) and _is_history(key, moment, came, max(past))
            alert.resolved_at, alert.resolution = tick.at, HISTORY if is_history else "momentary"
            outcome.opened.append(alert)
        except BaseException as error:  # noqa: BLE001 - user code: the other occurrences go on
            outcome.note(trigger, entity_state, error)
            if count + 1 < MOST_TRIES:
                failed[name], tries[name] = occurrence, (count + 1, tick.at + _pause_after(count + 1))
    kept = list(failed)[-MOST_FAILED:]
    mark.tries = {name: tries[name] for name in kept}
    if kept:
        entity_state.marks.triggers[trigger.name] = mark
    elif mark == EventMark():
        entity_state.marks.triggers.pop(trigger.name, None)
    return [failed[name] for name in kept]


def _name_of(occurrence: Any) -> str:
    """What an occurrence is recognised by at its next try: its content, since its key may be what fails."""
    try:
        content = encode(occurrence)
    except Exception:  # noqa: BLE001 - user data without a JSON form
        content = repr(occurrence).encode(errors="replace")
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _is_history(key: str, moment: float | None, came: Sequence[Event], past_until: float) -> bool:
    """Whether an occurrence is from before its entity was followed: by its event, or else by its time."""
    own = next((event for event in came if event.id == key), None)
    if own is not None:
        return own.past
    return all(event.past for event in came) if moment is None else moment <= past_until


def _follow(
    rules: MonitorRules,
    entity_state: EntityState,
    trigger: Sustained | Absent,
    tick: MonitorTick,
    outcome: EntityOutcome,
    *,
    folded: bool,
) -> float | None:
    """Open, keep or resolve the alert of a lasting condition; returns when to check again."""
    now = tick.at
    verdict = check_condition(trigger, entity_state, now, outcome, folded=folded)
    mark = entity_state.marks.triggers.setdefault(trigger.name, EventMark())
    alert = entity_state.alerts.get(trigger.name)
    due = verdict.due
    if verdict.holds:
        mark.clear = None
        if mark.since is None:
            mark.since, mark.began = now, verdict.since
        if alert is None:
            if now < mark.since + trigger.hold:
                return _soonest(due, mark.since + trigger.hold)
            began = now if mark.began is None else min(mark.began, tick.complete_at)
            alert = entity_state.alerts[trigger.name] = new_alert(rules, entity_state, trigger, tick, began, outcome)
            outcome.opened.append(alert)
        elif alert.realert_at is not None and alert.realert_at <= now:
            fresh = new_alert(rules, entity_state, trigger, tick, alert.started_at, outcome)
            resolve(entity_state, alert, now, "still so after its acknowledgement", outcome)
            entity_state.alerts[trigger.name] = fresh
            fresh.again_after = alert.id or None
            outcome.opened.append(fresh)
            alert = fresh
        return _soonest(due, alert.realert_at)
    mark.since = mark.began = None
    if alert is None:
        entity_state.marks.triggers.pop(trigger.name, None)
        return due
    if trigger.clear:
        mark.clear = now if mark.clear is None else mark.clear
        if now < mark.clear + trigger.clear:
            return _soonest(due, mark.clear + trigger.clear)
    entity_state.marks.triggers.pop(trigger.name, None)
    resolve(entity_state, alert, now, "cleared", outcome)
    return due


def check_condition(
    trigger: Sustained | Absent, entity_state: EntityState, now: float, outcome: EntityOutcome, *, folded: bool
) -> TriggerVerdict:
    """Whether a lasting condition holds now, since when, and when this may change without an event."""
    if isinstance(trigger, Absent):
        return _check_absence(trigger, entity_state, now)
    due = None if trigger.recheck is None else now + trigger.recheck
    if not trigger.when(entity_state.state, now):
        return TriggerVerdict(False, due=due)
    since = None
    if trigger.since is not None:
        since = _or_none(trigger.since, entity_state.state, "since", trigger, entity_state, outcome)
    if since is None:
        since = entity_state.at if folded and entity_state.at is not None else now
    return TriggerVerdict(True, since, due)


def _check_absence(trigger: Absent, entity_state: EntityState, now: float) -> TriggerVerdict:
    if entity_state.labels.get("present") is False:
        return TriggerVerdict(False)
    last, expected_from = entity_state.last_at, entity_state.marks.expected_from
    if expected_from is not None and (trigger.from_start if last is None else last < expected_from):
        return _check_unheard(trigger, entity_state, expected_from, now)
    if last is None:
        return TriggerVerdict(False)
    moment = last + trigger.after
    end = None
    if trigger.hours is not None:
        stretch = trigger.hours.around(last)
        if stretch is None or moment >= stretch[1] or now >= stretch[1]:
            return TriggerVerdict(False)
        end = stretch[1]
    return _absent_from(trigger, entity_state, moment, end, now)


def _check_unheard(trigger: Absent, entity_state: EntityState, expected_from: float, now: float) -> TriggerVerdict:
    """The absence of an entity that has sent nothing since it was added to the list."""
    moment, end = expected_from + trigger.after, None
    if trigger.hours is not None:
        stretch = trigger.hours.around_or_next(now)
        if stretch is None:
            return TriggerVerdict(False)
        moment, end = max(expected_from, stretch[0]) + trigger.after, stretch[1]
        if moment >= end:
            return TriggerVerdict(False, due=end)
    return _absent_from(trigger, entity_state, moment, end, now)


def _absent_from(
    trigger: Absent, entity_state: EntityState, moment: float, end: float | None, now: float
) -> TriggerVerdict:
    if now < moment:
        return TriggerVerdict(False, due=moment)
    if trigger.only_while is not None and not trigger.only_while(entity_state.state, now):
        return TriggerVerdict(False)
    return TriggerVerdict(True, moment, end)


def resolve(entity_state: EntityState, alert: AlertRecord, now: float, why: str, outcome: EntityOutcome) -> None:
    alert.resolved_at, alert.resolution = max(now, alert.opened_at), why
    entity_state.alerts.pop(alert.trigger, None)
    if not any(alert is opened for opened in outcome.opened):
        outcome.resolved.append(alert)


def _or_none(
    ask: Callable[[Any], Any],
    subject: Any,
    name: str,
    trigger: Trigger,
    entity_state: EntityState,
    outcome: EntityOutcome,
) -> float | None:
    """The time that a function of a trigger gives; None, and a problem, if it fails: it must not prevent an alert."""
    try:
        found = ask(subject)
        return None if found is None else _time(found, name)
    except BaseException as error:  # noqa: BLE001 - user code
        outcome.note(trigger, entity_state, error, f"{name}: ")
        return None


def _time(value: Any, what: str) -> float:
    """A time that user code gave; a `ValueError` unless it is one that can be stored."""
    if isinstance(value, bool | str) or not -1e11 < (moment := float(value)) < 1e11:
        raise ValueError(f"{what} gave {value!r}, which is not a time in seconds since 1970")
    return moment


def _soonest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
