"""Functions of users that fail: each failure is that event's, entity's or trigger's, is shown, and can pass later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.watched import Heat, Pages, event, heat_monitor, open_triggers, triggers, watching
from tidemill import App
from tidemill.core.clock import VirtualClock
from tidemill.monitors import AttributeDict, Monitor, momentary, sustained
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts
from tidemill.store.monitors.monitors import list_monitors, read_monitor
from tidemill.store.monitors.problems import list_problems
from tidemill.store.monitors.roster import show_entity


class Odd(BaseException):
    """An exception that `except Exception` does not catch."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS = [ZeroDivisionError("no"), SystemExit(3), asyncio.CancelledError(), Unspeakable()]


def fails(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


async def problems(database: Database) -> set[tuple[str, str]]:
    return {(row["place"], row["entity"]) for row in await list_problems(database, "heat")}


# -- entity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_event_whose_entity_cannot_be_found_is_skipped_and_shown(
    database: Database, error: BaseException
) -> None:
    def entity(data: Any) -> str:
        if data["who"] == "bad":
            raise error
        return data["who"]

    source = Pages()
    source.add(event(1, 999.0, "bad"), event(2, 999.0, "a", heat=60))
    watch = Monitor("heat", source=source, entity=entity, fold=Heat, triggers=triggers())
    async with watching(database, watch) as watcher:
        await watcher.one_tick()
        await watcher.one_tick()
    assert await open_triggers(database) == {("a", "hot")}
    (problem,) = await list_problems(database, "heat")
    assert (problem["place"], problem["entity"], problem["count"]) == ("entity", "", 1)  # though it was read twice
    assert problem["error"].startswith(f"event 1 was skipped: {type(error).__name__}")


async def test_names_that_fit_no_index_are_problems_of_their_events(database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, "x" * 4000), event("y" * 4000, 999.0, "b"), event(3, 999.0, "a\x00", heat=60))
    async with watching(database, heat_monitor(source)) as watcher:
        await watcher.one_tick()
    assert await open_triggers(database) == {("a\\x00", "hot")}
    assert await problems(database) == {("entity", ""), ("source", "")}


async def test_an_entity_that_is_found_at_the_next_read_is_followed(database: Database) -> None:
    known: dict[str, str] = {}
    source = Pages()
    source.add(event(1, 999.0, "a", heat=60))
    watch = Monitor("heat", source=source, entity=lambda e: known[e["who"]], fold=Heat, triggers=triggers())
    async with watching(database, watch) as watcher:
        await watcher.one_tick()
        known["a"] = "press"
        await watcher.one_tick()
    assert await open_triggers(database) == {("press", "hot")}


# -- the fold -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [object(), float("nan"), {1, "a"}], ids=["object", "nan", "set"])
async def test_an_event_after_which_the_state_cannot_be_stored_is_skipped_and_the_entity_goes_on(
    database: Database, bad: Any
) -> None:
    class Unstorable(Heat):
        def on_event(self, state: Any, event: Any) -> None:
            super().on_event(state, event)
            if event.get("bad"):
                state.thing = bad

    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 998.0), event(2, 999.0, heat=95, bad=True))
    async with watching(database, heat_monitor(source, fold=Unstorable), clock) as watcher:
        await watcher.one_tick()
        if not isinstance(bad, set):  # A set is stored as a list.
            assert (
                "event 2 was skipped: the state cannot be stored"
                in (await show_entity(database, "heat", "a"))["problem"]
            )
            assert await open_triggers(database) == set()
        source.add(event(3, 1000.0, heat=60))
        clock.advance(1.0)
        await watcher.one_tick()
        assert await open_triggers(database) == {("a", "hot")}
        assert (await show_entity(database, "heat", "a"))["problem"] is None
        clock.advance(400.0)
        await watcher.one_tick()
    assert ("a", "silent") in await open_triggers(database)  # its timers ran on


async def test_a_fold_that_cannot_start_stops_only_its_entity_and_misses_nothing_later(
    database: Database,
) -> None:
    broken = [True]

    class Starting(Heat):
        def on_event(self, state: Any, event: Any) -> None:
            if event["who"] == "bad" and broken[0]:
                raise Odd("no")
            super().on_event(state, event)

        def start(self) -> Any:
            if broken[0] and started.pop(0):
                raise Odd("no")
            return AttributeDict()

    started = [True, False, False, False, False]  # of a, b and later
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0, "a", heat=95), event(2, 999.0, "b", heat=60))
    async with watching(database, heat_monitor(source, fold=Starting), clock) as watcher:
        await watcher.one_tick()
        assert await open_triggers(database) == {("b", "hot")}
        assert ("entity", "a") in await problems(database)
        broken[0] = False

        async def opened() -> bool:
            await watcher.one_tick()
            return await open_triggers(database) == {("a", "hot"), ("b", "hot")}

        await eventually(opened)
    assert [row["key"] for row in await list_alerts(database, trigger="peak")] == ["1"]


