"""Whole lives of a dispatcher on virtual time: arrivals, failures, deaths of engines, restarts, in any order.

A seed decides everything; a failure names it.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.simulation.seeds import seeds
from tidemill.core.retry import retry
from tidemill.sources.delivery import Delivery
from tidemill.sources.jsonl import JsonlSource
from tidemill.sources.positions.offsets import Offsets
from tidemill.streams.definition.message import MessageFailure
from tidemill.streams.reducer.outcomes import MessageOutcome
from tidemill.streams.reducer.reducer import StreamReducer

SOURCES: tuple[dict[str, Any], ...] = (
    {"weight": 5.0},
    {"weight": 1.0, "max_qps": 20.0, "name": "slow"},
    {"weight": 2.0, "ordered": True, "name": "keyed"},
    {"weight": 1.0, "message_id": "key", "name": "ids"},
)
MESSAGES = 120
MAX_CONCURRENCY = 12


class World:
    """Logs that can be read again, engines that fail and die, a database that keeps retries and dead letters."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.logs = [self._log(index) for index in range(len(SOURCES))]
        self.committed = [-1] * len(SOURCES)
        self.done: dict[tuple[int, int], int] = {}
        self.dead: set[tuple[int, int]] = set()
        self.blamed: set[tuple[int, int]] = set()
        self.kept: list[tuple[float, Delivery]] = []
        self.noted: dict[tuple[int, int], tuple[int, float]] = {}
        self.tried: dict[tuple[int, int], list[int]] = {}
        self.poison = {(index, self.chance.randrange(MESSAGES)) for index in range(len(SOURCES))}
        self.killer = (0, self.chance.randrange(MESSAGES))
        self.order: dict[bytes, list[int]] = {}
        self.sent_at: list[float] = []
        self.lives = 0
        self.begin()

    def _log(self, index: int) -> list[Delivery]:
        keys = [None] * MESSAGES
        if index == 2:
            keys = [f"k{self.chance.randrange(4)}".encode() for _ in range(MESSAGES)]
        if index == 3:
            keys = [
                f"id{number // 2 if self.chance.random() < 0.3 else number + 1000}".encode()
                for number in range(MESSAGES)
            ]
        return [Delivery(b"x", number, key=keys[number]) for number in range(MESSAGES)]

    def begin(self) -> None:
        """A dispatcher begins where the last one had committed."""
        self.lives += 1
        declared = [JsonlSource(f"{index}.jsonl", **options) for index, options in enumerate(SOURCES)]
        reducer: Any = retry(3, backoff=0.5, jitter=0.0)
        self.reducer = StreamReducer(
            declared, max_concurrency=MAX_CONCURRENCY, retry=reducer, max_losses=3, dedup_window=60.0, now=self.now
        )
        self.read = [position + 1 for position in self.committed]
        self.offsets = [Offsets(position) for position in self.committed]
        self.engines: list[set[int]] = [set(), set(), set()]  # the last one is for suspects
        self.committing: list[MessageOutcome] = []
        self.claimed: list[tuple[float, Delivery]] = []

    # -- what can happen --------------------------------------------------------------------------

    def arrive(self) -> None:
        index = self.chance.randrange(len(SOURCES))
        start, count = self.read[index], self.chance.randint(1, 20)
        fresh = [
            Delivery(each.payload, each.position, key=each.key) for each in self.logs[index][start : start + count]
        ]
        for delivery in fresh:
            if (index, delivery.position) in self.noted:
                delivery.attempt, delivery.not_before = self.noted[index, delivery.position]
                delivery.noted = True
        self.read[index] += len(fresh)
        self.offsets[index].take(delivery.position for delivery in fresh)
        self.reducer.arrived(index, fresh)

    def come_due(self) -> None:
        due = [entry for entry in self.kept if entry[0] <= self.now]
        self.kept = [entry for entry in self.kept if entry[0] > self.now]
        self.claimed += due
        self.reducer.due_again([delivery for _, delivery in due])

    def dispatch(self) -> None:
        choice = self.reducer.choose(self.now, self.now, quarantine=True)
        assert self.reducer.busy <= MAX_CONCURRENCY
        for index in range(len(SOURCES)):
            assert self.reducer.waiting_size(index) == self.reducer.waiting(index), "each message has one byte"
            assert self.reducer.waiting_again_size(index) == self.reducer.waiting_again(index)
        for ticket, delivery in choice.send:
            if delivery.source == 1:
                self.sent_at.append(self.now)
            if delivery.source == 2 and delivery.retry_row is None:
                under_way = [each.key for each in self.reducer.flights.values() if each.source == 2]
                assert under_way.count(delivery.key) == 1, "two messages of one key are under way"
            self.chance.choice(self.engines[:-1]).add(ticket)
        self.sent_at += [self.now for _, delivery in choice.suspects if delivery.source == 1]
        if choice.suspects:
            assert not self.engines[-1], "suspects run beside others"
            self.engines[-1].update(ticket for ticket, _ in choice.suspects)
        self.ack(choice.ack)

    def answer(self) -> None:
        engine = self.chance.choice(self.engines)
        for ticket in self.chance.sample(sorted(engine), min(len(engine), self.chance.randint(1, 8))):
            delivery = self.reducer.flights[ticket]
            name = (delivery.source, delivery.position)
            if name == self.killer:
                self.die(engine)
                return
            engine.discard(ticket)
            if name in self.poison or self.chance.random() < 0.05:
                self.tried.setdefault(name, []).append(delivery.attempt)
                outcome = self.reducer.failed(ticket, [MessageFailure("Plan", "ValueError", "no")])
                if outcome is not None:
                    self.committing.append(outcome)
                continue
            self.work(delivery)
            self.ack(self.reducer.done([ticket], self.now))

    def work(self, delivery: Delivery) -> None:
        name = (delivery.source, delivery.position)
        self.done[name] = self.done.get(name, 0) + 1
        if delivery.source == 2 and delivery.key is not None and delivery.retry_row is None:
            self.order.setdefault(delivery.key, []).append(delivery.position)

    def die(self, engine: set[int]) -> None:
        tickets = set(engine)
        engine.clear()
        self.committing += self.reducer.engine_died(tickets, "killed", alone=len(tickets) == 1)

    def commit_outcomes(self) -> None:
        for outcome in self.committing:
            delivery = outcome.delivery
            if outcome.retry is not None and outcome.stays:
                self.noted[delivery.source, delivery.position] = (
                    outcome.retry.attempts,
                    self.now + outcome.retry.delay,
                )
            elif outcome.retry is not None:
                again = Delivery(
                    delivery.payload,
                    delivery.position,
                    key=delivery.key,
                    id=delivery.id,
                    attempt=outcome.retry.attempts,
                    losses=outcome.retry.losses,
                    retry_row=1,
                    source=delivery.source,
                )
                self.kept.append((self.now + outcome.retry.delay, again))
            if outcome.dead is not None:
                self.dead.add((delivery.source, delivery.position))
                if outcome.dead.why == "lost":
                    self.blamed.add((delivery.source, delivery.position))
            self.ack(self.reducer.committed(outcome, self.now))
        self.committing.clear()

    def ack(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.retry_row is not None:
                self.claimed = [entry for entry in self.claimed if entry[1] is not delivery]
            else:
                self.offsets[delivery.source].finish(delivery.position)

    def commit(self) -> None:
        for index, offsets in enumerate(self.offsets):
            position = -1 if offsets.committable is None else offsets.committable
            assert position >= self.committed[index]
            for each in range(self.committed[index] + 1, position + 1):
                assert self.is_safe(index, each), f"{index}:{each} was committed and nothing holds it"
            self.committed[index] = position

    def is_safe(self, index: int, position: int) -> bool:
        """Done, given up, kept for another attempt, or a duplicate of one that is."""
        if index == 3:
            key = self.logs[3][position].key
            same = [each.position for each in self.logs[3] if each.key == key]
            return any(self._is_safe(index, each) for each in same)
        return self._is_safe(index, position)

    def _is_safe(self, index: int, position: int) -> bool:
        kept = {(delivery.source, delivery.position) for _, delivery in (*self.kept, *self.claimed)}
        return bool(self.done.get((index, position))) or (index, position) in self.dead | kept

    def crash(self) -> None:
        """The dispatcher is gone; what it had claimed and not finished is due again."""
        self.kept += [(self.now, delivery) for _, delivery in self.claimed]
        for _, delivery in self.kept:
            delivery.followers = None
        self.begin()

    def over(self) -> bool:
        return all(position == MESSAGES - 1 for position in self.committed) and not self.kept and not self.claimed


@pytest.mark.parametrize("seed", seeds(15, 60))
def test_nothing_is_lost_whatever_fails_and_dies(seed: int) -> None:
    world = World(seed)
    steps: list[tuple[Any, int]] = [
        (world.arrive, 6),
        (world.come_due, 3),
        (world.dispatch, 10),
        (world.answer, 10),
        (world.commit_outcomes, 5),
        (world.commit, 3),
    ]
    for _ in range(20_000):
        world.now += world.chance.random() * 0.05
        chosen = world.chance.choices([each for each, _ in steps], [weight for _, weight in steps])[0]
        chosen()
        engine = world.chance.choice(world.engines)
        if world.chance.random() < 0.01 and len(engine) != 1:  # One that runs alone would seem to be the cause.
            world.die(engine)
        if world.lives < 5 and world.chance.random() < 0.002:
            world.crash()
        if world.over():
            break
    else:
        raise AssertionError(f"seed {seed}: not over: {world.committed}")
    for index in range(len(SOURCES)):
        for position in range(MESSAGES):
            assert world.is_safe(index, position), f"seed {seed}: {index}:{position} is lost"
    assert all(name in world.dead for name in world.poison if name != world.killer and name[0] != 3)
    assert world.killer in world.dead
    assert world.blamed <= {world.killer}, f"seed {seed}: an innocent message was blamed for the death of an engine"
    for name in world.poison - {world.killer}:
        if name[0] == 2:
            attempts = world.tried[name]
            assert set(attempts) == {1, 2, 3}, f"seed {seed}: attempts {attempts}"
            assert attempts == sorted(attempts), f"seed {seed}: a restart forgot attempts: {attempts}"
    if world.lives == 1:
        assert all(found == sorted(found) for found in world.order.values()), f"seed {seed}: a key went out of order"
        for begin in world.sent_at:
            assert sum(begin <= at < begin + 1 for at in world.sent_at) <= 20 + 2, f"seed {seed}: too many in a second"


def test_the_same_seed_tells_the_same_story() -> None:
    def story(seed: int) -> list[tuple[int, int]]:
        world = World(seed)
        told: list[tuple[int, int]] = []
        for _ in range(400):
            world.now += 0.01
            world.arrive()
            before = set(world.reducer.flights)
            world.dispatch()
            told += [
                (each.source, each.position) for ticket, each in world.reducer.flights.items() if ticket not in before
            ]
            world.answer()
            world.commit_outcomes()
        return told

    assert story(7) == story(7)
    assert story(7) != story(8)
