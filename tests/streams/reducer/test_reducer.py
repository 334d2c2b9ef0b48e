"""What the dispatcher decides: pure, on a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.core.retry import retry
from tidemill.sources.delivery import Delivery
from tidemill.sources.jsonl import JsonlSource
from tidemill.streams.definition.message import MessageFailure
from tidemill.streams.reducer.fair_share import NEVER
from tidemill.streams.reducer.outcomes import MessageOutcome, suspects_text
from tidemill.streams.reducer.reducer import StreamReducer
from tidemill.streams.reducer.source_limits import Choice

NO = MessageFailure("Spam", "ValueError", "no", ("ValueError",))


def make(
    *sources: dict[str, Any], max_concurrency: int = 100, dedup_window: float = 600.0, **more: Any
) -> StreamReducer:
    declared = [JsonlSource(f"{number}.jsonl", **options) for number, options in enumerate(sources or ({},))]
    reducer = more.pop("retry", retry(3, backoff=1.0, jitter=0.0))
    return StreamReducer(
        declared, max_concurrency=max_concurrency, retry=reducer, max_losses=3, dedup_window=dedup_window, **more
    )


def put(reducer: StreamReducer, count: int, index: int = 0, **fields: Any) -> None:
    start = reducer.counts[index].arrived
    reducer.arrived(index, [Delivery(b"x", start + number, **fields) for number in range(count)])


def commit_outcomes(reducer: StreamReducer, outcome: MessageOutcome | None, now: float = 0.0) -> list[Delivery]:
    assert outcome is not None
    return reducer.committed(outcome, now)


def positions(choice: Choice) -> list[int]:
    return [delivery.position for _, delivery in choice.send]


def test_never_more_than_max_in_flight_are_under_way() -> None:
    reducer = make(max_concurrency=10)
    put(reducer, 100)
    first = reducer.choose(0.0, 0.0)
    assert len(first.send) == 10
    assert not reducer.choose(0.0, 0.0).send
    acks = reducer.done([ticket for ticket, _ in first.send[:3]], 0.0)
    assert [delivery.position for delivery in acks] == [0, 1, 2]
    assert len(reducer.choose(0.0, 0.0).send) == 3


def test_a_source_whose_plans_are_slow_leaves_slots_for_the_others() -> None:
    reducer = make({}, {}, {"max_concurrency": 2}, max_concurrency=100)
    put(reducer, 500, index=0)
    assert len(reducer.choose(0.0, 0.0).send) == 84
    put(reducer, 500, index=1)
    put(reducer, 500, index=2)
    assert {delivery.source for _, delivery in reducer.choose(0.0, 0.0).send} == {1, 2}
    assert reducer.in_flight == [84, 14, 2]
    assert not reducer.choose(0.0, 0.0).send


def test_a_failed_message_is_kept_and_given_up_after_its_last_attempt() -> None:
    reducer = make()
    put(reducer, 1)
    ((ticket, delivery),) = reducer.choose(0.0, 0.0).send
    outcome = reducer.failed(ticket, [NO])
    assert outcome is not None
    assert outcome.retry is not None
    assert (outcome.retry.delay, outcome.retry.attempts, outcome.retry.plans) == (1.0, 2, ("Spam",))
    assert reducer.busy == 1, "it is under way until its outcome is stored"
    assert reducer.committed(outcome, 0.0) == [delivery]
    assert reducer.busy == 0
    reducer.due_again([Delivery(b"x", attempt=3, retry_row=7)])
    ((ticket, _),) = reducer.choose(2.0, 2.0).send
    outcome = reducer.failed(ticket, [NO])
    assert outcome is not None
    assert outcome.dead is not None
    assert outcome.dead.error == "Spam: ValueError: no (all 3 attempts failed)"
    assert reducer.counts[0].dead == 0, "it counts when it is stored"
    reducer.committed(outcome, 2.0)
    assert (reducer.counts[0].failed, reducer.counts[0].retried, reducer.counts[0].dead) == (2, 1, 1)


def test_one_plan_may_be_given_up_while_another_is_tried_again() -> None:
    reducer = make()
    put(reducer, 1)
    ((ticket, _),) = reducer.choose(0.0, 0.0).send
    outcome = reducer.failed(ticket, [NO, MessageFailure("Rank", "Discard", "not wanted", (), None, "discard")])
    assert outcome is not None
    assert outcome.retry is not None
    assert outcome.dead is not None
    assert outcome.retry.plans == ("Spam",)
    assert outcome.dead.plans == ("Rank",)


def test_a_snooze_costs_no_attempt() -> None:
    reducer = make()
    put(reducer, 1)
    ((ticket, _),) = reducer.choose(0.0, 0.0).send
    outcome = reducer.failed(ticket, [MessageFailure("Spam", "Snooze", "later", (), 30.0, "snooze")])
    assert outcome is not None
    assert outcome.retry is not None
    assert (outcome.retry.delay, outcome.retry.attempts) == (30.0, 1)


def test_an_expired_message_is_dropped_counted_and_acked() -> None:
    reducer = make({"max_age": "10s"})
    reducer.arrived(
        0, [Delivery(b"old", 1, at=80.0), Delivery(b"own", 2, at=99.0, deadline=99.5), Delivery(b"new", 3, at=95.0)]
    )
    choice = reducer.choose(0.0, 100.0)
    assert positions(choice) == [3]
    assert [delivery.position for delivery in choice.ack] == [1, 2]
    assert reducer.counts[0].expired == 2


def test_a_retry_within_the_window_does_its_work() -> None:
    """An id is noted when the work has succeeded, so a failed attempt leaves no trace."""
    reducer = make({"message_id": "key"})
    put(reducer, 1, key=b"a")
    ((ticket, _),) = reducer.choose(0.0, 0.0).send
    commit_outcomes(reducer, reducer.failed(ticket, [NO]))
    reducer.due_again([Delivery(b"x", 0, key=b"a", id="a", attempt=2, retry_row=1)])
    assert len(reducer.choose(1.0, 1.0).send) == 1


def test_a_second_delivery_after_success_is_acked_and_not_run() -> None:
    reducer = make({"message_id": "key"})
    put(reducer, 1, key=b"a")
    ((ticket, _),) = reducer.choose(0.0, 0.0).send
    reducer.done([ticket], 0.0)
    put(reducer, 1, key=b"a")
    choice = reducer.choose(1.0, 1.0)
    assert not choice.send
    assert [delivery.position for delivery in choice.ack] == [1]
    put(reducer, 1, key=b"a")
    assert len(reducer.choose(601.0, 601.0).send) == 1, "after the window it is a new message"


def test_a_second_delivery_while_the_first_is_under_way_shares_its_fate() -> None:
    reducer = make({"message_id": "key"})
    put(reducer, 2, key=b"a")
    choice = reducer.choose(0.0, 0.0)
    assert positions(choice) == [0]
    assert not choice.ack, "it may still be needed if the first is never done"
    acks = reducer.done([choice.send[0][0]], 0.0)
    assert [delivery.position for delivery in acks] == [0, 1]
    assert reducer.counts[0].duplicates == 1


def test_the_same_id_in_two_sources_is_two_messages() -> None:
    reducer = make({"message_id": "key"}, {"message_id": "key", "name": "other"})
    put(reducer, 1, 0, key=b"a")
    put(reducer, 1, 1, key=b"a")
    assert len(reducer.choose(0.0, 0.0).send) == 2


def test_messages_of_one_key_go_one_after_the_other_and_other_keys_do_not_wait() -> None:
    reducer = make({"ordered": True})
    reducer.arrived(0, [Delivery(b"x", number, key=key) for number, key in enumerate([b"a", b"a", b"b", b"a"])])
    choice = reducer.choose(0.0, 0.0)
    assert positions(choice) == [0, 2]
    reducer.done([choice.send[0][0]], 0.0)
    choice = reducer.choose(0.0, 0.0)
    assert positions(choice) == [1]
    reducer.done([choice.send[0][0]], 0.0)
    assert positions(reducer.choose(0.0, 0.0)) == [3]


def test_a_key_whose_message_failed_waits_for_its_next_attempt() -> None:
    reducer = make({"ordered": True})
    put(reducer, 2, key=b"a")
    ((ticket, _),) = reducer.choose(0.0, 0.0).send
    assert commit_outcomes(reducer, reducer.failed(ticket, [NO])) == [], "it is tried again from here"
    assert not reducer.choose(0.5, 0.5).send
    assert reducer.wakes_at(0.5) == 1.0
    choice = reducer.choose(1.0, 1.0)
    assert positions(choice) == [0]
    assert choice.send[0][1].attempt == 2
    reducer.done([choice.send[0][0]], 1.0)
    assert positions(reducer.choose(1.0, 1.0)) == [1]


def test_an_ordered_message_that_was_tried_before_waits_for_its_time_with_its_key() -> None:
    """What was noted of it before a restart counts: its attempts, and when it is due."""
    reducer = make({"ordered": True})
    reducer.arrived(
        0,
        [
            Delivery(b"x", 0, key=b"a", attempt=2, plans=("Spam",), noted=True, not_before=105.0),
            Delivery(b"x", 1, key=b"a"),
            Delivery(b"x", 2, key=b"b"),
        ],
    )
    assert positions(reducer.choose(0.0, 100.0)) == [2]
    assert reducer.wakes_at(0.0) == 5.0
    ((ticket, delivery),) = reducer.choose(5.0, 105.0).send
    assert (delivery.position, delivery.attempt) == (0, 2)
    assert commit_outcomes(reducer, reducer.failed(ticket, [NO]), 5.0) == []
    ((ticket, delivery),) = reducer.choose(9.0, 109.0).send
    assert (delivery.attempt, delivery.plans) == (3, ("Spam",))
    assert commit_outcomes(reducer, reducer.failed(ticket, [NO]), 9.0) == [delivery], "given up after its third attempt"
    assert positions(reducer.choose(9.0, 109.0)) == [1]


def test_a_plan_that_is_given_up_is_not_run_again_with_the_one_that_is_tried_again() -> None:
    reducer = make({"ordered": True})
    put(reducer, 1, key=b"a")
    ((ticket, _),) = reducer.choose(0.0, 0.0).send
    outcome = reducer.failed(ticket, [NO, MessageFailure("Rank", "Discard", "not wanted", (), None, "discard")])
    assert outcome is not None
    assert outcome.dead is not None
    assert outcome.dead.plans == ("Rank",)
    commit_outcomes(reducer, outcome)
    assert reducer.choose(1.0, 1.0).send[0][1].plans == ("Spam",)
    assert reducer.counts[0].dead == 1


def test_a_drain_takes_up_nothing_that_waits_behind_a_key() -> None:
    reducer = make({"ordered": True})
    put(reducer, 5, key=b"a")
    ((ticket, _),) = reducer.choose(0.0, 0.0).send
    reducer.accepting = False
    reducer.done([ticket], 0.0)
    assert reducer.unfinished == 0, "the drain is over"
    assert not reducer.choose(0.0, 0.0).send
    assert reducer.waiting(0) == 4
    reducer.accepting = True
    for position in range(1, 5):
        ((ticket, delivery),) = reducer.choose(0.0, 0.0).send
        assert delivery.position == position, "in their order, though it was stopped in between"
        reducer.done([ticket], 0.0)


def test_what_went_to_another_is_forgotten_wherever_it_waits() -> None:
    reducer = make({"ordered": True, "message_id": "key"})
    reducer.arrived(0, [Delivery(b"x", number, number % 2, key=b"ab"[number % 2 :][:1]) for number in range(6)])
    choice = reducer.choose(0.0, 0.0)
    assert positions(choice) == [0, 1]
    outcome = reducer.failed(choice.send[1][0], [NO])
    commit_outcomes(reducer, outcome)
    reducer.drop_waiting(lambda delivery: delivery.part == 1, 0.0)
    assert reducer.waiting_size(0) == reducer.waiting(0), "each has one byte"
    assert reducer.wakes_at(0.0) == NEVER, "its next attempt is another's"
    acks = reducer.done([choice.send[0][0]], 0.0)
    assert [delivery.position for delivery in acks] == [0, 2, 4]
    reducer.arrived(0, [Delivery(b"x", 1, 1, key=b"b")])
    assert positions(reducer.choose(0.0, 0.0)) == [1], "when it comes back, it is nobody's duplicate"


def test_two_sources_of_one_kind_have_a_limit_each() -> None:
    reducer = make({"max_qps": 50.0}, {"max_qps": 100.0, "name": "other"}, {"name": "free"})
    for index in range(3):
        put(reducer, 1000, index)
    for tick in range(1000):
        now = tick / 1000
        reducer.done([ticket for ticket, _ in reducer.choose(now, now).send], now)
    done = [counts.done for counts in reducer.counts]
    assert done == [pytest.approx(50, abs=2), pytest.approx(100, abs=3), 1000], "and the free one is not slowed"


def passed_in_a_second(reducer: StreamReducer) -> int:
    """How many messages are sent within a second, each of which is done at once."""
    passed = 0
    for tick in range(1000):
        now = tick / 1000
        sent = reducer.choose(now, now).send
        passed += len(sent)
        reducer.done([ticket for ticket, _ in sent], now)
    return passed


def test_retries_and_replays_pass_the_limits_of_their_source() -> None:
    reducer = make({"max_qps": 5.0}, {"name": "other"})
    reducer.due_again([Delivery(b"x", number, attempt=1, retry_row=number) for number in range(300)])
    put(reducer, 300)
    put(reducer, 300, 1)
    assert passed_in_a_second(reducer) == pytest.approx(305, abs=1)
    assert reducer.counts[0].sent == pytest.approx(5, abs=1)
    assert 0 < reducer.waiting_again(0) < 300, "stored and fresh messages go in turn"
    assert reducer.waiting(0) < 300
    reducer = make({"max_concurrency": 2})
    reducer.due_again([Delivery(b"x", number, attempt=2, retry_row=number) for number in range(10)])
    assert len(reducer.choose(0.0, 0.0).send) == 2
    reducer = make({"enabled": False})
    reducer.due_again([Delivery(b"x", attempt=2, retry_row=1)])
    assert not reducer.choose(0.0, 0.0).send


def test_messages_that_wait_for_their_key_pass_the_limits_of_their_source() -> None:
    reducer = make({"ordered": True, "max_qps": 5.0})
    put(reducer, 100, key=b"a")
    assert passed_in_a_second(reducer) == pytest.approx(5, abs=1)


def test_suspects_pass_the_limits_of_their_source() -> None:
    reducer = make({"max_qps": 2.0})
    put(reducer, 3)
    (first,) = reducer.choose(0.0, 0.0).send
    reducer.engine_died([first[0]], "it was killed", alone=False)
    assert not reducer.choose(0.1, 0.1, quarantine=True).suspects
    assert reducer.wakes_at(0.1) == pytest.approx(0.5)
    reducer.set_source(0, 0.2, weight=1.0, max_qps=2.0, enabled=False)
    assert not reducer.choose(0.6, 0.6, quarantine=True).suspects
    reducer.set_source(0, 0.7, weight=1.0, max_qps=2.0, enabled=True)
    assert len(reducer.choose(0.7, 0.7, quarantine=True).suspects) == 1


def test_messages_that_need_no_work_use_up_no_rate() -> None:
    reducer = make({"max_qps": 10.0, "max_age": "1s"})
    reducer.arrived(0, [Delivery(b"x", number, at=0.1) for number in range(50)])
    reducer.arrived(0, [Delivery(b"x", 50, at=100.0)])
    assert positions(reducer.choose(0.0, 100.0)) == [50]


def test_a_changed_limit_keeps_its_burst_and_a_part_of_a_limit_has_its_part_of_the_burst() -> None:
    reducer = make({"max_qps": 10.0, "burst": 20.0})
    put(reducer, 100)
    assert len(reducer.choose(0.0, 0.0).send) == 20
    reducer.set_source(0, 0.0, weight=1.0, max_qps=100.0, enabled=True, burst=20.0)
    assert len(reducer.choose(10.0, 10.0).send) == 20
    reducer.set_part(0, 10.0, rate=50.0, slots=None)
    assert len(reducer.choose(20.0, 20.0).send) == 10
    reducer.set_part(0, 20.0, rate=0.0, slots=None)
    assert not reducer.choose(90.0, 90.0).send
    assert reducer.wakes_at(90.0) == NEVER


def test_a_delayed_source_sends_nothing_before_its_time() -> None:
    reducer = make({"delay": "60s"})
    reducer.arrived(0, [Delivery(b"x", 1, at=100.0), Delivery(b"x", 2, at=130.0)], 140.0)
    assert not reducer.choose(20.0, 140.0).send
    assert reducer.wakes_at(20.0) == pytest.approx(40.0)
    assert positions(reducer.choose(40.0, 160.0)) == [1]
    assert reducer.wakes_at(40.0) == pytest.approx(70.0)


def test_a_message_from_a_clock_that_is_ahead_delays_a_source_no_longer_than_others() -> None:
    reducer = make({"delay": "60s"})
    reducer.arrived(0, [Delivery(b"x", 1, at=100.0 + 86_400.0), Delivery(b"x", 2, at=100.0)], 100.0)
    assert not reducer.choose(0.0, 100.0).send
    assert reducer.wakes_at(0.0) == pytest.approx(60.0)
    assert positions(reducer.choose(60.0, 160.0)) == [1, 2]


def test_an_engines_death_frees_its_slots_and_its_messages_run_in_quarantine() -> None:
    reducer = make(max_concurrency=8)
    put(reducer, 12)
    first = reducer.choose(0.0, 0.0).send[:4]
    assert reducer.engine_died([ticket for ticket, _ in first], "it was killed", alone=False) == []
    assert reducer.has_suspects
    assert reducer.busy == 4
    assert not reducer.choose(0.0, 0.0).suspects, "there is no quarantine engine yet"
    reducer.done(list(reducer.flights), 0.0)
    again = reducer.choose(0.0, 0.0, quarantine=True)
    assert [delivery.position for _, delivery in again.suspects] == [0, 1, 2, 3]
    assert not {delivery.position for _, delivery in again.send} & {0, 1, 2, 3}
    assert not reducer.done([first[0][0]], 0.0), "the dead engine's word does not count any more"
    assert len(reducer.done([ticket for ticket, _ in again.suspects], 0.0)) == 4
    assert not reducer.has_suspects
    assert reducer.counts[0].lost == 0, "no message was found guilty"


def test_a_message_that_kills_engines_ends_up_alone_and_is_given_up_and_no_other_is() -> None:
    reducer = make(max_concurrency=100)
    put(reducer, 80)
    deaths, killer = 0, 17
    choice = reducer.choose(0.0, 0.0)
    reducer.engine_died([ticket for ticket, _ in choice.send], "it was killed", alone=False)
    outcome, told = None, [suspects_text(reducer.suspects(), ["log"])]
    while reducer.has_suspects:
        tickets = dict(reducer.choose(0.0, 0.0, quarantine=True).suspects)
        if killer not in [delivery.position for delivery in tickets.values()]:
            reducer.done(tickets, 0.0)
            continue
        deaths += 1
        for outcome in reducer.engine_died(tickets, "it was killed", alone=len(tickets) == 1):
            reducer.committed(outcome, 0.0)
        told.append(suspects_text(reducer.suspects(), ["log"]))
    assert told[0] == "80 messages may have ended an engine: log:0:0, log:0:1, log:0:10, log:0:11, log:0:12"
    assert told[-2:] == [f"1 message has ended an engine: log:0:{killer}", None]
    assert outcome is not None
    assert outcome.dead is not None
    assert (outcome.delivery.position, outcome.dead.why) == (killer, "lost")
    assert "3 times while running nothing but it" in outcome.dead.error
    assert deaths == 5, "with 63 others, with seven, and three times alone"
    assert (reducer.counts[0].done, reducer.counts[0].dead) == (79, 1)


def test_weights_limits_and_switches_change_at_once() -> None:
    reducer = make({}, {"name": "other"}, max_concurrency=120)
    put(reducer, 1000, 0)
    put(reducer, 1000, 1)
    reducer.set_source(0, 0.0, weight=5.0, max_qps=None, enabled=True)
    choice = reducer.choose(0.0, 0.0)
    assert [reducer.in_flight[0], reducer.in_flight[1]] == [100, 20]
    reducer.done([ticket for ticket, _ in choice.send], 0.0)
    reducer.set_source(0, 0.0, weight=5.0, max_qps=None, enabled=False)
    choice = reducer.choose(0.0, 0.0)
    assert reducer.in_flight == [0, 120]
    reducer.done([ticket for ticket, _ in choice.send], 0.0)
    reducer.set_source(0, 1.0, weight=5.0, max_qps=100.0, enabled=True)
    reducer.set_source(1, 1.0, weight=1.0, max_qps=None, enabled=False)
    assert len(reducer.choose(1.0, 1.0).send) == 2  # what may go at once after a quiet time
    assert reducer.wakes_at(1.0) == pytest.approx(1.01)


def test_a_drain_wakes_for_suspects_that_the_limit_of_their_source_holds_back() -> None:
    reducer = make({"max_qps": 1.0, "burst": 2.0})
    put(reducer, 2)
    sent = reducer.choose(0.0, 0.0).send
    assert not reducer.engine_died([ticket for ticket, _ in sent], "killed", alone=False)
    reducer.accepting = False
    assert not reducer.choose(0.0, 0.0, quarantine=True).suspects
    assert reducer.unfinished == 2
    assert (due := reducer.wakes_at(0.0)) < NEVER
    assert reducer.choose(due, due, quarantine=True).suspects


def test_a_drain_takes_nothing_and_hears_every_result() -> None:
    reducer = make(max_concurrency=10)
    put(reducer, 30)
    choice = reducer.choose(0.0, 0.0)
    reducer.accepting = False
    assert reducer.unfinished == 10
    commit_outcomes(reducer, reducer.failed(choice.send[0][0], [NO]))
    assert len(reducer.done([ticket for ticket, _ in choice.send[1:]], 0.0)) == 9
    assert reducer.unfinished == 0
    assert not reducer.choose(0.0, 0.0).send
    assert len(reducer.give_back()) == 20


def test_what_is_given_back_is_all_that_was_not_finished() -> None:
    reducer = make({"ordered": True, "message_id": "header:id"}, max_concurrency=3)
    reducer.arrived(0, [Delivery(b"x", number, key=b"ab"[number % 2 : number % 2 + 1]) for number in range(10)])
    choice = reducer.choose(0.0, 0.0)
    reducer.done([choice.send[0][0]], 0.0)
    reducer.choose(0.0, 0.0)
    assert sorted(delivery.position for delivery in reducer.give_back()) == list(range(1, 10))
    assert reducer.unfinished == 0


def test_an_id_is_not_forgotten_because_another_source_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.streams.reducer.dedupe.MOST_IDS", 10)
    options = {"message_id": "key"}
    reducer = make({**options, "max_concurrency": 1}, {**options, "name": "busy"}, max_concurrency=4)
    reducer.arrived(0, [Delivery(b"x", position, key=b"same") for position in (0, 1)])
    first = reducer.choose(0.0, 0.0)
    reducer.done([ticket for ticket, _ in first.send], 0.0)
    reducer.arrived(0, [Delivery(b"x", 2, key=b"same")])
    for number in range(50):
        reducer.arrived(1, [Delivery(b"x", number, key=str(number).encode())])
        choice = reducer.choose(0.0, 0.0)
        reducer.done([ticket for ticket, each in choice.send if each.source == 1], 0.0)
        assert all(each.source == 1 for _, each in choice.send), "it was done before"
    assert reducer.counts[0].duplicates == 2


def test_duplicates_of_a_message_that_another_dispatcher_has_now_are_not_lost() -> None:
    reducer = make({"message_id": "key"})
    reducer.arrived(0, [Delivery(b"x", 0, 0, key=b"same"), Delivery(b"x", 7, 1, key=b"same")])
    ((ticket, first),) = reducer.choose(0.0, 0.0).send
    assert first.part == 0
    outcome = reducer.hold(ticket)
    assert outcome is not None
    reducer.fenced(outcome, 0.0)
    ((ticket, second),) = reducer.choose(0.0, 0.0).send
    assert (second.part, second.position) == (1, 7)
    assert reducer.done([ticket], 0.0) == [second]


def test_the_parts_of_a_limit_that_is_lowered_stay_within_it() -> None:
    both = [make({"max_qps": 1000.0}), make({"max_qps": 1000.0})]
    for reducer, part in zip(both, (600.0, 400.0), strict=True):
        reducer.set_part(0, 0.0, rate=part, slots=None)
        reducer.set_source(0, 0.0, weight=1.0, max_qps=100.0, enabled=True)
    assert [reducer.limits[0].qps_part for reducer in both] == [60.0, 40.0]
    for reducer in both:
        reducer.set_source(0, 0.0, weight=1.0, max_qps=500.0, enabled=True)
    assert [reducer.limits[0].qps_part for reducer in both] == [60.0, 40.0], "what is added is divided first"


def test_parts_of_a_limit_that_was_removed_do_not_count_for_the_next_one() -> None:
    reducer = make({})
    reducer.set_source(0, 0.0, weight=1.0, max_qps=100.0, enabled=True)
    reducer.set_part(0, 0.0, rate=60.0, slots=None)
    reducer.set_source(0, 0.0, weight=1.0, max_qps=None, enabled=True)
    reducer.set_source(0, 0.0, weight=1.0, max_qps=10.0, enabled=True)
    assert reducer.limits[0].rate_here == (10.0, None)
    reducer.await_part(0, 0.0)
    put(reducer, 5)
    assert reducer.choose(0.0, 0.0).send == []
    reducer.set_part(0, 0.0, rate=5.0, slots=None)
    assert len(reducer.choose(0.0, 0.0).send) == 1
