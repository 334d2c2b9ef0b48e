"""The classroom as a whole: simulated students, an API with moods, alerts; the figures of thresholds and profiles."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from apps.classroom.monitor import classroom, production, triggers
from apps.classroom.simulator import Lesson, Moods, Production, serve
from apps.classroom.span import live_through, sweep
from apps.classroom.student import GlassBox
from tests.support import value
from tests.support.watched import watching
from tidemill.core.clock import VirtualClock
from tidemill.monitors.runner.backtest import backtest
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts

pytestmark = pytest.mark.long

START = 1_767_600_000.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def api(clock: VirtualClock) -> Iterator[tuple[Production, str]]:
    """A class of twelve behind an API with all moods."""
    lesson = Lesson(12, start=START, seed=4, now=clock.now)
    made = Production(lesson, Moods(errors=0.1, slow=0.05, repeats=0.2, token_uses=15, delay=0.01))
    server = serve(made)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


async def test_a_lesson_from_the_first_event_to_what_other_figures_would_have_told(
    database: Database, clock: VirtualClock, api: tuple[Production, str]
) -> None:
    made, url = api
    watch = classroom(production(url, "daemon", "secret"), roster="open")
    async with watching(database, watch, clock) as watcher:
        for _ in range(180):
            clock.advance(20.0)
            await watcher.one_tick()
        made.moods = Moods()
        await watcher.one_tick()
        await watcher.reader.close()
    logged = made.lesson.upto_now()
    assert await value(database, "SELECT events FROM tidemill.monitor") == len(logged)
    assert made.answers[401] > 1
    assert made.answers[500] > 1
    told = await list_alerts(database, limit=1000)
    assert {row["trigger"] for row in told} == {"wheel-spin", "inactive", "big-rewrite"}

    # What the sliders say is what a backtest with that threshold says.
    end = clock.now()
    lives = await live_through(database, START, end, profile="document")
    found = sweep(lives)
    assert found.events == len(logged)
    rewrites, silences = dict(found.big_rewrite), dict(found.inactive)
    assert rewrites[0.5] == sum(row["trigger"] == "big-rewrite" for row in told)
    for bound, silence in ((0.1, "2m"), (0.3, "8m")):
        rules = triggers(big_rewrite=bound, inactive=silence)
        counts = (await backtest(database, watch, START, end, triggers=rules)).counts()
        assert counts["big-rewrite"] == rewrites[bound] > 0
        assert counts["inactive"] == silences[float(silence[0]) * 60] > 0
        assert counts["wheel-spin"] == found.stuck

    corrected = await backtest(database, classroom(watch.source, profile="corrected"), START, end)
    original = await backtest(database, watch, START, end)
    assert original.counts()["big-rewrite"] == rewrites[0.5]
    assert corrected.counts() != original.counts()
    assert corrected.counts()["big-rewrite"] >= original.counts()["big-rewrite"]
    assert corrected.counts()["wheel-spin"] < original.counts()["wheel-spin"]
    # The glass box, too: so many stretches of five runs without a change.
    by_hand = dict(sweep(await live_through(database, START, end, profile="corrected")).zero_runs)
    streaks = classroom(watch.source, fold=GlassBox())
    assert (await backtest(database, streaks, START, end)).counts().get("wheel-spin", 0) == by_hand[5]
