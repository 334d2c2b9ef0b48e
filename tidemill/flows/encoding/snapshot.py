"""Encode and decode the state of a run: the snapshot from which a run is resumed.

    data = encode_state(state)
    state = decode_state(data, topology)       a `PayloadError` if it was written by a newer version

A snapshot contains everything that the reducer knows: applying further ticks to a restored state gives the same result
as applying them to the original.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from tidemill.core.codec import encode
from tidemill.core.errors import PayloadError
from tidemill.flows.definition.topology import Topology
from tidemill.flows.encoding.events import loaded_event_class, qualified_name
from tidemill.flows.encoding.exceptions import exception_detail, exception_of
from tidemill.flows.encoding.record import NO_STATE, pack_record, resolve, unpack_record
from tidemill.flows.encoding.values import pack, unpack
from tidemill.flows.reducer.state.flow_state import (
    Ending,
    EventBatch,
    FlowState,
    PendingWrite,
    StepProgress,
    Wait,
    Work,
)
from tidemill.flows.reducer.state.paths import MISSING, read_path
from tidemill.flows.reducer.state.undo import add_draft, settled_drafts
from tidemill.flows.reducer.step_ticks import StepFailure

FORMAT = 2


class SnapshotHeader(msgspec.Struct):
    """What every version writes; the other fields are read only if the format is known."""

    format: int


class FlowSnapshot(msgspec.Struct, omit_defaults=True):
    """The state of a run as plain JSON values."""

    format: int
    status: str
    sequence: int
    started: float
    idle: bool
    running: int
    pending: int
    store: Any = None
    result: Any = None
    error: Any = None
    works: list[Any] = []
    queues: dict[str, list[int]] = {}
    batches: list[Any] = []
    pairs: list[Any] = []
    buffers: list[Any] = []
    prompts: list[Any] = []
    mailbox: list[Any] = []
    dropped: int = 0
    rules: int = 1
    compensations: list[Any] = []
    ending: Any = None
    drafted: int = 0
    settled: list[tuple[int, str]] = []
    version: str = ""
    error_detail: Any = None
    """What is stored of an exception beside its class and message: the version before expects it in no failure."""
    ending_detail: Any = None


_read_header = msgspec.json.Decoder(SnapshotHeader).decode
_read_snapshot = msgspec.json.Decoder(FlowSnapshot).decode


def encode_state(state: FlowState, *, by_value: bool = False) -> bytes:
    """Encode the state of a run as JSON bytes; with `by_value`, records of steps do not refer to the state."""
    store = NO_STATE if by_value or state.store is None else state.store
    return encode(
        FlowSnapshot(
            format=FORMAT,
            status=state.status,
            sequence=state.sequence,
            started=state.started,
            idle=state.idle,
            running=state.running,
            pending=state.pending,
            store=pack(state.store),
            result=pack(state.result),
            error=_pack_failure(state.error),
            works=[pack_work(work, store) for work in state.works.values()],
            queues={name: [work.id for work in step.queue] for name, step in state.steps.items() if step.queue},
            batches=[_pack_batch(batch) for batch in state.batches.values()],
            pairs=[
                [name, list(lineage), {param: pack(list(queue)) for param, queue in waiting.items()}]
                for (name, lineage), waiting in state.pairs.items()
            ],
            buffers=[
                [step, buffer, [[qualified_name(kind), pack(list(queue))] for kind, queue in kinds.items()]]
                for (step, buffer), kinds in state.buffers.items()
            ],
            prompts=[pack(event) for event in state.prompts],
            mailbox=[pack(event) for event in state.mailbox],
            dropped=state.dropped,
            rules=state.rules,
            compensations=[[step, pack(event)] for step, event in state.compensations],
            ending=_pack_ending(state.ending),
            drafted=state.drafted,
            settled=[(each.number, each.path) for each in settled_drafts(state.drafts)],
            version=state.version,
            error_detail=_pack_detail(state.error),
            ending_detail=None if state.ending is None else _pack_detail(state.ending.error),
        )
    )


def decode_state(data: bytes, topology: Topology) -> FlowState:
    """Decode the state of a run of a workflow with this topology."""
    try:
        written_as = _read_header(data).format
    except msgspec.MsgspecError as error:
        raise PayloadError("this is not the snapshot of a run") from error
    if written_as > FORMAT:
        raise PayloadError(f"this snapshot has format {written_as}, but this version of Tidemill reads only {FORMAT}")
    try:
        snap = _read_snapshot(data)
    except msgspec.MsgspecError as error:
        raise PayloadError(str(error)) from error
    state = FlowState(
        status=snap.status,
        sequence=snap.sequence,
        started=snap.started,
        idle=snap.idle,
        running=snap.running,
        pending=snap.pending,
        store=unpack(snap.store),
        result=unpack(snap.result),
        error=_unpack_failure(snap.error, snap.error_detail),
        steps={name: StepProgress() for name in topology.steps},
        batches={batch["id"]: _unpack_batch(batch) for batch in snap.batches},
        prompts=deque(unpack(event) for event in snap.prompts),
        mailbox=deque(unpack(event) for event in snap.mailbox),
        dropped=snap.dropped,
        rules=snap.rules,
        compensations=[(step, unpack(event)) for step, event in snap.compensations],
        ending=_unpack_ending(snap.ending, snap.ending_detail),
        drafted=snap.drafted,
        version=snap.version,
    )
    for packed in snap.works:
        _restore_work(state, unpack_work(packed, state.store))
    for name, ids in snap.queues.items():
        _step(state, name).queue.extend(state.works[number] for number in ids)
    for batch in state.batches.values():
        for name in (batch.step, *batch.arrived):
            _step(state, name)
    for name, lineage, waiting in snap.pairs:
        _step(state, name)
        state.pairs[name, tuple(lineage)] = {param: deque(unpack(events)) for param, events in waiting.items()}
    for step, buffer, kinds in snap.buffers:
        _step(state, step)
        state.buffers[step, buffer] = {loaded_event_class(name): deque(unpack(events)) for name, events in kinds}
    for work in state.works.values():
        _find_gathered(state, work)
    _line_up_drafts(state, snap)
    return state


def _restore_work(state: FlowState, work: Work) -> None:
    state.works[work.id] = work
    step = _step(state, work.step)
    if work.slot >= 0:
        step.slots.add(work.slot)
        state.on_queue += work.queue is not None
    elif work.replies:
        step.woken += 1
    for question, wait in work.waiting.items():
        state.waits.setdefault(wait.kind, {})[work.id, question] = work


def _line_up_drafts(state: FlowState, snap: FlowSnapshot) -> None:
    drafts: list[PendingWrite] = []
    for work in state.works.values():
        own = [*work.kept_writes, *(draft for act in work.undo for draft in act if not draft.void)]
        for draft in own:
            draft.work = work.id
        drafts += own
    drafts += [PendingWrite(number, path, MISSING, settled=True) for number, path in snap.settled]
    for draft in sorted(drafts, key=lambda each: each.number):
        add_draft(state.drafts, draft)


def _find_gathered(state: FlowState, work: Work) -> None:
    """Make collected events the same objects in the work and in the buffer, as they were before."""
    used: set[int] = set()
    for index, (buffer, event) in enumerate(work.gathered):
        queue = state.buffers.get((work.step, buffer), {}).get(type(event), ())
        taken = (each for name, events in work.taken if name == buffer for each in events)
        for same in (*queue, *taken):
            if id(same) not in used and same == event:
                used.add(id(same))
                work.gathered[index] = (buffer, same)
                break


def _step(state: FlowState, name: str) -> StepProgress:
    step = state.steps.get(name)
    if step is None:
        raise PayloadError(f"the run is at step {name!r}, which the workflow no longer has")
    return step


def pack_work(work: Work, store: Any = NO_STATE) -> dict[str, Any]:
    """Convert a piece of work to plain JSON values; its record may refer to values of the run's state."""
    packed: dict[str, Any] = {
        "id": work.id,
        "step": work.step,
        "input": pack(work.input),
        "lineage": list(work.lineage),
        "recovered": [list(each) for each in work.recovered],
        "cause": qualified_name(work.cause),
        "began": work.began,
        "since": work.since,
        "slot": work.slot,
        "attempt": work.attempt,
        "queue": work.queue,
        "failed_at": work.failed_at,
        "retry_at": work.retry_at,
        "error": _pack_failure(work.error),
        "waiting": [
            [w.question, qualified_name(w.kind), pack(w.requirements), w.due, w.timeout, w.subclasses]
            for w in work.waiting.values()
        ],
        "answers": pack(work.answers),
        "did": pack(work.did),
        "collected": pack(work.collected),
        "gathered": [[buffer, pack(event)] for buffer, event in work.gathered],
        "taken": [[buffer, pack(events)] for buffer, events in work.taken],
        "undo": [[_pack_draft(draft, store) for draft in act] for act in work.undo],
        "kept_writes": [_pack_draft(draft, store) for draft in work.kept_writes if not draft.void],
        "lapsed": work.lapsed,
        **pack_record(work.record, store, "record", lenient=store is NO_STATE),
        "spare": [[pack(event), target] for event, target in work.spare],
        "asked": sorted(work.asked),
        "withdrawn": sorted(work.withdrawn),
        "given_up": sorted(work.given_up),
        "reborn": work.reborn or {},
        "suspended": work.suspended,
        "asleep": work.asleep,
        "replies": work.replies,
        "restarted": work.restarted,
        "wrote": work.wrote,
        "gathered_before": work.gathered_before,
        "taken_before": work.taken_before,
        "counted_to": work.counted_to,
        "sent": work.sent,
        "shown": work.shown,
    }
    if detail := _pack_detail(work.error):
        packed["error_detail"] = detail
    return packed