async def test_a_fold_that_raises_at_its_tick_leaves_the_state_as_it_was(database: Database) -> None:
    class Halfway(Heat):
        def on_tick(self, state: Any, now: float) -> None:
            state.count = 1000
            raise Odd("no")

    source = Pages()
    source.add(event(1, 999.0, heat=60))
    async with watching(database, heat_monitor(source, fold=Halfway)) as watcher:
        await watcher.one_tick()
    assert await open_triggers(database) == {("a", "hot")}
    assert b'"count":1,' in (await show_entity(database, "heat", "a"))["state"]
    assert await problems(database) == {("fold", "a")}


# -- triggers -------------------------------------------------------------------------------------


async def test_an_occurrence_that_cannot_be_judged_drops_no_other_and_is_judged_again(
    database: Database,
) -> None:
    broken = [True]

    def when(occurrence: Any) -> bool:
        if occurrence["id"] == "2" and broken[0]:
            raise Odd("no")
        return True

    source, clock = Pages(), VirtualClock(1000.0)
    source.add(*(event(number, 990.0 + number, heat=95) for number in (1, 2, 3)))
    rules = [momentary("peak", of=lambda s: s.peaks or [], when=when)]
    async with watching(database, heat_monitor(source, triggers=rules), clock) as watcher:
        await watcher.one_tick()
        assert sorted(row["key"] for row in await list_alerts(database)) == ["1", "3"]
        assert await problems(database) == {("trigger peak", "a")}
        broken[0] = False
        clock.advance(6.0)
        await watcher.one_tick()
        assert sorted(row["key"] for row in await list_alerts(database)) == ["1", "2", "3"]


async def test_occurrences_that_cannot_be_listed_once_are_reported_later(database: Database) -> None:
    calls = [0]

    def of(state: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise Odd("no")
        return state.peaks or []

    source, clock = Pages(), VirtualClock(1000.0)
    source.add(*(event(number, 990.0 + number, heat=95) for number in (1, 2)))
    async with watching(database, heat_monitor(source, triggers=[momentary("peak", of=of)]), clock) as watcher:
        await watcher.one_tick()
        assert not await list_alerts(database)
        clock.advance(6.0)
        await watcher.one_tick()
        assert sorted(row["key"] for row in await list_alerts(database)) == ["1", "2"]


async def test_an_occurrence_that_always_fails_uses_up_no_tries_of_another(database: Database) -> None:
    broken = {"1", "2"}

    def when(occurrence: Any) -> bool:
        if occurrence["id"] in broken:
            raise Odd("no")
        return True

    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 990.0, heat=95))
    rules = [momentary("peak", of=lambda s: s.peaks or [], when=when)]
    async with watching(database, heat_monitor(source, triggers=rules), clock) as watcher:
        for _ in range(7):
            await watcher.one_tick()
            clock.advance(3600.0)
        source.add(event(2, clock.now(), heat=95))
        await watcher.one_tick()  # The last try of the one is the first of the other.
        broken.clear()
        clock.advance(6.0)
        await watcher.one_tick()
        assert [row["key"] for row in await list_alerts(database)] == ["2"]


async def test_many_events_use_up_no_tries_of_an_occurrence(database: Database) -> None:
    tried, broken = [0], [True]

    def when(occurrence: Any) -> bool:
        tried[0] += occurrence["id"] == "1"
        if occurrence["id"] == "1" and broken[0]:
            raise Odd("no")
        return occurrence["id"] == "1"

    source, clock = Pages(), VirtualClock(1000.0)
    rules = [momentary("peak", of=lambda s: s.peaks or [], when=when)]
    async with watching(database, heat_monitor(source, triggers=rules), clock) as watcher:
        for number in range(1, 13):
            source.add(event(number, 990.0 + number / 10, heat=95))
            await watcher.one_tick()
            clock.advance(0.1)
        assert tried == [1], "it is due after five seconds"
        broken[0] = False
        clock.advance(6.0)
        await watcher.one_tick()
        assert [row["key"] for row in await list_alerts(database)] == ["1"]


async def test_an_occurrence_that_always_fails_is_given_up(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 990.0, heat=95))
    rules = [momentary("peak", of=lambda s: s.peaks or [], when=fails(ZeroDivisionError()))]
    async with watching(database, heat_monitor(source, triggers=rules), clock) as watcher:
        for _ in range(12):
            await watcher.one_tick()
            clock.advance(3600.0)
        entity = await show_entity(database, "heat", "a")
    assert b'"peaks":[]' in entity["state"]
    assert entity["due_at"] is None


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_trigger_that_fails_once_is_checked_again_without_an_event(
    database: Database, error: BaseException
) -> None:
    calls = [0]

    def when(state: Any, now: float) -> bool:
        calls[0] += 1
        if calls[0] == 2:
            raise error
        return now >= 1200.0

    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0))
    rules = [sustained("old", when=when, recheck="60s")]
    async with watching(database, heat_monitor(source, triggers=rules), clock) as watcher:
        for _ in range(5):
            await watcher.one_tick()
            clock.advance(61.0)
    assert await open_triggers(database) == {("a", "old")}


