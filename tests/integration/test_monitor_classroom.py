"""The classroom as a whole: simulated students, an API with moods, alerts, what teachers and researchers ask."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator

import pytest

from apps.classroom.app import classroom, glass_box, production
from apps.classroom.feed import (
    cards,
    claim,
    export_alerts,
    export_progsnap2,
    how_often,
    mark_present,
    precision,
    prompt_of,
    relive,
    timeline,
    whom_to_go_to,
)
from apps.classroom.simulator import Lesson, Moods, Production, serve
from tests.support import value
from tests.support.watched import watching
from tidemill.core.clock import VirtualClock
from tidemill.monitors.backtest import backtest
from tidemill.store.alerts import list_alerts, note_alert
from tidemill.store.database import Database

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


async def test_a_lesson_from_the_first_event_to_the_export(
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
        await watch.source.close()
    logged = made.lesson.upto_now()
    assert await value(database, "SELECT events FROM tidemill.monitor") == len(logged)
    assert made.answers[401] > 1
    assert made.answers[500] > 1
    assert {row["trigger"] for row in await list_alerts(database, limit=1000)} == {
        "wheel-spin",
        "inactive",
        "big-rewrite",
    }

    everybody = await cards(database, now=clock.now())
    assert len(everybody) == 12
    assert all(card.sparkline for card in everybody)
    visits = await whom_to_go_to(database, now=clock.now())
    assert visits == sorted(visits, key=lambda visit: (-visit.rank, visit.since, visit.student))
    first = visits[0]
    assert first.why.startswith("has ")
    assert "runs as" in first.tried
    await claim(database, first.student, "Ms Lee")
    await mark_present(database, first.student, True, "Ms Lee")
    assert (await whom_to_go_to(database, now=clock.now()))[0].claimed == "Ms Lee"
    assert "[Active]" in await prompt_of(database, first.student)
    story = await timeline(database, first.student, 0.0, 1e12)
    runs = [entry for entry in story if entry["type"] == "runProject"]
    assert runs[0]["program"][0] == "vex_when_started"
    assert any(entry["changed"] for entry in runs[1:])

    slider = await how_often(database, watch, 0.0, 1e12, [0.1, 0.3, 0.5])
    assert slider[0.1] > slider[0.3] > slider[0.5]
    told = [row for row in await list_alerts(database, limit=1000) if row["trigger"] == "big-rewrite"]
    assert len(told) == slider[0.5]
    await note_alert(database, told[0]["id"], by="researcher", note="#right, she began anew")
    await note_alert(database, told[1]["id"], by="researcher", note="#wrong")
    assert (await precision(database))["big-rewrite"] == (1, 1)
    table, programs = await export_progsnap2(database, 0.0, 1e12, key="k")
    rows = list(csv.DictReader(io.StringIO(table)))
    assert len(rows) == len(logged)
    assert not {row["SubjectID"] for row in rows} & {pupil.name for pupil in made.lesson.pupils}
    assert {row["CodeStateID"] for row in rows} - {""} == set(programs)
    assert "s001" not in await export_alerts(database, key="k")

    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    lived = [entry async for entry in relive(database, START, clock.now(), speed=10, sleep=sleep)]
    assert [entry["at"] for entry in lived] == sorted(entry["at"] for entry in lived)
    assert {entry["alert"] for entry in lived if "alert" in entry} == {"wheel-spin", "inactive", "big-rewrite"}
    assert sum(pauses) == pytest.approx((lived[-1]["at"] - START) / 10)

    corrected = await backtest(database, classroom(watch.source, profile="corrected"), 0.0, 1e12)
    original = await backtest(database, watch, 0.0, 1e12)
    assert original.counts()["big-rewrite"] == len(told)
    assert corrected.counts() != original.counts()
    assert corrected.counts()["big-rewrite"] >= original.counts()["big-rewrite"]
    glass = await backtest(database, glass_box(watch.source), 0.0, 1e12, entities=[first.student])
    assert glass.entities <= 1
