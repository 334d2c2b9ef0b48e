"""`ctx.wait_for_event` and `ctx.sleep`: wait by the record, or ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.core.errors import PayloadError
from tidemill.flows.reducer.record import ANSWERED
from tidemill.flows.reducer.step_ticks import WaitAsked
from tidemill.flows.runner.replay.record_lanes import RecordLane, raise_recorded
from tidemill.flows.runner.replay.step_replay import StepReplay


async def wait_by_record(
    replay: StepReplay, kind: str, note: WaitAsked, *, named: bool, before: Callable[[], None]
) -> Any:
    """Wait for what is recorded, or ask; returns None if the wait times out. `before` is called before it asks."""
    run, base = replay.run, note.question
    run.check_may_wait(replay.work)
    if replay.takes_turns:
        await replay.take_turn(kind, base)
    lane, operation = replay.at(kind, base)
    replay.refuse_inside_effect(lane, "a wait")
    if operation is not None:
        raise_recorded(operation)
    question = operation.result if operation is not None else replay.question(base, named=named)
    if question == replay.work.counted_to:
        replay.stop_skipping()
    known, answer = run.recall(replay.work, question)
    if operation is None:
        if known:
            await asyncio.sleep(0)  # A loop over an answer that is there must not block the process.
        replay.add(lane, kind, base, question)
    if known:
        after = replay.after(lane, operation)
        if not replay.may_pass(lane, ANSWERED, question, after):
            await run.receive_known(replay, lane, question, after)
        return answer
    before()
    try:
        return await run.ask(replay, lane, msgspec.structs.replace(note, question=question))
    except PayloadError as error:
        replay.fail_wait(lane, kind, base, question, error)
        raise


async def stay_unanswered(replay: StepReplay, lane: RecordLane, question: str) -> Any:
    """Wait for what the step had given up before it went on: it gives it up again."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await replay.give_up(lane, question)
