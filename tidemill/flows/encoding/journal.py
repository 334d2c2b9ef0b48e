"""Encode and decode the ticks of a flow run, for the journal, the inbox and time travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tidemill.core.codec import decode, encode, storable
from tidemill.core.errors import PayloadError
from tidemill.core.limits.size_limits import check_payload, is_large_payload
from tidemill.core.ticks import CancelAsked, Completed, Elapsed, Migrated, Noted, Received, Resumed, Started, Tick
from tidemill.engine.runs.durable_run import NOTHING_BEGUN, Begun
from tidemill.flows.encoding.events import decode_event, encode_event, loaded_event_class, qualified_name
from tidemill.flows.encoding.exceptions import exception_detail, exception_of
from tidemill.flows.encoding.record import NO_STATE, pack_record, unpack_record
from tidemill.flows.encoding.values import pack, pack_part, pack_state, unpack
from tidemill.flows.reducer.state.paths import MISSING
from tidemill.flows.reducer.step_ticks import (
    Did,
    EditBasis,
    Ended,
    EventSent,
    Gathered,
    Note,
    StateEdited,
    StepFailure,
    Suspended,
    WaitAsked,
    Withdrew,
    Wrote,
)

_encoder = msgspec.json.Encoder()


class TickRecord(msgspec.Struct, omit_defaults=True, gc=False):
    """A stored tick. Its kind decides which fields are set."""

    kind: str
    at: float
    work: int = 0
    event: msgspec.Raw = msgspec.Raw()
    target: str | None = None
    token: str = ""
    events: list[msgspec.Raw] = []
    listed: bool = False
    sent: list[tuple[msgspec.Raw, str | None]] = []
    error: tuple[str, str, str] | None = None
    detail: dict[str, Any] | None = None
    """What makes the exception of a failed step again, beside its class and message."""
    retry_in: float | None = None
    note: msgspec.Raw = msgspec.Raw()
    timer: str = ""
    reason: str = ""
    queued: bool = False
    rules: int = 1
    afresh: bool = False
    forked: bool = False
    version: str = ""
    before: str = ""
    state: msgspec.Raw = msgspec.Raw()
    begun: Begun = []
    """The work that started with it; it shows whether the workflow is still the one that the run was started with."""


_read_record = msgspec.json.Decoder(TickRecord).decode


def encode_tick(tick: Tick, begun: Begun = NOTHING_BEGUN) -> bytes:
    """Encode a tick; a `PayloadError` if a value in it has no JSON form."""
    return encode_record(record_of(tick), begun, at=tick.at)


def record_of(tick: Tick, store: Any = NO_STATE) -> TickRecord:
    """Convert a tick to its record; a `PayloadError` if a value in it has no JSON form.

    `store` is the state of the run at this tick, if the tick may refer to its values.
    """
    if isinstance(tick, Completed):
        return record_of_end(tick.at, tick.work, tick.outcome)
    if isinstance(tick, Noted):
        return TickRecord("noted", tick.at, tick.work, note=msgspec.Raw(encode(_pack_note(tick.note, store))))
    if isinstance(tick, Started):
        return TickRecord("started", tick.at, event=_raw(tick.input), rules=tick.rules, version=tick.version)
    if isinstance(tick, Received):
        return TickRecord("received", tick.at, event=_raw(tick.event), target=tick.target, token=tick.token)
    if isinstance(tick, Elapsed):
        return TickRecord("elapsed", tick.at, timer=tick.timer)
    if isinstance(tick, CancelAsked):
        return TickRecord("cancel_asked", tick.at, reason=tick.reason)
    if isinstance(tick, Migrated):
        state = msgspec.Raw(tick.state)
        return TickRecord("migrated", tick.at, version=tick.version, before=tick.before, state=state)
    how = {"queued": tick.queued, "rules": tick.rules, "afresh": tick.afresh, "forked": tick.forked}
    return TickRecord("resumed", tick.at, **how)


def record_of_end(at: float, work: int, ended: Ended) -> TickRecord:
    """Convert the end of an attempt to the record of its tick."""
    failure = ended.error
    return TickRecord(
        "completed",
        at,
        work,
        events=list(map(_raw, ended.events)),
        listed=ended.listed,
        sent=[(_raw(event), target) for event, target in ended.sent] if ended.sent else [],
        error=None if failure is None else (failure.kind, failure.message, failure.traceback),
        detail=None if failure is None else exception_detail(failure.exception, failure.kind),
        retry_in=ended.retry_in,
    )


def storable_end(ended: Ended) -> Ended:
    """Return an outcome whose failure can be stored: text that PostgreSQL cannot store is replaced."""
    failure = ended.error
    if failure is None or storable(failure.message + failure.traceback) == failure.message + failure.traceback:
        return ended
    kept = StepFailure(failure.kind, storable(failure.message), storable(failure.traceback), failure.exception)
    return msgspec.structs.replace(ended, error=kept)


def encode_record(record: TickRecord, begun: Begun, *, at: float) -> bytes:
    """Encode a record with the time of its tick and the work that started with it."""
    record.at, record.begun = at, begun
    try:
        return _encoder.encode(record)
    except (TypeError, ValueError) as error:
        raise PayloadError(f"this tick cannot be stored as JSON: {error}") from error


def decode_tick(data: bytes) -> Tick:
    """Decode a tick."""
    return tick_of(read_record(data))


def read_record(data: bytes) -> TickRecord:
    """Decode the record of a tick."""
    try:
        return _read_record(data)
    except msgspec.MsgspecError as error:
        raise PayloadError(str(error)) from error


def tick_of(record: TickRecord) -> Tick:
    """Convert a record to its tick."""
    match record.kind:
        case "completed":
            return Completed(record.at, record.work, _ended(record))
        case "noted":
            return Noted(record.at, record.work, _unpack_note(decode(bytes(record.note), dict[str, Any])))
        case "started":
            return Started(record.at, decode_event(bytes(record.event)), record.rules, record.version)
        case "received":
            return Received(record.at, decode_event(bytes(record.event)), record.target, record.token)
        case "elapsed":
            return Elapsed(record.at, record.timer)
        case "cancel_asked":
            return CancelAsked(record.at, record.reason)
        case "migrated":
            return Migrated(record.at, record.version, bytes(record.state), record.before)
        case "resumed":
            return Resumed(record.at, record.queued, record.rules, record.afresh, record.forked)
    raise PayloadError(f"unknown kind of tick {record.kind!r}: it may have been written by a newer version of Tidemill")


def _raw(event: Any) -> msgspec.Raw:
    data = encode_event(event)
    if is_large_payload(data):
        check_payload(data, f"event {type(event).__name__}")
    return msgspec.Raw(data)


def _ended(record: TickRecord) -> Ended:
    failure = None
    if record.error is not None:
        kind, message, trace = record.error
        failure = StepFailure(kind, message, trace, exception_of(kind, message, record.detail))
    sent = [(decode_event(bytes(event)), target) for event, target in record.sent] if record.sent else ()
    return Ended(
        tuple([decode_event(bytes(event)) for event in record.events]),
        record.listed,
        tuple(sent),
        failure,
        record.retry_in,
    )


def _pack_note(note: Note, store: Any) -> dict[str, Any]:
    if isinstance(note, EventSent):
        return {"kind": "sent", "events": [[pack(event), target] for event, target in note.events]}
    if isinstance(note, Gathered):
        expected = [qualified_name(kind) for kind in note.expected]
        return {"kind": "gathered", "buffer": note.buffer, "event": pack(note.event), "expected": expected}
    if isinstance(note, WaitAsked):
        data = {
            "kind": "asked",
            "question": note.question,
            "of": qualified_name(note.kind),
            "requirements": pack(note.requirements),
            "show": pack(note.show),
            "timeout": note.timeout,
            "rests_on": note.rests_on,
            "subclasses": note.subclasses,
        }
        if note.operations is None:  # It was written by an older version, and is copied to a fork.
            return {**data, "shown": note.shown, "lapses": note.lapses}
        return {**data, **pack_record(note.operations, store, "operations")}
    if isinstance(note, Suspended):
        return {"kind": "suspended", "rests_on": note.rests_on, **pack_record(note.operations, store, "operations")}
    if isinstance(note, Withdrew):
        return {"kind": "withdrew", "question": note.question}
    if isinstance(note, StateEdited):
        return {"kind": "edited", **_pack_values(note.changes), **_EDITS[note.edits]}
    if isinstance(note, EditBasis):
        return {"kind": "basis", **_pack_values(note.values)}
    if isinstance(note, Wrote):
        if note.value is MISSING:
            return {"kind": "wrote", "path": note.path, "missing": True, **_EDITS[note.edits]}
        return {"kind": "wrote", "path": note.path, "value": pack_state(note.value, note.path), **_EDITS[note.edits]}
    return {"kind": "did", "name": note.name, "result": pack_part(note.result, f"the result of once({note.name!r})")}


_EDITS: tuple[dict[str, Any], dict[str, Any]] = ({}, {"edits": True})


def _pack_values(values: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    gone = [path for path, value in values if value is MISSING]
    return {"values": [[path, pack_state(each, path)] for path, each in values if each is not MISSING], "gone": gone}


def _unpack_values(data: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    values = [(path, unpack(value)) for path, value in data["values"]]
    return (*values, *((path, MISSING) for path in data["gone"]))


def _unpack_note(data: dict[str, Any]) -> Note:
    match data["kind"]:
        case "sent":
            return EventSent(tuple((unpack(event), target) for event, target in data["events"]))
        case "gathered":
            expected = tuple(loaded_event_class(name) for name in data["expected"])
            return Gathered(data["buffer"], unpack(data["event"]), expected)
        case "asked":
            kind = loaded_event_class(data["of"])
            needed, show = unpack(data["requirements"]), unpack(data["show"])
            return WaitAsked(
                data["question"],
                kind,
                needed,
                show,
                data["timeout"],
                unpack_record(data, "operations") if "operations" in data else None,
                tuple(data.get("rests_on", ())),
                data.get("subclasses", False),
                data.get("shown", 0),
                data.get("lapses", 0),
            )
        case "suspended":
            return Suspended(unpack_record(data, "operations"), tuple(data["rests_on"]))
        case "withdrew":
            return Withdrew(data["question"])
        case "edited":
            return StateEdited(_unpack_values(data), data.get("edits", False))
        case "basis":
            return EditBasis(_unpack_values(data))
        case "wrote":
            value = MISSING if data.get("missing") else unpack(data["value"])
            return Wrote(data["path"], value, data.get("edits", False))
        case "did":
            return Did(data["name"], unpack(data["result"]))
    raise PayloadError(
        f"unknown kind of note {data['kind']!r}: it may have been written by a newer version of Tidemill"
    )