BAD_PARTS: dict[str, dict[str, Any]] = {
    "since raises": {"since": fails(ZeroDivisionError())},
    "since is no time": {"since": lambda s: "yesterday"},
    "since is nan": {"since": lambda s: float("nan")},
    "severity raises": {"severity": fails(Odd())},
    "severity is none": {"severity": lambda s: "dire"},
    "evidence raises": {"evidence": fails(Odd())},
    "evidence has no json": {"evidence": lambda s: object()},
    "evidence has a nul": {"evidence": lambda s: "a\x00b"},
    "evidence is large": {"evidence": lambda s: "x" * 100_000},
}


@pytest.mark.parametrize("bad", BAD_PARTS)
async def test_a_part_of_a_rule_that_fails_does_not_prevent_its_alert(database: Database, bad: str) -> None:
    source = Pages()
    source.add(event(1, 999.0, heat=60))
    rules = [sustained("hot", when=lambda s, now: s.hot_since is not None, **BAD_PARTS[bad])]
    async with watching(database, heat_monitor(source, triggers=rules)) as watcher:
        await watcher.one_tick()
    assert await open_triggers(database) == {("a", "hot")}
    shown = await problems(database)
    assert shown == (set() if bad.startswith("evidence") else {("trigger hot", "a")})


async def test_the_severity_may_follow_from_the_state_or_the_occurrence(database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, "a", heat=99), event(2, 999.0, "b", heat=91))
    rules = [
        momentary("peak", of=lambda s: s.peaks or [], severity=lambda o: "critical" if o["heat"] > 95 else "info"),
        sustained("hot", when=lambda s, now: s.hot_since, severity=lambda s: "warning" if s.count else "info"),
    ]
    async with watching(database, heat_monitor(source, triggers=rules)) as watcher:
        await watcher.one_tick()
    found = {(row["trigger"], row["entity"]): row["severity"] for row in await list_alerts(database)}
    assert found == {
        ("peak", "a"): "critical", ("peak", "b"): "info", ("hot", "a"): "warning", ("hot", "b"): "warning",
    }  # fmt: skip


async def test_long_keys_are_told_apart_and_stored(database: Database) -> None:
    source = Pages()
    source.add(event(1, 998.0, heat=95), event(2, 999.0, heat=95))
    rules = [momentary("peak", of=lambda s: s.peaks or [], key=lambda o: "k" * 10_000 + o["id"])]
    async with watching(database, heat_monitor(source, triggers=rules)) as watcher:
        await watcher.one_tick()
    assert await value(database, "SELECT count(DISTINCT key) FROM tidemill.alert") == 2


# -- sources, and monitors beside each other -----------------------------------------------------


@pytest.mark.parametrize("error", ERRORS[1:3], ids=lambda error: type(error).__name__)
async def test_whatever_a_source_raises_is_a_failure_of_the_source(database: Database, error: BaseException) -> None:
    source = Pages()
    source.failures = [error]  # type: ignore[list-item]
    source.add(event(1, 999.0, heat=60))
    async with watching(database, heat_monitor(source)) as watcher:
        await watcher.one_tick()
        assert await problems(database) == {("source", "")}
        await watcher.one_tick()
    assert await open_triggers(database) == {("a", "hot")}


async def test_a_monitor_that_fails_altogether_is_shown_as_unhealthy_and_its_neighbour_goes_on(
    app: App, database: Database
) -> None:
    class NoPages(Pages):
        def pages(self, since: Any, token: Any, now: float) -> Any:
            return 7  # not even pages

    good = Pages()
    good.add(event(1, 999.0, heat=60))
    options = {"fold": Heat, "entity": lambda e: e["who"], "triggers": triggers(), "idle": 0.01, "failure_max": 0.02}
    app.monitor(Monitor("broken", source=NoPages(), **options))
    app.monitor(Monitor("heat", source=good, **options))
    role = app.monitors.runner(database, app.settings, clock=VirtualClock(1000.0))
    life = asyncio.create_task(role.run())
    try:

        async def shown() -> bool:
            rows = {row["name"]: row["status"] for row in await list_monitors(database)}
            return b'"health":"UNHEALTHY"' in (rows.get("broken") or b"")

        await eventually(shown)
        await eventually(lambda: open_triggers(database))
        good.add(event(2, 1000.0, heat=0))
        await eventually(lambda: _is_quiet(database))
    finally:
        role.stop()
        await life
    assert (await read_monitor(database, "broken"))["events"] == 0


async def _is_quiet(database: Database) -> bool:
    return not await open_triggers(database)