def unpack_work(data: dict[str, Any], store: Any = NO_STATE) -> Work:
    """Convert plain JSON values back to a piece of work. One without a record was written by an older version."""
    return Work(
        id=data["id"],
        step=data["step"],
        input=unpack(data["input"]),
        lineage=tuple(data["lineage"]),
        recovered=tuple((name, count) for name, count in data["recovered"]),
        cause=loaded_event_class(data["cause"]),
        began=data["began"],
        since=data.get("since", 0.0),
        slot=data["slot"],
        attempt=data["attempt"],
        queue=data["queue"],
        failed_at=data["failed_at"],
        retry_at=data.get("retry_at"),
        error=_unpack_failure(data["error"], data.get("error_detail")),
        waiting={
            question: Wait(question, loaded_event_class(kind), unpack(needed), *more)
            for question, kind, needed, *more in data["waiting"]
        },
        answers=unpack(data["answers"]),
        did=unpack(data["did"]),
        collected=unpack(data["collected"]),
        gathered=[(buffer, unpack(event)) for buffer, event in data["gathered"]],
        taken=[(buffer, unpack(events)) for buffer, events in data["taken"]],
        undo=[[_unpack_draft(draft, store) for draft in act] for act in data["undo"]],
        kept_writes=[_unpack_draft(draft, store) for draft in data.get("kept_writes", ())],
        lapsed=data["lapsed"],
        record=resolve(unpack_record(data, "record"), store),
        spare=tuple((unpack(event), target) for event, target in data.get("spare", ())),
        asked=frozenset(data["asked"] if "asked" in data else [each[0] for each in data["waiting"]]),
        withdrawn=frozenset(data.get("withdrawn", ())),
        given_up=frozenset(data.get("given_up", ())),
        reborn=data.get("reborn") or None,
        suspended=data.get("suspended", False),
        asleep=data.get("asleep", False),
        replies=tuple(data.get("replies", ())),
        restarted=data.get("restarted", False),
        wrote=data["wrote"],
        gathered_before=data.get("gathered_before", 0),
        taken_before=data.get("taken_before", 0),
        counted_to=data.get("counted_to", None if "record" in data else _last_wait(data)),
        sent=data["sent"],
        shown=data["shown"],
    )


