"""`ctx.once`: run a side effect once, even if the step runs again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any

from tidemill.flows.definition.events import Event, encode_event
from tidemill.flows.reducer.reducer import COMPENSATE
from tidemill.flows.runner.replay.record_lanes import RecordLane, current_lane, raise_recorded
from tidemill.flows.runner.replay.step_replay import StepReplay

Effect = Callable[[], Awaitable[Any] | Any]


async def run_once(replay: StepReplay, name: str, effect: Effect) -> Any:
    """Run a side effect unless the step has run it before, and return its result when it is committed."""
    work = replay.work
    if replay.takes_turns or name in work.did:
        await replay.take_turn("once", name, rests=name in work.did)
    lane, operation = replay.at("once", name)
    replay.refuse_inside_effect(lane, "ctx.once()")
    if operation is not None:
        raise_recorded(operation)
        return work.did[name]
    async with replay.effect(name):
        if name not in work.did:
            try:
                await replay.run.commit_effect(replay, lane, name, await _run_effect(replay, lane, name, effect))
            except Exception as error:
                replay.add(lane, "once", name, error=error)
                raise
    replay.add(lane, "once", name)
    return work.did[name]


def compensation_name(replay: StepReplay, step: str, event: Event) -> str:
    """Return the name of the side effect that registers a compensation: one name for each step and content.

    If the event's class or the step has another name since, it is the one under which it was registered before."""
    content, renamed = encode_event(event), replay.run.declared.topology.renamed
    for name, did in replay.work.did.items():
        if name.startswith(COMPENSATE) and renamed.get(did[0], did[0]) == step and encode_event(did[1]) == content:
            return name
    return f"{COMPENSATE}{step} {blake2b(content, digest_size=8).hexdigest()}"


async def _run_effect(replay: StepReplay, lane: RecordLane, name: str, effect: Effect) -> Any:
    """Run a side effect. Its own operations are not recorded: only its result counts."""
    silent = RecordLane(replay, lane.name, lane.owner)
    silent.inside = name
    token = current_lane.set(silent)
    try:
        result = effect()
        return await result if isinstance(result, Awaitable) else result
    finally:
        current_lane.reset(token)
