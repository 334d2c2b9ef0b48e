"""What a step starts and waits for: child runs, and batches of jobs. Each is started once, under a key of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tidemill.core.codec import decode
from tidemill.engine.runs.durable_run import WorkEnd
from tidemill.flows.definition.events import ChildEnded
from tidemill.flows.reducer.step_ticks import WaitAsked
from tidemill.flows.runner.replay.step_replay import StepReplay

if TYPE_CHECKING:
    from tidemill.engine.jobs.task import Call
    from tidemill.flows.runner.durable import DurableFlowRun

#: Starts a child run of a workflow with these fields, under this key, for this run and piece of work. The child may
#: already have been started; if it has already ended, its outcome is returned.
Starter = Callable[[Any, dict[str, Any], str, tuple[int, int]], Awaitable[WorkEnd | None]]


class JobGatherer(Protocol):
    """Enqueues jobs for a step as a batch, and reads their results."""

    async def start(self, calls: Sequence[Call[Any]], key: str, parent: tuple[int, int]) -> WorkEnd | None: ...

    async def results(self, batch: int) -> list[Any]: ...


async def wait_for_child(
    run: DurableFlowRun,
    replay: StepReplay,
    name: str,
    content: str,
    what: str,
    begin: Callable[[str, tuple[int, int]], Awaitable[WorkEnd | None]],
) -> ChildEnded:
    """Start something unless the step has started it before, and wait for its end."""
    work = replay.work
    if replay.takes_turns:
        await replay.take_turn("child", name)
    lane, operation = replay.at("child", name)
    replay.refuse_inside_effect(lane, what)
    if operation is not None:
        key = operation.result
    else:
        # With its content: another attempt that passes something else starts another child.
        digest = blake2b(content.encode(errors="replace"), digest_size=6).hexdigest()
        key = replay.child_key(f"child {name}-{digest} of r{run.number}.{work.id}")
        replay.add(lane, "child", name, key)
    known, ended = run.recall(work, key)
    if known:
        await run.receive_known(replay, lane, key, replay.after(lane, operation))
    else:

        async def start() -> None:
            end = await begin(key, (run.number, work.id))
            if end is not None:  # Its end may have been reported before the wait.
                for tick in run.work_ended(work.id, end):
                    run.loop.post(tick)

        run.check_may_wait(work)
        # Wait first: the child may end before this process learns that it has started.
        ended = await run.ask(replay, lane, WaitAsked(key, ChildEnded, {"key": key}), start)
    return ended


def child_end(number: int, row: Any) -> WorkEnd:
    """Return the outcome of a child run from its row."""
    result = msgspec.Raw(b"null" if row["result"] is None else row["result"])
    error = None if row["error"] is None else decode(row["error"])
    return WorkEnd(row["state"], run=number, key=row["key"], result=result, note=row["note"], error=error)
