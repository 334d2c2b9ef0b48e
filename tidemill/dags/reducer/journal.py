"""Encode and decode the ticks of a dag run, for its journal and its inbox."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.ticks import CancelAsked, Completed, Elapsed, Noted, Received, Resumed, Started, Tick
from tidemill.dags.reducer.events import NodeCancel, NodeEnded, NodeFailure, Submission

_NOTHING = msgspec.Raw(b"")


class _Received(msgspec.Struct, tag="received"):
    at: float
    event: Submission | NodeCancel
    target: str | None = None


class _Ended(msgspec.Struct, tag="node_ended"):
    state: Literal["succeeded", "failed", "cancelled", "expired"]
    job: int | None = None
    result: msgspec.Raw = _NOTHING
    error: NodeFailure | None = None
    note: str = ""


class _Completed(msgspec.Struct, tag="completed"):
    at: float
    work: int
    outcome: _Ended


_Written = Started | _Received | Noted | _Completed | Elapsed | CancelAsked | Resumed


def encode_tick(tick: Tick) -> bytes:
    """Encode a tick for the journal; a `PayloadError` if a value in it has no JSON form."""
    return encode(tick)


def decode_tick(data: bytes | str) -> Tick:
    """Decode a tick."""
    found: Any = decode(data, _Written)
    if isinstance(found, _Received):
        return Received(found.at, found.event, found.target)
    if isinstance(found, _Completed):
        return Completed(found.at, found.work, _kept(found.outcome))
    return found


def _kept(ended: _Ended) -> NodeEnded:
    """Copy the result, because a view would keep the whole buffer in memory."""
    result = ended.result.copy() if len(ended.result) else None
    return NodeEnded(ended.state, ended.job, result, ended.error, ended.note)
