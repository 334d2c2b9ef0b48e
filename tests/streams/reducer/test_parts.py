"""The pure parts of streams: rates, positions, recent ids, breakers, fair shares."""

from __future__ import annotations

import time
from collections import deque

import msgspec
import pytest
from hypothesis import given, strategies as st

from tidemill.core.errors import ConfigError
from tidemill.sources.positions.offsets import Offsets
from tidemill.store.streams.streams import Span
from tidemill.streams.engine.circuit_breaker import Breaker, BreakerRule
from tidemill.streams.engine.plan_statistics import PlanStatistics, percentile
from tidemill.streams.reducer.dedupe import RecentMessages
from tidemill.streams.reducer.fair_share import NEVER, FairShare, Lane, interleaved
from tidemill.streams.reducer.limit_shares import LimitAsk, fair_parts, granted, whole_parts
from tidemill.streams.reducer.token_bucket import TokenBucket
from tidemill.streams.runner.link import EngineLink, MessageWork, ToEngine

# -- rates ----------------------------------------------------------------------------------------


def let_through(bucket: TokenBucket, seconds: float, step: float = 0.001) -> list[float]:
    """When messages pass a bucket that is always asked."""
    passed: list[float] = []
    for tick in range(int(seconds / step)):
        now = tick * step
        count = bucket.available(now)
        bucket.take(count, now)
        passed += [now] * count
    return passed


@pytest.mark.parametrize("rate", [5, 50, 500, 5000])
def test_no_second_sees_more_than_the_rate_wherever_it_begins(rate: int) -> None:
    """A fixed window would let twice the rate through around its border."""
    passed = let_through(TokenBucket(rate), 4.0)
    for begin in (0.0, 0.25, 0.5, 0.77, 1.0, 1.9, 2.5, 2.999):
        inside = sum(begin <= at < begin + 1 for at in passed)
        assert inside <= rate * 1.02 + 1, f"{inside} from {begin}"
        assert inside >= rate * 0.98 - 1, f"{inside} from {begin}"


def test_an_empty_bucket_says_when_it_is_not() -> None:
    bucket = TokenBucket(10.0)
    bucket.take(1, 0.0)
    assert bucket.available(0.0) == 0
    assert bucket.ready_at(0.0) == pytest.approx(0.1)
    assert bucket.available(0.0999) == 0
    assert bucket.available(0.1) == 1


def test_a_new_rate_brings_no_burst() -> None:
    bucket = TokenBucket(10.0)
    bucket.take(1, 0.0)
    bucket.change(1000.0, 0.0)
    assert bucket.available(0.0) == 0
    assert bucket.available(0.002) == 2


# -- positions ------------------------------------------------------------------------------------


@given(st.permutations(range(10, 310, 10)), st.booleans())
def test_a_position_is_committable_when_all_before_it_are_done(order: list[int], is_known: bool) -> None:
    start = 0 if is_known else None
    offsets = Offsets(start)
    offsets.take(range(10, 310, 10))
    done: set[int] = set()
    for position in order:
        before = offsets.done_beyond(offsets.committable, {position})
        offsets.finish(position)
        done.add(position)
        gap = next(each for each in range(10, 320, 10) if each not in done)
        assert offsets.committable == (gap - 10 if gap > 10 else start)
        beyond = offsets.done_beyond(offsets.committable)
        assert _in_spans(beyond) == {each for each in done if each > gap}
        assert _in_spans(before) >= {each for each in done if each >= gap}, "what is about to be done counts as done"
    assert offsets.committable == 300


def _in_spans(spans: list[Span]) -> set[int]:
    return {each for after, last in spans for each in range(10, 310, 10) if (after or 0) < each <= last}


def test_what_is_done_beyond_one_that_is_stuck_is_told_in_few_words() -> None:
    offsets = Offsets(0)
    offsets.take(range(1, 100_002))
    for position in range(2, 100_001):
        offsets.finish(position)
    assert offsets.done_beyond(0) == [(1, 100_000)]
    assert offsets.done_beyond(0, {100_001}) == [(1, 100_001)]


