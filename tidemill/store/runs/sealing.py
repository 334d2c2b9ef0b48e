"""What runs write, with their payloads sealed: ticks, snapshots and turns.

Statements look into ticks and snapshots for their kind, their work item, tokens and compensations: these stay readable.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill.core.encoding.sealing import PayloadCodec, seal_json, seal_members, seal_text
from tidemill.store.database import Database
from tidemill.store.runs.run_turn import JobChain, JobRow, RunTurn

#: The members of ticks that are no payloads. What a step has done once is found by its name: only its result is sealed.
_OPEN = frozenset({
    "kind", "at", "work", "target", "token", "listed", "retry_in", "timer", "reason", "queued", "rules", "afresh",
    "forked", "version", "before", "begun",
})  # fmt: skip
_DONE_ONCE = b'"note":{"kind":"did"'


def seal_run_tick(database: Database, tick: bytes) -> bytes:
    """A tick as it is stored."""
    codec = database.codec
    return tick if codec is None else _seal_tick(codec, tick)


def seal_turn(database: Database, turn: RunTurn) -> RunTurn:
    """A turn as it is stored."""
    codec = database.codec
    if codec is None:
        return turn

    def whole(value: bytes | None) -> bytes | None:
        return None if value is None else seal_json(codec, value)

    new = turn.new
    return msgspec.structs.replace(
        turn,
        ticks=[_seal_tick(codec, tick) for tick in turn.ticks],
        shown=[(tick, seal_json(codec, data)) for tick, data in turn.shown],
        jobs=[(work, _seal_job(codec, job)) for work, job in turn.jobs],
        asks=[(node, seal_text(codec, prompt), schema, due) for node, prompt, schema, due in turn.asks],
        new=None if new is None else msgspec.structs.replace(new, input=seal_json(codec, new.input)),
        result=whole(turn.result),
        error=whole(turn.error),
        note=turn.note and seal_text(codec, turn.note),
        snapshot=None if turn.snapshot is None else _seal_snapshot(codec, turn.snapshot),
    )


def seal_turns(database: Database, turns: Sequence[RunTurn]) -> Sequence[RunTurn]:
    """Turns as they are stored."""
    return turns if database.codec is None else [seal_turn(database, turn) for turn in turns]


def _seal_job(codec: PayloadCodec, job: JobRow) -> JobRow:
    chain = job.chain
    if chain is not None:
        chain = JobChain([(work, _seal_job(codec, each)) for work, each in chain.jobs], chain.result_limit)
    return job._replace(args=seal_json(codec, job.args), chain=chain)


def _seal_tick(codec: PayloadCodec, tick: bytes) -> bytes:
    members = msgspec.json.decode(tick, type=dict[str, msgspec.Raw])
    if _DONE_ONCE in tick:
        members["note"] = msgspec.Raw(seal_members(codec, bytes(members["note"]), ("result",)))
        return msgspec.json.encode(members)
    return seal_members(codec, tick, members.keys() - _OPEN)


def _seal_snapshot(codec: PayloadCodec, snapshot: bytes) -> bytes:
    members = msgspec.json.decode(snapshot, type=dict[str, msgspec.Raw])
    for name, value in members.items():
        if name == "compensations":
            pairs = msgspec.json.decode(value, type=list[tuple[str, msgspec.Raw]])
            sealed = [(step, msgspec.Raw(seal_json(codec, bytes(event)))) for step, event in pairs]
            members[name] = msgspec.Raw(msgspec.json.encode(sealed))
        else:
            members[name] = msgspec.Raw(seal_json(codec, bytes(value)))
    return msgspec.json.encode(members)
