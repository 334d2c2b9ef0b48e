"""Waits are woken by the database; the safety poll behind them is slow."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.support import eventually
from tests.support.operate_streams import add_to_roster
from tests.support.watched import Pages, heat_monitor, watching
from tidemill.core.accounts import Caller
from tidemill.core.clock import VirtualClock
from tidemill.monitors.runner.evaluate import shard_of
from tidemill.monitors.runner.ingest import EntityBackfill
from tidemill.ops import waiting
from tidemill.ops.operator.local import Local
from tidemill.store.database import Database


class RecordingOperator(Local, frozen=True, eq=False):
    """Keeps the names of the operations that it has done."""

    done: list[str] = msgspec.field(default_factory=list)

    async def do(self, operation: Any, args: Any, /) -> Any:
        result = await super().do(operation, args)
        self.done.append(operation.name)
        return result


async def test_a_wait_for_a_backfill_is_woken_at_its_end_even_if_the_past_has_no_events(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SAFETY_POLL", 600.0)
    clock, operator = VirtualClock(1000.0), RecordingOperator(database, Caller("test", "viewer"))
    async with watching(database, heat_monitor(Pages(), roster="listed", backfill_rate="1000/s"), clock) as watcher:
        await watcher.one_tick()
        await add_to_roster(database, "heat", ["a"], [shard_of("a")], backfill=EntityBackfill(0.0), by="me")
        wait = asyncio.create_task(waiting.wait_for_backfill(operator, "heat", ["a"]))
        await eventually(lambda: operator.done)
        assert not wait.done()
        clock.advance(1.0)
        await watcher.one_tick()
        async with asyncio.timeout(150):
            await wait