def _last_wait(data: dict[str, Any]) -> str:
    """Return the wait that an older version has asked last: steps had one open wait at a time."""
    asked = [each[0] for each in data["waiting"]] or list(unpack(data["answers"]))
    return asked[-1] if asked else ""


def _pack_draft(draft: PendingWrite, store: Any) -> list[Any]:
    if draft.void:
        return [draft.number]
    head = [draft.number, draft.path, draft.made]
    before = [] if draft.before is MISSING else [pack(draft.before)]
    if draft.after is MISSING:
        after = []
    else:  # None if the state has it.
        is_there = store is not NO_STATE and read_path(store, draft.path) is draft.after
        after = None if is_there else [pack(draft.after)]
    return [*head, before, after, draft.edits, draft.built_on]


def _unpack_draft(data: list[Any], store: Any) -> PendingWrite:
    if len(data) == 1:
        return PendingWrite(data[0], "", MISSING, void=True)
    number, path, made, *more = data
    if len(more) < 2:  # An older version: nothing is known of what was made from it.
        return PendingWrite(number, path, unpack(more[0]) if more else MISSING, made)
    before, after, edits, built_on = more
    written = read_path(store, path) if after is None else unpack(after[0]) if after else MISSING
    return PendingWrite(
        number, path, unpack(before[0]) if before else MISSING, made, after=written, edits=edits, built_on=built_on
    )


def _pack_batch(batch: EventBatch) -> dict[str, Any]:
    return {
        "id": batch.id,
        "step": batch.step,
        "lineage": list(batch.lineage),
        "recovered": [list(each) for each in batch.recovered],
        "tokens": batch.tokens,
        "arrived": {name: pack(events) for name, events in batch.arrived.items()},
        "released": sorted(batch.released),
    }


def _unpack_batch(data: dict[str, Any]) -> EventBatch:
    return EventBatch(
        id=data["id"],
        step=data["step"],
        lineage=tuple(data["lineage"]),
        recovered=tuple((name, count) for name, count in data["recovered"]),
        tokens=data["tokens"],
        arrived={name: unpack(events) for name, events in data["arrived"].items()},
        released=set(data["released"]),
    )


def _pack_ending(ending: Ending | None) -> Any:
    if ending is None:
        return None
    return [ending.status, _pack_failure(ending.error), pack(ending.event), ending.why, ending.failed]


def _unpack_ending(data: Any, detail: Any) -> Ending | None:
    if data is None:
        return None
    status, error, event, why, failed = data
    return Ending(status, _unpack_failure(error, detail), unpack(event), why, failed)


def _pack_failure(failure: StepFailure | None) -> Any:
    return None if failure is None else [failure.kind, failure.message, failure.traceback]


def _pack_detail(failure: StepFailure | None) -> Any:
    return None if failure is None else exception_detail(failure.exception, failure.kind)


def _unpack_failure(data: Any, detail: Any) -> StepFailure | None:
    if data is None:
        return None
    kind, message, trace = data
    return StepFailure(kind, message, trace, exception_of(kind, message, detail))