def test_a_position_that_was_never_taken_moves_nothing() -> None:
    offsets = Offsets(9)
    offsets.take([10, 11])
    assert not offsets.finish(5)
    assert offsets.finish(10)
    assert not offsets.finish(10), "the same position twice"
    assert offsets.committable == 10
    offsets.take([12, 13, 15])
    offsets.finish_all([12, 15, 7])
    assert offsets.committable == 10
    offsets.finish_all([11])
    assert (offsets.committable, offsets.done_beyond(12)) == (12, [(13, 15)])
    offsets.finish_all([13])
    assert offsets.committable == 15


# -- recent ids -----------------------------------------------------------------------------------


def test_an_id_is_known_within_the_window_and_not_after() -> None:
    seen = RecentMessages(10.0, most=100)
    seen.note("a", 0.0)
    assert seen.has("a", 9.9)
    assert not seen.has("a", 10.0)
    assert not seen.has("b", 1.0)


def test_the_window_never_holds_more_than_it_may() -> None:
    seen = RecentMessages(1e9, most=100)
    for number in range(1000):
        seen.note(number, float(number))
    assert len(seen) == 100
    assert seen.has(999, 1000.0)
    assert not seen.has(0, 1000.0)
    assert seen.forgotten == 900


def test_ids_that_have_had_their_time_are_not_counted_as_forgotten() -> None:
    seen = RecentMessages(10.0, most=100)
    for number in range(1000):
        seen.note(number, float(number))
    assert (len(seen), seen.forgotten) == (10, 0)


# -- breakers -------------------------------------------------------------------------------------


def test_a_breaker_opens_at_half_of_twenty_calls_rests_and_probes() -> None:
    breaker = Breaker("search")
    for call in range(19):
        assert breaker.wait(0.0) is None
        breaker.record(call % 2 == 0, 0.0)
    assert breaker.state(0.0) == "closed", "nineteen calls are too few to know"
    breaker.record(False, 0.1)
    assert breaker.state(0.1) == "open"
    assert breaker.wait(1.1) == pytest.approx(14.0)
    assert breaker.state(15.1) == "half-open"
    for _ in range(10):
        assert breaker.wait(15.1) is None
    assert breaker.wait(15.1) is not None, "ten probes are under way"
    for _ in range(10):
        breaker.record(True, 15.2)
    assert breaker.state(15.2) == "closed"


def test_a_probe_that_fails_opens_the_breaker_again() -> None:
    breaker = Breaker("search", BreakerRule(least=1, rest="1s"))
    breaker.record(False, 0.0)
    assert breaker.wait(1.0) is None
    breaker.record(False, 1.0)
    assert breaker.state(1.5) == "open"
    assert breaker.wait(1.5) == pytest.approx(0.5)


def test_failures_outside_of_the_window_are_forgotten() -> None:
    breaker = Breaker("search", BreakerRule(window="10s", least=4))
    for _ in range(3):
        breaker.record(False, 0.0)
    breaker.record(False, 20.0)
    assert breaker.state(20.0) == "closed"


def test_a_breaker_that_could_never_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="share above 0"):
        BreakerRule(failures=0)


# -- fair shares ----------------------------------------------------------------------------------


def busy_lanes(*weights: float) -> list[Lane]:
    return [Lane(f"lane{number}", range(1_000_000), weight=weight) for number, weight in enumerate(weights)]


@given(
    st.lists(st.floats(0.5, 20), min_size=1, max_size=16),
    st.lists(st.integers(1, 64), min_size=1, max_size=200),
)
def test_busy_sources_get_their_shares_however_few_slots_are_free(weights: list[float], frees: list[int]) -> None:
    lanes = busy_lanes(*weights)
    fair = FairShare(lanes)
    taken = dict.fromkeys((lane.name for lane in lanes), 0)
    for free in frees:
        picks = fair.pick(free, 0.0)
        assert sum(count for _, count in picks) == free
        for lane, count in picks:
            taken[lane.name] += count
    total = sum(frees)
    for lane in lanes:
        fair_share = total * lane.weight / sum(weights)
        quantum = lane.weight / min(weights)
        assert abs(taken[lane.name] - fair_share) <= quantum + 1 + quantum * lane.weight / sum(weights)


