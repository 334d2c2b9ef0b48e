"""`ctx.once`: run a side effect once, even if the step runs again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tidemill.flows.runner.replay.record_lanes import RecordLane, current_lane
from tidemill.flows.runner.replay.step_replay import StepReplay, raise_recorded

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
