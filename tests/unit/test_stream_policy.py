"""What the dispatcher decides: pure, on a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.core.retry import retry
from tidemill.sources.delivery import Delivery
from tidemill.sources.jsonl import JsonlSource
from tidemill.streams.definition.message import MessageFailure
from tidemill.streams.reducer.fair_share import NEVER
from tidemill.streams.reducer.outcomes import MessageOutcome
from tidemill.streams.reducer.reducer import Choice, StreamReducer

NO = MessageFailure("Spam", "ValueError", "no", ("ValueError",))


def make(*sources: dict[str, Any], max_in_flight: int = 100, dedup_window: float = 600.0, **more: Any) -> StreamReducer:
    declared = [JsonlSource(f"{number}.jsonl", **options) for number, options in enumerate(sources or ({},))]
    policy = more.pop("retry", retry(3, backoff=1.0, jitter=0.0))
    return StreamReducer(
        declared, max_in_flight=max_in_flight, retry=policy, max_losses=3, dedup_window=dedup_window, **more
    )


def put(policy: StreamReducer, count: int, index: int = 0, **fields: Any) -> None:
    start = policy.counts[index].arrived
    policy.arrived(index, [Delivery(b"x", start + number, **fields) for number in range(count)])


def settle(policy: StreamReducer, outcome: MessageOutcome | None, now: float = 0.0) -> list[Delivery]:
    assert outcome is not None
    return policy.settled(outcome, now)


def positions(choice: Choice) -> list[int]:
    return [delivery.position for _, delivery in choice.send]


def test_never_more_than_max_in_flight_are_under_way() -> None:
    policy = make(max_in_flight=10)
    put(policy, 100)
    first = policy.choose(0.0, 0.0)
    assert len(first.send) == 10
    assert not policy.choose(0.0, 0.0).send
    acks = policy.done([ticket for ticket, _ in first.send[:3]], 0.0)
    assert [delivery.position for delivery in acks] == [0, 1, 2]
    assert len(policy.choose(0.0, 0.0).send) == 3


def test_a_source_whose_plans_are_slow_leaves_slots_for_the_others() -> None:
    policy = make({}, {}, {"max_in_flight": 2}, max_in_flight=100)
    put(policy, 500, index=0)
    assert len(policy.choose(0.0, 0.0).send) == 84
    put(policy, 500, index=1)
    put(policy, 500, index=2)
    assert {delivery.source for _, delivery in policy.choose(0.0, 0.0).send} == {1, 2}
    assert policy.in_flight == [84, 14, 2]
    assert not policy.choose(0.0, 0.0).send


def test_a_failed_message_is_kept_and_given_up_after_its_last_attempt() -> None:
    policy = make()
    put(policy, 1)
    ((ticket, delivery),) = policy.choose(0.0, 0.0).send
    outcome = policy.failed(ticket, [NO])
    assert outcome is not None
    assert outcome.retry is not None
    assert (outcome.retry.delay, outcome.retry.attempts, outcome.retry.plans) == (1.0, 2, ("Spam",))
    assert policy.busy == 1, "it is under way until its outcome is stored"
    assert policy.settled(outcome, 0.0) == [delivery]
    assert policy.busy == 0
    policy.due_again([Delivery(b"x", attempt=3, retry_row=7)])
    ((ticket, _),) = policy.choose(2.0, 2.0).send
    outcome = policy.failed(ticket, [NO])
    assert outcome is not None
    assert outcome.dead is not None
    assert outcome.dead.error == "Spam: ValueError: no (all 3 attempts failed)"
    assert policy.counts[0].dead == 0, "it counts when it is stored"
    policy.settled(outcome, 2.0)
    assert (policy.counts[0].failed, policy.counts[0].retried, policy.counts[0].dead) == (2, 1, 1)


def test_one_plan_may_be_given_up_while_another_is_tried_again() -> None:
    policy = make()
    put(policy, 1)
    ((ticket, _),) = policy.choose(0.0, 0.0).send
    outcome = policy.failed(ticket, [NO, MessageFailure("Rank", "Discard", "not wanted", (), None, "discard")])
    assert outcome is not None
    assert outcome.retry is not None
    assert outcome.dead is not None
    assert outcome.retry.plans == ("Spam",)
    assert outcome.dead.plans == ("Rank",)


def test_a_snooze_costs_no_attempt() -> None:
    policy = make()
    put(policy, 1)
    ((ticket, _),) = policy.choose(0.0, 0.0).send
    outcome = policy.failed(ticket, [MessageFailure("Spam", "Snooze", "later", (), 30.0, "snooze")])
    assert outcome is not None
    assert outcome.retry is not None
    assert (outcome.retry.delay, outcome.retry.attempts) == (30.0, 1)


def test_an_expired_message_is_dropped_counted_and_acked() -> None:
    policy = make({"max_age": "10s"})
    policy.arrived(
        0, [Delivery(b"old", 1, at=80.0), Delivery(b"own", 2, at=99.0, deadline=99.5), Delivery(b"new", 3, at=95.0)]
    )
    choice = policy.choose(0.0, 100.0)
    assert positions(choice) == [3]
    assert [delivery.position for delivery in choice.ack] == [1, 2]
    assert policy.counts[0].expired == 2


def test_a_retry_within_the_window_does_its_work() -> None:
    """An id is noted when the work has succeeded, so a failed attempt leaves no trace."""
    policy = make({"message_id": "key"})
    put(policy, 1, key=b"a")
    ((ticket, _),) = policy.choose(0.0, 0.0).send
    settle(policy, policy.failed(ticket, [NO]))
    policy.due_again([Delivery(b"x", 0, key=b"a", id="a", attempt=2, retry_row=1)])
    assert len(policy.choose(1.0, 1.0).send) == 1


def test_a_second_delivery_after_success_is_acked_and_not_run() -> None:
    policy = make({"message_id": "key"})
    put(policy, 1, key=b"a")
    ((ticket, _),) = policy.choose(0.0, 0.0).send
    policy.done([ticket], 0.0)
    put(policy, 1, key=b"a")
    choice = policy.choose(1.0, 1.0)
    assert not choice.send
    assert [delivery.position for delivery in choice.ack] == [1]
    put(policy, 1, key=b"a")
    assert len(policy.choose(601.0, 601.0).send) == 1, "after the window it is a new message"


def test_a_second_delivery_while_the_first_is_under_way_shares_its_fate() -> None:
    policy = make({"message_id": "key"})
    put(policy, 2, key=b"a")
    choice = policy.choose(0.0, 0.0)
    assert positions(choice) == [0]
    assert not choice.ack, "it may still be needed if the first is never done"
    acks = policy.done([choice.send[0][0]], 0.0)
    assert [delivery.position for delivery in acks] == [0, 1]
    assert policy.counts[0].duplicates == 1


def test_the_same_id_in_two_sources_is_two_messages() -> None:
    policy = make({"message_id": "key"}, {"message_id": "key", "name": "other"})
    put(policy, 1, 0, key=b"a")
    put(policy, 1, 1, key=b"a")
    assert len(policy.choose(0.0, 0.0).send) == 2


def test_messages_of_one_key_go_one_after_the_other_and_other_keys_do_not_wait() -> None:
    policy = make({"ordered": True})
    policy.arrived(0, [Delivery(b"x", number, key=key) for number, key in enumerate([b"a", b"a", b"b", b"a"])])
    choice = policy.choose(0.0, 0.0)
    assert positions(choice) == [0, 2]
    policy.done([choice.send[0][0]], 0.0)
    choice = policy.choose(0.0, 0.0)
    assert positions(choice) == [1]
    policy.done([choice.send[0][0]], 0.0)
    assert positions(policy.choose(0.0, 0.0)) == [3]


def test_a_key_whose_message_failed_waits_for_its_next_attempt() -> None:
    policy = make({"ordered": True})
    put(policy, 2, key=b"a")
    ((ticket, _),) = policy.choose(0.0, 0.0).send
    assert settle(policy, policy.failed(ticket, [NO])) == [], "it is tried again from here"
    assert not policy.choose(0.5, 0.5).send
    assert policy.wakes_at(0.5) == 1.0
    choice = policy.choose(1.0, 1.0)
    assert positions(choice) == [0]
    assert choice.send[0][1].attempt == 2
    policy.done([choice.send[0][0]], 1.0)
    assert positions(policy.choose(1.0, 1.0)) == [1]


def test_an_ordered_message_that_was_tried_before_waits_for_its_time_with_its_key() -> None:
    """What was noted of it before a restart counts: its attempts, and when it is due."""
    policy = make({"ordered": True})
    policy.arrived(
        0,
        [
            Delivery(b"x", 0, key=b"a", attempt=2, plans=("Spam",), noted=True, not_before=105.0),
            Delivery(b"x", 1, key=b"a"),
            Delivery(b"x", 2, key=b"b"),
        ],
    )
    assert positions(policy.choose(0.0, 100.0)) == [2]
    assert policy.wakes_at(0.0) == 5.0
    ((ticket, delivery),) = policy.choose(5.0, 105.0).send
    assert (delivery.position, delivery.attempt) == (0, 2)
    assert settle(policy, policy.failed(ticket, [NO]), 5.0) == []
    ((ticket, delivery),) = policy.choose(9.0, 109.0).send
    assert (delivery.attempt, delivery.plans) == (3, ("Spam",))
    assert settle(policy, policy.failed(ticket, [NO]), 9.0) == [delivery], "given up after its third attempt"
    assert positions(policy.choose(9.0, 109.0)) == [1]


def test_a_plan_that_is_given_up_is_not_run_again_with_the_one_that_is_tried_again() -> None:
    policy = make({"ordered": True})
    put(policy, 1, key=b"a")
    ((ticket, _),) = policy.choose(0.0, 0.0).send
    outcome = policy.failed(ticket, [NO, MessageFailure("Rank", "Discard", "not wanted", (), None, "discard")])
    assert outcome is not None
    assert outcome.dead is not None
    assert outcome.dead.plans == ("Rank",)
    settle(policy, outcome)
    assert policy.choose(1.0, 1.0).send[0][1].plans == ("Spam",)
    assert policy.counts[0].dead == 1


def test_a_drain_takes_up_nothing_that_waits_behind_a_key() -> None:
    policy = make({"ordered": True})
    put(policy, 5, key=b"a")
    ((ticket, _),) = policy.choose(0.0, 0.0).send
    policy.taking = False
    policy.done([ticket], 0.0)
    assert policy.unfinished == 0, "the drain is over"
    assert not policy.choose(0.0, 0.0).send
    assert policy.waiting(0) == 4
    policy.taking = True
    for position in range(1, 5):
        ((ticket, delivery),) = policy.choose(0.0, 0.0).send
        assert delivery.position == position, "in their order, though it was stopped in between"
        policy.done([ticket], 0.0)


def test_what_went_to_another_is_forgotten_wherever_it_waits() -> None:
    policy = make({"ordered": True, "message_id": "key"})
    policy.arrived(0, [Delivery(b"x", number, number % 2, key=b"ab"[number % 2 :][:1]) for number in range(6)])
    choice = policy.choose(0.0, 0.0)
    assert positions(choice) == [0, 1]
    outcome = policy.failed(choice.send[1][0], [NO])
    settle(policy, outcome)
    policy.drop_waiting(lambda delivery: delivery.part == 1, 0.0)
    assert policy.waiting_size(0) == policy.waiting(0), "each has one byte"
    assert policy.wakes_at(0.0) == NEVER, "its next attempt is another's"
    acks = policy.done([choice.send[0][0]], 0.0)
    assert [delivery.position for delivery in acks] == [0, 2, 4]
    policy.arrived(0, [Delivery(b"x", 1, 1, key=b"b")])
    assert positions(policy.choose(0.0, 0.0)) == [1], "when it comes back, it is nobody's duplicate"


def test_two_sources_of_one_kind_have_a_limit_each() -> None:
    policy = make({"max_qps": 50.0}, {"max_qps": 100.0, "name": "other"}, {"name": "free"})
    for index in range(3):
        put(policy, 1000, index)
    for tick in range(1000):
        now = tick / 1000
        policy.done([ticket for ticket, _ in policy.choose(now, now).send], now)
    done = [counts.done for counts in policy.counts]
    assert done == [pytest.approx(50, abs=2), pytest.approx(100, abs=3), 1000], "and the free one is not slowed"


def test_a_delayed_source_sends_nothing_before_its_time() -> None:
    policy = make({"delay": "60s"})
    policy.arrived(0, [Delivery(b"x", 1, at=100.0), Delivery(b"x", 2, at=130.0)])
    assert not policy.choose(0.0, 120.0).send
    assert policy.wakes_at(0.0) == pytest.approx(40.0)
    assert positions(policy.choose(40.0, 160.0)) == [1]
    assert policy.wakes_at(40.0) == pytest.approx(70.0)


def test_an_engines_death_frees_its_slots_and_sends_its_messages_again() -> None:
    policy = make(max_in_flight=4)
    put(policy, 8)
    first = policy.choose(0.0, 0.0)
    assert policy.engine_died([ticket for ticket, _ in first.send], "it was killed") == []
    assert policy.busy == 0
    again = policy.choose(0.0, 0.0)
    assert positions(again) == [0, 1, 2, 3]
    assert not policy.done([first.send[0][0]], 0.0), "the dead engine's word does not count any more"
    assert len(policy.done([ticket for ticket, _ in again.send], 0.0)) == 4
    assert policy.counts[0].lost == 4


def test_a_message_that_kills_engines_ends_up_alone_and_is_given_up() -> None:
    policy = make(max_in_flight=4)
    put(policy, 4)
    for _ in range(2):
        choice = policy.choose(0.0, 0.0)
        assert len(choice.send) == 4
        policy.engine_died([ticket for ticket, _ in choice.send], "it was killed")
    choice = policy.choose(0.0, 0.0)
    assert len(choice.send) == 1, "those that were there both times run one at a time"
    (outcome,) = policy.engine_died([choice.send[0][0]], "it was killed")
    assert outcome.dead is not None
    assert outcome.dead.why == "lost"
    assert "3 times" in outcome.dead.error
    policy.settled(outcome, 0.0)
    for _ in range(3):
        ((ticket, _),) = policy.choose(0.0, 0.0).send
        policy.done([ticket], 0.0)
    assert policy.counts[0].done == 3


def test_weights_limits_and_switches_change_at_once() -> None:
    policy = make({}, {"name": "other"}, max_in_flight=120)
    put(policy, 1000, 0)
    put(policy, 1000, 1)
    policy.set_source(0, 0.0, weight=5.0, max_qps=None, enabled=True)
    choice = policy.choose(0.0, 0.0)
    assert [policy.in_flight[0], policy.in_flight[1]] == [100, 20]
    policy.done([ticket for ticket, _ in choice.send], 0.0)
    policy.set_source(0, 0.0, weight=5.0, max_qps=None, enabled=False)
    choice = policy.choose(0.0, 0.0)
    assert policy.in_flight == [0, 120]
    policy.done([ticket for ticket, _ in choice.send], 0.0)
    policy.set_source(0, 1.0, weight=5.0, max_qps=100.0, enabled=True)
    policy.set_source(1, 1.0, weight=1.0, max_qps=None, enabled=False)
    assert len(policy.choose(1.0, 1.0).send) == 2  # what may go at once after a quiet time
    assert policy.wakes_at(1.0) == pytest.approx(1.01)


def test_a_drain_takes_nothing_and_hears_every_result() -> None:
    policy = make(max_in_flight=10)
    put(policy, 30)
    choice = policy.choose(0.0, 0.0)
    policy.taking = False
    assert policy.unfinished == 10
    settle(policy, policy.failed(choice.send[0][0], [NO]))
    assert len(policy.done([ticket for ticket, _ in choice.send[1:]], 0.0)) == 9
    assert policy.unfinished == 0
    assert not policy.choose(0.0, 0.0).send
    assert len(policy.give_back()) == 20


def test_what_is_given_back_is_all_that_was_not_finished() -> None:
    policy = make({"ordered": True, "message_id": "header:id"}, max_in_flight=3)
    policy.arrived(0, [Delivery(b"x", number, key=b"ab"[number % 2 : number % 2 + 1]) for number in range(10)])
    choice = policy.choose(0.0, 0.0)
    policy.done([choice.send[0][0]], 0.0)
    policy.choose(0.0, 0.0)
    assert sorted(delivery.position for delivery in policy.give_back()) == list(range(1, 10))
    assert policy.unfinished == 0