def test_shares_are_within_two_percent_over_ten_thousand_messages() -> None:
    lanes = busy_lanes(8, 4, 2, 1, 1)
    fair = FairShare(lanes)
    taken = dict.fromkeys((lane.name for lane in lanes), 0)
    for _ in range(1000):
        for lane, count in fair.pick(10, 0.0):
            taken[lane.name] += count
    for lane in lanes:
        assert taken[lane.name] / 10_000 == pytest.approx(lane.weight / 16, rel=0.02)


def test_an_empty_source_is_skipped_and_the_others_share_its_part() -> None:
    full, empty, half = Lane("full", deque([0] * 100)), Lane("empty", deque()), Lane("half", deque([0] * 5))
    picks = FairShare([full, empty, half]).pick(30, 0.0)
    assert sum(count for lane, count in picks if lane is half) == 5
    assert sum(count for lane, count in picks if lane is full) == 25
    assert not any(lane is empty for lane, _ in picks)


def test_a_source_is_owed_nothing_for_the_time_in_which_it_was_empty() -> None:
    late, early = deque(), deque([0] * 1000)
    lanes = [Lane("early", early), Lane("late", late)]
    fair = FairShare(lanes)
    fair.pick(500, 0.0)
    late.extend([0] * 1000)
    picks = fair.pick(100, 0.0)
    assert sum(count for lane, count in picks if lane.name == "late") == pytest.approx(50, abs=1)


def test_a_throttled_source_has_a_wake_time_and_slows_nobody() -> None:
    slow = Lane("slow", deque([0] * 100), weight=100, bucket=TokenBucket(10.0))
    free = Lane("free", deque([0] * 1000))
    fair = FairShare([slow, free])
    picks = fair.pick(500, 0.0)
    assert sum(count for lane, count in picks if lane is slow) == 1
    assert sum(count for lane, count in picks if lane is free) == 499
    assert slow.bucket is not None
    slow.bucket.take(1, 0.0)
    assert fair.wakes_at(0.0) == pytest.approx(0.1)
    assert fair.wakes_at(0.0) < NEVER


def in_flight_over_time(slots: int, seconds: float, lanes: dict[Lane, float]) -> dict[str, float]:
    """The share of the slots that each lane had, if its messages take so many seconds each."""
    fair = FairShare(lanes)
    under_way: list[tuple[float, Lane]] = []
    used = dict.fromkeys((lane.name for lane in lanes), 0.0)
    step = 0.005
    for tick in range(int(seconds / step)):
        now = tick * step
        under_way = [entry for entry in under_way if entry[0] > now + 1e-9]
        for lane in lanes:
            lane.in_flight = sum(entry[1] is lane for entry in under_way)
        for lane, count in fair.pick(slots - len(under_way), now):
            under_way += [(now + lanes[lane], lane)] * count
        for _, lane in under_way:
            used[lane.name] += step / slots
    return {name: share / seconds for name, share in used.items()}


@pytest.mark.parametrize(("slots", "seconds"), [(1, 120.0), (4, 60.0), (100, 20.0)])
def test_a_source_of_slow_messages_gets_its_share_of_the_time_and_no_more(slots: int, seconds: float) -> None:
    quick, slow = busy_lanes(8, 1)
    shares = in_flight_over_time(slots, seconds, {quick: 0.01, slow: 1.0})
    assert shares[slow.name] == pytest.approx(1 / 9, abs=0.03)
    assert shares[quick.name] == pytest.approx(8 / 9, abs=0.03)


def test_a_source_of_slow_messages_has_all_slots_while_nothing_else_waits() -> None:
    lane = busy_lanes(1)[0]
    assert in_flight_over_time(10, 20.0, {lane: 1.0, Lane("empty", ()): 1.0})[lane.name] == pytest.approx(1.0)


def test_a_short_gap_of_a_quick_source_does_not_give_its_slots_away() -> None:
    quick, slow = Lane("quick", deque([0] * 100), weight=8), Lane("slow", deque([0] * 100))
    fair = FairShare([quick, slow])
    for lane, count in fair.pick(90, 0.0):
        lane.in_flight = count
    assert (quick.in_flight, slow.in_flight) == (80, 10)
    quick.queue, quick.in_flight = deque(), 20  # Most of them have ended, and its next ones are on their way.
    assert sum(count for _, count in fair.pick(60, 0.01)) <= 1
    assert fair.wakes_at(0.01) == pytest.approx(0.06)
    assert sum(count for _, count in fair.pick(60, 5.0)) == 60, "after a while they are free for all"


