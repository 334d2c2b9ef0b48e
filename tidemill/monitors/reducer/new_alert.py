"""Makes the record of a new alert, with its severity and the reason that is stored with it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.core.codec import encode
from tidemill.monitors.definition.event import MonitorTick
from tidemill.monitors.definition.triggers import Severity, Trigger, check_severity
from tidemill.monitors.reducer.entity_state import AlertRecord, EntityState
from tidemill.monitors.reducer.fold import describe
from tidemill.monitors.reducer.rules import EntityOutcome, MonitorRules

MOST_EXPLAINED = 20_000


def new_alert(
    rules: MonitorRules,
    entity_state: EntityState,
    trigger: Trigger,
    tick: MonitorTick,
    began: float,
    outcome: EntityOutcome,
    *,
    about: Any = None,
) -> AlertRecord:
    alert = AlertRecord(
        monitor=rules.monitor,
        trigger=trigger.name,
        entity=entity_state.entity,
        kind=trigger.kind,
        severity=_severity(trigger, entity_state, about, outcome),
        started_at=began,
        opened_at=max(tick.at, min(began, tick.complete_at)),
        tick=tick.number,
        realert=getattr(trigger, "realert", None),
        realert_from=getattr(trigger, "realert_from", "ack"),
        owner=trigger.owner,
        explain=_explain(rules, entity_state, trigger, tick, about),
    )
    acked = rules.acks.get((entity_state.entity, trigger.name, tick.number))
    if acked is not None:
        alert.acknowledge(acked)
    return alert


def _severity(trigger: Trigger, entity_state: EntityState, about: Any, outcome: EntityOutcome) -> Severity:
    """The severity of a new alert: a function is called with the occurrence of a momentary one, else the state."""
    if not callable(trigger.severity):
        return trigger.severity
    try:
        return check_severity(trigger.severity(entity_state.state if about is None else about))
    except BaseException as error:  # noqa: BLE001 - user code: it must not prevent an alert
        outcome.note(trigger, entity_state, error, "severity: ")
        return "warning"


def _explain(rules: MonitorRules, entity_state: EntityState, trigger: Trigger, tick: MonitorTick, about: Any) -> bytes:
    """Why an alert was opened: the events, the state, and the rule. It is stored with the alert."""
    facts: dict[str, Any] = {
        "rule": rule_as_text(trigger),
        "tick": tick.number,
        "at": tick.at,
        "version": rules.fold.version,
        "events": [{"id": id, "at": at} for id, at in entity_state.marks.recent],
    }
    if about is not None:
        facts["occurrence"] = _part(lambda _: about, None)
    for name, ask in (("evidence", trigger.evidence), ("features", rules.fold.explain), ("state", lambda state: state)):
        if ask is not None:
            facts[name] = _part(ask, entity_state.state)
    return encode(facts)


def rule_as_text(trigger: Trigger) -> Any:
    """A trigger as text; its code may have no source."""
    rule = _part(lambda _: trigger.rule(), None)
    return rule if isinstance(rule, msgspec.Raw) else {"trigger": trigger.name, "kind": trigger.kind, "says": rule}


def _part(ask: Callable[[Any], Any], state: Any) -> Any:
    """One part of an explanation, as JSON if that is possible: it must not prevent an alert."""
    try:
        data = encode(ask(state))
        return msgspec.Raw(data) if len(data) <= MOST_EXPLAINED else f"too large: {len(data)} bytes"
    except BaseException as error:  # noqa: BLE001 - user code
        return f"not available: {describe(error)}"
