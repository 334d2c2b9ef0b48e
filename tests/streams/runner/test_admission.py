"""One gate for all messages of a source: first attempts, retries, replays, live requests, over all dispatchers."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import pytest

from tests.support import eventually
from tests.support.operate_streams import control_stream, replay_dead
from tests.support.streams import publish, running_stream
from tidemill.core.retry import retry
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.store.streams.dead_letters import DeadFilter, count_dead
from tidemill.store.streams.limits import LOCK_LIMITS
from tidemill.streams import Plan, Stream, task
from tidemill.streams.runner.live_requests import SaturatedError, UnavailableError


class Timed(Plan, eligibility="timed"):
    """Notes when messages begin and how many of them run."""

    began: list[float]
    running: int
    most: int
    is_broken: bool

    @task
    async def do(self, ctx: Any) -> None:
        Timed.began.append(time.monotonic())
        if Timed.is_broken:
            raise ValueError("broken")
        Timed.running += 1
        Timed.most = max(Timed.most, Timed.running)
        await asyncio.sleep(ctx.value if isinstance(ctx.value, float) else 0.0)
        Timed.running -= 1


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Timed.began, Timed.running, Timed.most, Timed.is_broken = [], 0, 0, False


def stream_of(**options: Any) -> Stream:
    of_source = {name: options.pop(name) for name in ("max_qps", "burst", "max_concurrency") if name in options}
    source = LogSource("posts", eligibilities=frozenset({"timed"}), **of_source)
    return Stream("s", plans=[Timed], sources=[source], engines=0, **{"retry": retry(1), **options})


def rate_after(first: int) -> float:
    """Messages a second, from the given one to the last."""
    return (len(Timed.began) - first - 1) / (Timed.began[-1] - Timed.began[first])


async def test_replayed_messages_keep_the_limit_of_their_source(database: Database, database_url: str) -> None:
    Timed.is_broken = True
    await publish(database, "posts", range(60))
    async with running_stream(stream_of(), database_url):
        await eventually(lambda: _count_dead(database, 60))
    Timed.is_broken, Timed.began = False, []
    async with running_stream(stream_of(max_qps=50, burst=5), database_url):
        assert await replay_dead(database, DeadFilter(stream="s")) == 60
        await eventually(lambda: len(Timed.began) == 60)
    assert rate_after(5) <= 52, "the first of them may pass at once"


async def test_a_replay_with_a_rate_of_its_own_is_spread_over_time(database: Database, database_url: str) -> None:
    Timed.is_broken = True
    await publish(database, "posts", range(30))
    async with running_stream(stream_of(), database_url):
        await eventually(lambda: _count_dead(database, 30))
        Timed.is_broken, Timed.began = False, []
        assert await replay_dead(database, DeadFilter(stream="s"), rate=20.0) == 30
        await eventually(lambda: len(Timed.began) == 30)
    assert Timed.began[-1] - Timed.began[0] >= 29 / 20 - 0.3


async def test_a_source_that_is_off_replays_nothing(database: Database, database_url: str) -> None:
    Timed.is_broken = True
    await publish(database, "posts", range(3))
    async with running_stream(stream_of(), database_url) as dispatcher:
        await eventually(lambda: _count_dead(database, 3))
        Timed.is_broken, Timed.began = False, []
        await control_stream(database, "s", "posts", enabled=False)
        await eventually(lambda: not dispatcher.reducer.limits[0].enabled)
        await replay_dead(database, DeadFilter(stream="s"))
        await publish(database, "posts", ["fresh"])
        await eventually(lambda: dispatcher.reducer.waiting(0))
        assert not Timed.began
        await control_stream(database, "s", "posts", enabled=True)
        await eventually(lambda: len(Timed.began) == 4)


async def test_two_dispatchers_share_a_rate(database: Database, database_url: str) -> None:
    stream = stream_of(max_qps=100)
    async with running_stream(stream, database_url) as first, running_stream(stream, database_url) as second:
        for _ in range(12):  # Small ranges, so that both read some.
            await publish(database, "posts", range(40))

        async def both_work() -> bool:
            return all(each.reducer.limits[0].qps_part not in (None, 0.0, 100.0) for each in (first, second))

        await eventually(both_work)
        parts = [each.reducer.limits[0].qps_part or 0.0 for each in (first, second)]
        assert sum(parts) <= 100
        begin = len(Timed.began)
        await eventually(lambda: len(Timed.began) >= begin + 150)
        assert rate_after(begin) <= 104
    assert await database.fetch("SELECT 1 FROM tidemill.stream_limit") == [], "parts are given back"


async def test_a_new_limit_lets_nothing_pass_until_it_is_divided(database: Database, database_url: str) -> None:
    stream = stream_of()
    async with running_stream(stream, database_url) as first, running_stream(stream, database_url) as second:
        async with database.transaction() as dividing:
            await dividing.execute(LOCK_LIMITS, "s")
            await control_stream(database, "s", "posts", max_qps=100.0, burst=20.0)
            await eventually(lambda: all(each.reducer.limits[0].max_qps for each in (first, second)))
            await publish(database, "posts", range(50))
            await eventually(lambda: first.reducer.waiting(0) + second.reducer.waiting(0) == 50)
            assert not Timed.began
        await eventually(lambda: len(Timed.began) == 50)
    assert len(Timed.began) <= 21 + 104 * (Timed.began[-1] - Timed.began[0]), "one burst for both"


async def test_a_dispatcher_that_has_nothing_to_do_leaves_the_whole_limit_to_the_others(
    database: Database, database_url: str
) -> None:
    stream = stream_of(max_qps=100)
    async with running_stream(stream, database_url) as first, running_stream(stream, database_url) as second:

        async def nearly_the_whole_rate() -> bool:
            done = len(Timed.began)
            await publish(database, "posts", range(200))  # One range: one of the two has it all.
            await eventually(lambda: len(Timed.began) >= done + 120)
            assert max(each.reducer.limits[0].qps_part or 0.0 for each in (first, second)) >= 95
            rate = rate_after(done)
            await eventually(lambda: len(Timed.began) == done + 200)
            return rate >= 80

        await eventually(nearly_the_whole_rate)  # A busy machine may be slower, but not every time.


async def test_two_dispatchers_share_the_slots_of_a_source(database: Database, database_url: str) -> None:
    stream = stream_of(max_concurrency=3)
    async with running_stream(stream, database_url), running_stream(stream, database_url):
        for _ in range(10):
            await publish(database, "posts", [0.05] * 6)
        await eventually(lambda: len(Timed.began) == 60)
    assert Timed.most == 3


async def test_live_requests_have_a_limit_and_a_switch_of_their_own(database: Database, database_url: str) -> None:
    async with running_stream(stream_of(live_qps=2), database_url) as dispatcher:
        live = dispatcher.live_requests
        asked = [live.ask(b"1", ["timed"]) for _ in range(3)]  # At once: half a second later there is one more.
        *_, third = told = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(each, SaturatedError) for each in told] == [False, False, True], told
        assert "at most 2 live requests a second" in str(third)
        await control_stream(database, "s", "live", max_qps=1000.0, burst=50.0)
        await eventually(lambda: live.limits.max_qps == 1000.0)
        await eventually(lambda: live.limits.qps_part == 1000.0)
        await control_stream(database, "s", "live", enabled=False)
        await eventually(lambda: not live.limits.enabled)
        with pytest.raises(UnavailableError, match="tidemill stream enable s live"):
            await live.ask(b"1", ["timed"])


async def test_a_slow_source_that_is_replayed_leaves_the_others_their_share(
    database: Database, database_url: str
) -> None:
    class Quick(Plan, eligibility="quick"):
        done = 0

        @task
        async def do(self, ctx: Any) -> None:
            Quick.done += 1
            await asyncio.sleep(0.002)

    slow = LogSource("posts", weight=1, eligibilities=frozenset({"timed"}))
    quick = LogSource("quick", weight=8, eligibilities=frozenset({"quick"}))
    stream = Stream("s", plans=[Timed, Quick], sources=[slow, quick], engines=0, max_concurrency=18, retry=retry(1))
    Timed.is_broken = True
    await publish(database, "posts", [5.0] * 300)
    async with running_stream(stream, database_url):
        await eventually(lambda: _count_dead(database, 300))
    Timed.is_broken, Timed.began = False, []
    async with running_stream(stream, database_url) as dispatcher:
        await publish(database, "quick", range(30_000))
        await eventually(lambda: Quick.done > 100)
        await replay_dead(database, DeadFilter(stream="s"))
        await eventually(lambda: dispatcher.reducer.in_flight[0])
        taken, until = [], Quick.done + 2500
        while Quick.done < until:
            taken.append(dispatcher.reducer.in_flight[0])
            await asyncio.sleep(0.01)
        assert statistics.median(taken) <= 4, "a ninth of the slots, and what was free for a moment"
        assert max(taken) <= 9, "also in moments in which a busy machine reads no quick messages"
        dispatcher.life.stop()
        dispatcher.life.stop()


async def _count_dead(database: Database, count: int) -> bool:
    return await count_dead(database, DeadFilter(stream="s")) == count