def test_a_gap_gives_its_slots_to_messages_that_are_as_quick() -> None:
    first, second = Lane("first", deque([0] * 1000)), Lane("second", deque([0] * 100_000))
    fair = FairShare([first, second])
    for tick in range(100):
        fair.pick(100, tick * 0.002)  # All of them end within two milliseconds.
    first.queue = deque()
    assert sum(count for _, count in fair.pick(100, 0.21)) > 90


# -- shared limits --------------------------------------------------------------------------------


@given(
    st.integers(0, 50),
    st.lists(st.integers(0, 60), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
)
def test_the_parts_of_a_limit_never_exceed_it_and_leave_nothing_that_is_wanted(
    limit: int, wanted: list[int], order: list[int]
) -> None:
    held = dict.fromkeys((str(number) for number in range(len(wanted))), 0.0)

    def asks() -> list[LimitAsk]:
        return [LimitAsk(name, wanted[int(name)], held[name]) for name in held]

    for number in [*order, *range(len(wanted)), *range(len(wanted))]:
        me = str(number % len(wanted))
        part = whole_parts(limit, asks(), turn=0)[me]
        held[me] = granted(limit, part, asks(), me)
        assert sum(held.values()) <= limit
    assert sum(held.values()) == min(limit, sum(wanted))
    parts = fair_parts(float(limit), asks())
    assert all(abs(held[name] - parts[name]) < 1 for name in held)


def test_what_cannot_be_divided_goes_to_each_dispatcher_in_turn() -> None:
    asks = [LimitAsk(name, 5.0) for name in "ab"]
    assert [whole_parts(1, asks, turn) for turn in range(2)] == [{"a": 1, "b": 0}, {"a": 0, "b": 1}]


# -- figures --------------------------------------------------------------------------------------


def test_percentiles_of_buckets_are_as_good_as_a_factor_of_two() -> None:
    statistics = PlanStatistics()
    for milliseconds in range(1, 101):
        statistics.took(milliseconds / 1000)
    assert percentile(statistics.buckets, 0.5) == pytest.approx(0.05, rel=0.5)
    assert percentile(statistics.buckets, 0.99) == pytest.approx(0.099, rel=0.5)
    assert percentile([0] * 5, 0.5) is None


# -- the wire to an engine ------------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_a_large_frame_is_put_together_once_in_however_many_pieces_it_comes() -> None:
    """Not all of it with every piece: 32 MB in 8 KB would be 64 GB to copy."""
    heard: list[int] = []
    link = EngineLink(ToEngine, lambda frame: heard.extend(work.ticket for work in frame.work), lambda: None)
    frames = [
        ToEngine([MessageWork(1, 0, b"x" * (32 << 20))]),
        ToEngine([MessageWork(2, 0, b"")]),
        ToEngine([MessageWork(3, 0, b"y")]),
    ]
    bodies = [msgspec.msgpack.encode(frame) for frame in frames]
    wire = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    began = time.process_time()
    for at in range(0, len(wire), 8192):
        link.data_received(wire[at : at + 8192])
    assert heard == [1, 2, 3]
    assert time.process_time() - began < 10


@given(st.lists(st.integers(0, 300), max_size=6), st.integers(1, 40))
def test_frames_arrive_whole_and_in_order_wherever_the_wire_is_cut(sizes: list[int], piece: int) -> None:
    heard: list[int] = []
    link = EngineLink(ToEngine, lambda frame: heard.extend(len(work.payload) for work in frame.work), lambda: None)
    bodies = [msgspec.msgpack.encode(ToEngine([MessageWork(1, 0, b"x" * size)])) for size in sizes]
    wire = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    for at in range(0, len(wire), piece):
        link.data_received(wire[at : at + piece])
    assert heard == sizes


def test_messages_of_several_sources_are_mixed_evenly_and_each_keeps_its_order() -> None:
    """None is always run last: the time that messages wait in an engine is shared, too."""
    sent = ["before", *"ABCD", *"xy", *"1"]
    assert interleaved(sent, [1, 5, 7, 8]) == ["A", "x", "B", "1", "C", "y", "D"]
