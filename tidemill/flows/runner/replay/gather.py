"""Run the parts of `ctx.gather` at the same time, each in a lane that is named by its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from tidemill.flows.runner.replay.record_lanes import RecordLane
from tidemill.flows.runner.replay.step_replay import StepReplay


async def run_together(replay: StepReplay, parts: Sequence[Awaitable[Any]]) -> list[Any]:
    """Run the parts of `ctx.gather`, each in a lane that is named by its place."""
    around = replay.lane()
    around.gathers += 1

    async def run_part(place: int, part: Awaitable[Any]) -> Any:
        replay.open_lane(lanes[place])
        return await part

    lanes = [RecordLane(replay, f"{around.name}/gather{around.gathers}.{place}") for place in range(len(parts))]
    for lane in lanes:
        replay.expect_lane(lane)
    tasks = [asyncio.ensure_future(run_part(place, part)) for place, part in enumerate(parts)]
    around.joined += 1
    try:
        return await asyncio.gather(*tasks)
    finally:
        around.joined -= 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
