"""What follows from events and timers for one entity: pure, on virtual time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.support.watched import Heat, triggers
from tidemill.core.errors import ConfigError
from tidemill.monitors import Hours, absent, momentary, sustained
from tidemill.monitors.definition.event import Event, MonitorTick
from tidemill.monitors.definition.monitor import Fold
from tidemill.monitors.reducer.entity_state import AlertRecord, EntityState
from tidemill.monitors.reducer.fold import CHECKPOINT_EVERY
from tidemill.monitors.reducer.reducer import EntityOutcome, MonitorRules, TickIndex, advance, rebuild


class World:
    """One entity, moved tick by tick."""

    def __init__(self, *rules: Any, fold: Any = Heat) -> None:
        self.rules = MonitorRules("heat", Fold(fold), tuple(rules))
        self.entity_state = EntityState("a")
        self.opened: list[AlertRecord] = []
        self.problems: list[Any] = []
        self.log: list[Event] = []
        self._tick = 0

    def tick(self, now: float, *events: tuple[Any, float, float]) -> EntityOutcome:
        """At a time these events arrive: id, their own time, and how hot it was."""
        self._tick += 1
        came = [Event(str(id), at, "a", {"heat": heat}, self._tick) for id, at, heat in events]
        self.log += came
        outcome = advance(
            self.rules,
            self.entity_state,
            {self._tick: came} if came else {},
            TickIndex([MonitorTick(self._tick, now)]),
            past=self.log,
        )
        self.opened += outcome.opened
        self.problems += outcome.problems
        return outcome

    @property
    def open(self) -> dict[str, AlertRecord]:
        return self.entity_state.alerts


def hot(**options: Any) -> Any:
    return sustained("hot", when=lambda s, now: s.hot_since is not None, since=lambda s: s.hot_since, **options)


# -- sustained ------------------------------------------------------------------------------------


def test_an_alert_begins_when_its_condition_began_and_not_when_it_was_noticed() -> None:
    world = World(hot())
    world.tick(100.0, (1, 80.0, 60), (2, 90.0, 70))
    assert world.open["hot"].started_at == 80.0
    assert world.open["hot"].opened_at == 100.0


def test_an_alert_is_resolved_when_its_condition_is_gone() -> None:
    world = World(hot())
    world.tick(100.0, (1, 99.0, 60))
    outcome = world.tick(110.0, (2, 109.0, 10))
    assert world.open == {}
    assert [(alert.resolved_at, alert.resolution) for alert in outcome.resolved] == [(110.0, "cleared")]


def test_a_beginning_once_shown_stays_though_later_events_tell_another_story() -> None:
    world = World(hot())
    world.tick(100.0, (1, 90.0, 60))
    world.tick(101.0, (2, 85.0, 70))  # late: it was hot since 85
    assert world.entity_state.state.hot_since == 85.0
    assert world.open["hot"].started_at == 90.0


def test_an_acknowledged_alert_comes_back_after_its_time_while_the_condition_holds() -> None:
    world = World(hot(realert="10m"))
    world.tick(100.0, (1, 90.0, 60))
    first = world.open["hot"]
    first.acknowledge(200.0)
    world.entity_state.due = first.realert_at
    world.tick(799.0, (2, 798.0, 60))
    assert world.open["hot"] is first
    outcome = world.tick(800.0)
    again = world.open["hot"]
    assert first.resolved_at == 800.0
    assert again is not first
    assert (again.started_at, again.opened_at, again.acked_at) == (90.0, 800.0, None)
    assert outcome.opened == [again]


def test_the_documented_way_counts_the_time_from_the_beginning() -> None:
    world = World(hot(realert="10m", realert_from="start"))
    world.tick(1000.0, (1, 90.0, 60))
    world.open["hot"].acknowledge(1001.0)
    assert world.open["hot"].realert_at == 690.0


def test_an_acknowledged_alert_whose_condition_is_gone_does_not_come_back() -> None:
    world = World(hot(realert="10m"))
    world.tick(100.0, (1, 90.0, 60))
    world.open["hot"].acknowledge(200.0)
    world.tick(300.0, (2, 299.0, 10))
    world.tick(900.0)
    assert world.open == {}
    assert len(world.opened) == 1


def test_a_condition_must_hold_for_a_while_before_the_alert_opens() -> None:
    world = World(hot(hold="30s"))
    world.tick(100.0, (1, 99.0, 60))
    assert world.open == {}
    assert world.entity_state.due == 130.0
    world.tick(131.0)
    assert world.open["hot"].started_at == 99.0


def test_a_flapping_condition_neither_opens_nor_resolves_before_its_time() -> None:
    world = World(hot(hold="30s", clear="30s"))
    for at in range(100, 160, 10):
        world.tick(float(at), (at, at - 1.0, 60 if at % 20 else 10))
    assert world.opened == []
    world.tick(200.0, (200, 199.0, 60))
    world.tick(231.0, (231, 230.0, 60))
    world.tick(240.0, (240, 239.0, 10))
    world.tick(250.0, (250, 249.0, 60))
    assert "hot" in world.open
    world.tick(260.0, (260, 259.0, 10))
    world.tick(291.0)
    assert world.open == {}


def test_a_condition_of_time_is_asked_again_by_itself() -> None:
    world = World(sustained("old", when=lambda s, now: now - s.first > 60, recheck="10s"), fold=First)
    world.tick(100.0, (1, 100.0, 0))
    assert world.entity_state.due == 110.0
    for now in range(110, 180, 10):
        world.tick(float(now))
    assert world.open["old"].opened_at == 170.0


class First:
    def on_event(self, state: Any, event: Any) -> None:
        state.setdefault("first", event.at)


# -- momentary ------------------------------------------------------------------------------------


def test_every_occurrence_is_told_of_once_with_its_own_time() -> None:
    world = World(momentary("peak", of=lambda s: s.peaks or []))
    world.tick(100.0, (1, 90.0, 95), (2, 91.0, 20), (3, 92.0, 99))
    world.tick(101.0, (4, 100.0, 10))
    assert [(alert.key, alert.started_at, alert.opened_at) for alert in world.opened] == [
        ("1", 90.0, 100.0),
        ("3", 92.0, 100.0),
    ]
    assert world.entity_state.state.peaks == []


def test_an_occurrence_is_told_of_only_when_its_own_condition_holds() -> None:
    world = World(momentary("peak", of=lambda s: s.peaks or [], when=lambda peak: peak["heat"] > 97))
    world.tick(100.0, (1, 90.0, 95), (3, 92.0, 99))
    assert [alert.key for alert in world.opened] == ["3"]


# -- absence --------------------------------------------------------------------------------------


def test_a_silent_entity_is_told_of_at_its_time_and_not_before() -> None:
    world = World(absent("silent", after="5m"))
    world.tick(100.0, (1, 99.0, 0))
    assert world.entity_state.due == 399.0
    world.tick(398.0)
    assert world.open == {}
    world.tick(400.0)
    assert world.open["silent"].started_at == 399.0
    world.tick(410.0, (2, 409.0, 0))
    assert world.open == {}


def test_a_source_whose_clock_is_ahead_does_not_make_silence_look_like_life() -> None:
    world = World(absent("silent", after="5m"))
    world.tick(100.0, (1, 10_000.0, 0))
    assert world.entity_state.due == 400.0


def test_the_bell_does_not_flood_the_feed() -> None:
    hours = Hours("Mon-Fri 08:00-09:00")
    eight = 1_767_600_000.0  # Monday, 5 January 2026, 08:00 UTC
    world = World(absent("silent", after="5m", hours=hours))
    world.tick(eight + 3500, (1, eight + 3500, 0))
    assert world.entity_state.due is None  # the bell comes before the five minutes are over
    world.tick(eight + 4000)
    world.tick(eight + 86400)
    assert world.opened == []
    world.tick(eight + 86400 + 10, (2, eight + 86400 + 10, 0))
    world.tick(eight + 86400 + 311)
    assert "silent" in world.open
    world.tick(eight + 86400 + 3600)
    assert world.open == {}


def test_only_those_who_are_there_can_be_absent() -> None:
    world = World(absent("silent", after="5m", only_while=lambda s, now: s.count > 1))
    world.tick(100.0, (1, 99.0, 0))
    world.tick(500.0)
    assert world.open == {}
    world.tick(600.0, (2, 599.0, 0))
    world.entity_state.labels = {"present": False}
    world.tick(1000.0)
    assert world.open == {}


# -- code that fails ------------------------------------------------------------------------------


def test_a_trigger_that_raises_troubles_nobody_else() -> None:
    world = World(sustained("bad", when=lambda s, now: 1 / 0), hot(), momentary("peak", of=lambda s: s.peaks or []))
    world.tick(100.0, (1, 99.0, 95))
    assert set(world.open) == {"hot"}
    assert [alert.trigger for alert in world.opened] == ["hot", "peak"]
    assert [(p.place, p.entity, p.error) for p in world.problems] == [
        ("trigger bad", "a", "ZeroDivisionError: division by zero")
    ]


def test_an_event_that_the_fold_cannot_take_is_left_out_and_told_of() -> None:
    world = World(hot(), fold=Picky)
    world.tick(100.0, (1, 90.0, 1), (2, 91.0, 666), (3, 92.0, 2))
    assert world.entity_state.state.seen == ["1", "3"]
    assert "event 2 was skipped: ValueError: no" in world.problems[0].error


class Picky:
    def on_event(self, state: Any, event: Any) -> None:
        state.seen = [*(state.seen or []), event.id]
        if event["heat"] == 666:
            raise ValueError("no")


# -- late events and rebuilding -------------------------------------------------------------------

moves = st.lists(st.tuples(st.integers(0, 300), st.sampled_from([10, 60, 95])), min_size=1, max_size=200)


@given(moves, st.randoms(use_true_random=False), st.integers(1, 40))
def test_a_state_is_that_of_the_events_in_order_however_late_they_came(
    given_events: list[tuple[int, int]], random: Any, at_once: int
) -> None:
    events = [(number, float(at), heat) for number, (at, heat) in enumerate(given_events)]
    ordered = World(*triggers())
    ordered.tick(400.0, *events)
    shuffled = events[:]
    random.shuffle(shuffled)
    late = World(*triggers())
    for start in range(0, len(shuffled), at_once):
        late.tick(400.0, *shuffled[start : start + at_once])
    assert late.entity_state.raw == ordered.entity_state.raw
    assert late.entity_state.place == ordered.entity_state.place
    assert late.entity_state.count == ordered.entity_state.count == len(events)
    assert {(a.trigger, a.key) for a in late.opened if a.key} == {(a.trigger, a.key) for a in ordered.opened if a.key}


def test_a_late_event_is_folded_from_a_checkpoint_and_not_from_the_beginning() -> None:
    world = World(hot(), fold=Counting)
    for number in range(3 * CHECKPOINT_EVERY):
        world.tick(1000.0 + number, (number, 1000.0 + number, 0))
    Counting.calls = 0
    world.tick(2000.0, ("late", 1000.0 + 3 * CHECKPOINT_EVERY - 10, 0))
    assert Counting.calls <= CHECKPOINT_EVERY + 11
    assert world.entity_state.state.n == 3 * CHECKPOINT_EVERY + 1


class Counting:
    calls = 0

    def on_event(self, state: Any, event: Any) -> None:
        Counting.calls += 1
        state.n = (state.n or 0) + 1


def test_a_rebuilt_state_is_the_same_and_tells_nobody_again() -> None:
    world = World(*triggers())
    world.tick(100.0, (1, 90.0, 95), (2, 91.0, 60))
    raw = world.entity_state.raw
    fresh = EntityState(
        "a", folded=1, at=world.entity_state.at, id=world.entity_state.id, last_at=world.entity_state.last_at
    )
    rebuild(world.rules, fresh, world.log)
    assert fresh.raw == raw
    outcome = advance(world.rules, fresh, {}, TickIndex([MonitorTick(2, 101.0)]))
    assert outcome.opened == []


def test_the_reason_is_kept_with_the_alert() -> None:
    world = World(hot(describe="too hot for comfort", evidence=lambda s: {"since": s.hot_since}))
    world.tick(100.0, (1, 90.0, 60))
    told = msgspec.json.decode(world.open["hot"].explain or b"")
    assert told["rule"]["says"] == "too hot for comfort"
    assert "s.hot_since is not None" in told["rule"]["when"]
    assert told["events"] == [{"id": "1", "at": 90.0}]
    assert told["evidence"] == {"since": 90.0}
    assert told["state"]["count"] == 1


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: absent("x", after=0), "would always hold"),
        (lambda: sustained("x", when=lambda s, now: True, severity="dire"), "not one of info"),  # pyright: ignore
        (lambda: sustained("x", when=lambda s, now: True, realert="soon"), "not a length of time"),
        (lambda: Hours("Mon 8-9"), "cannot be read"),
        (lambda: Hours("Mon", timezone="Mars/Base"), "no time zone"),
    ],
)
def test_a_trigger_that_makes_no_sense_is_refused(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()
