"""The dispatcher's decisions: which message is sent next, and what happens to it when its engine has answered.

Pure: no I/O, no clock, no random numbers. The dispatcher reports what arrived and what was answered, with the time, and
carries out the decisions. The same sequence of reports gives the same decisions.

    arrived -> (expired | duplicate | waits behind its key | sent) -> done
                                                                   -> failed -> retried later, or a dead letter
                                                                   -> its engine died -> quarantine, or a dead letter
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tidemill.core.blame import group_size, suspected_again
from tidemill.core.retry import RetryPolicy
from tidemill.sources.base import Source, identify
from tidemill.sources.delivery import Delivery, size_of
from tidemill.streams.definition.message import MessageFailure
from tidemill.streams.reducer.dedupe import RecentMessages
from tidemill.streams.reducer.fair_share import NEVER, FairShare, Lane
from tidemill.streams.reducer.key_order import KeyOrder, take_lost
from tidemill.streams.reducer.outcomes import MessageOutcome, NewDeadLetter, decide_outcome, lost
from tidemill.streams.reducer.token_bucket import bucket_for


class SourceCounts(msgspec.Struct):
    """How many messages of one source have had each outcome."""

    arrived: int = 0
    sent: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    expired: int = 0
    duplicates: int = 0
    lost: int = 0


class Choice(msgspec.Struct):
    """The messages to send now, each with its ticket, and those that need no work and can be acknowledged."""

    send: list[tuple[int, Delivery]]
    ack: list[Delivery]
    suspects: list[tuple[int, Delivery]]
    """For the quarantine engine, which runs nothing else beside them."""


class StreamReducer:
    """The state of all messages that the dispatcher has taken."""

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        max_concurrency: int,
        retry: RetryPolicy,
        max_losses: int,
        dedup_window: float = 0.0,
        now: float = 0.0,
    ) -> None:
        self.sources = tuple(sources)
        self.counts = [SourceCounts() for _ in sources]
        self.in_flight = [0] * len(sources)
        self.flights: dict[int, Delivery] = {}
        self.committing = 0
        self.accepting = True
        self._max = max_concurrency
        self._retry = retry
        self._max_losses = max_losses
        self._seen = RecentMessages(dedup_window) if dedup_window else None
        self._queues: list[deque[Delivery]] = [deque() for _ in range(len(sources) + 1)]
        self._lanes = [
            Lane(source.name, queue, weight=source.weight, bucket=bucket_for(source.max_qps, source.burst, now=now))
            for source, queue in zip(sources, self._queues, strict=False)
        ]
        for source, lane in zip(sources, self._lanes, strict=True):
            lane.enabled = source.enabled
        heaviest = max((source.weight for source in sources), default=1.0)
        self._lanes.append(Lane("", self._queues[-1], weight=heaviest))  # messages that are due for another attempt
        self._fair = FairShare(self._lanes)
        self._most: list[int] = []
        self._limit_slots()
        self._again: deque[Delivery] = deque()
        self._suspects: deque[Delivery] = deque()
        self._quarantined: set[int] = set()
        self._later: list[tuple[float, int, Delivery]] = []
        self._keys = KeyOrder(len(sources))
        self._under_way: dict[tuple[int, str], Delivery] = {}
        self._tickets = 0

    # -- arrivals ---------------------------------------------------------------------------------

    def arrived(self, index: int, deliveries: Sequence[Delivery]) -> None:
        """Take messages that a source has delivered."""
        source = self.sources[index]
        for delivery in deliveries:
            delivery.source = index
        if source.message_id is not None:
            for delivery in deliveries:
                delivery.id = identify(source, delivery)
        if source.max_age is not None:
            for delivery in deliveries:
                if delivery.deadline is None and delivery.at:
                    delivery.deadline = delivery.at + float(source.max_age)  # pyright: ignore[reportArgumentType]
        self.counts[index].arrived += len(deliveries)
        self._put(index, deliveries)

    def due_again(self, deliveries: Sequence[Delivery]) -> None:
        """Take messages that are due for another attempt."""
        self._put(-1, deliveries)

    def waiting(self, index: int) -> int:
        """How many messages of a source are here and not in flight."""
        return len(self._queues[index]) + self._keys.held[index]

    def waiting_size(self, index: int) -> int:
        """The size of the waiting messages of a source, in bytes."""
        return self._lanes[index].size

    @property
    def waiting_again(self) -> int:
        return len(self._queues[-1])

    @property
    def waiting_again_size(self) -> int:
        return self._lanes[-1].size

    @property
    def busy(self) -> int:
        """How many messages are in flight, including those whose outcome is being stored."""
        return len(self.flights) + self.committing

    @property
    def unfinished(self) -> int:
        """How many messages a drain still has to wait for."""
        return self.busy + len(self._again) + len(self._suspects)

    @property
    def has_suspects(self) -> bool:
        """Whether messages wait for the quarantine engine, or run there."""
        return bool(self._suspects or self._quarantined)

    # -- sending ----------------------------------------------------------------------------------

    def choose(self, now: float, wall: float, *, quarantine: bool = False) -> Choice:
        """Choose messages for the free slots, and suspects if the quarantine engine is ready."""
        choice = Choice([], [], [])
        while self.accepting and self._later and self._later[0][0] <= now:
            self._again.append(heapq.heappop(self._later)[2])
        free = self._max - self.busy
        if quarantine and self._suspects and not self._quarantined and free > 0:
            self._send_suspects(choice, free)
            free -= len(choice.suspects)
        while self._again and free > 0:
            free -= 1
            self._send(self._again.popleft(), choice.send)
        while free > 0 and self.accepting:
            for lane, most, under_way in zip(self._lanes, self._most, self.in_flight, strict=False):
                lane.room = max(0, most - under_way)
            picks = self._fair.pick(free, now)
            if not picks:
                break
            before = len(choice.send)
            for lane, count in picks:
                self._take(lane, count, choice, now, wall)
            free -= len(choice.send) - before
        return choice

    def wakes_at(self, now: float) -> float:
        """When to choose again if nothing happens before."""
        if not self.accepting:
            return NEVER
        return min(self._later[0][0] if self._later else NEVER, self._fair.wakes_at(now))

    def _take(self, lane: Lane, count: int, choice: Choice, now: float, wall: float) -> None:
        queue: deque[Delivery] = lane.queue  # pyright: ignore[reportAssignmentType]
        for _ in range(count):
            delivery = queue.popleft()
            lane.size -= len(delivery.payload)
            index = delivery.source
            source = self.sources[index]
            if delivery.deadline is not None and delivery.deadline <= wall:
                self.counts[index].expired += 1
                choice.ack.append(delivery)
                continue
            if source.delay and delivery.at + float(source.delay) > wall:  # pyright: ignore[reportArgumentType]
                queue.appendleft(delivery)
                lane.size += len(delivery.payload)
                lane.held_until = now + delivery.at + float(source.delay) - wall  # pyright: ignore[reportArgumentType]
                return
            if delivery.id is not None and self._is_duplicate(delivery, choice, now):
                continue
            if self._is_ordered(delivery):
                if not self._keys.enter(delivery):
                    lane.size += len(delivery.payload)
                    continue
                if delivery.not_before > wall:
                    self._wait(delivery, now + delivery.not_before - wall)
                    continue
            self._send(delivery, choice.send)

    def _is_duplicate(self, delivery: Delivery, choice: Choice, now: float) -> bool:
        name = (delivery.source, str(delivery.id))
        if self._seen is None:
            return False
        if self._seen.has(name, now):
            self.counts[delivery.source].duplicates += 1
            choice.ack.append(delivery)
            return True
        first = self._under_way.get(name)
        if first is not None and first is not delivery:
            self.counts[delivery.source].duplicates += 1
            first.followers = [*(first.followers or ()), delivery]
            return True
        self._under_way[name] = delivery
        return False

    def _is_ordered(self, delivery: Delivery) -> bool:
        """Whether messages of its key wait for it; a message that was stored for a retry no longer holds its key."""
        return self.sources[delivery.source].ordered and delivery.key is not None and delivery.retry_row is None

    def _send_suspects(self, choice: Choice, free: int) -> None:
        """Send suspects that may run together, the least suspected ones first."""
        level = min(each.suspicions for each in self._suspects)
        group = [each for each in self._suspects if each.suspicions == level][: min(free, group_size(level))]
        chosen = {id(each) for each in group}
        self._suspects = deque(each for each in self._suspects if id(each) not in chosen)
        for delivery in group:
            self._send(delivery, choice.suspects)
        self._quarantined = {ticket for ticket, _ in choice.suspects}

    def _send(self, delivery: Delivery, sent: list[tuple[int, Delivery]]) -> None:
        self._tickets += 1
        self.flights[self._tickets] = delivery
        self.in_flight[delivery.source] += 1
        self.counts[delivery.source].sent += 1
        sent.append((self._tickets, delivery))

    def _wait(self, delivery: Delivery, until: float) -> None:
        self._tickets += 1
        heapq.heappush(self._later, (until, self._tickets, delivery))

    # -- answers ----------------------------------------------------------------------------------

    def done(self, tickets: Iterable[int], now: float) -> list[Delivery]:
        """These have succeeded; returns the messages to acknowledge."""
        acks: list[Delivery] = []
        flights, in_flight, counts = self.flights, self.in_flight, self.counts
        for ticket in tickets:
            delivery = flights.pop(ticket, None)
            if delivery is None:
                continue  # Another engine has answered it.
            in_flight[delivery.source] -= 1
            counts[delivery.source].done += 1
            acks.append(delivery)
            if delivery.id is not None or delivery.suspicions or self.sources[delivery.source].ordered:
                self._quarantined.discard(ticket)
                self._finish(delivery, now, succeeded=True, acks=acks)
        return acks

    def expired(self, ticket: int, now: float) -> list[Delivery]:
        """The deadline had passed when an engine took it; returns the messages to acknowledge."""
        delivery = self._end_flight(ticket)
        if delivery is None:
            return []
        self.counts[delivery.source].expired += 1
        acks = [delivery]
        self._finish(delivery, now, succeeded=False, acks=acks)
        return acks

    def failed(self, ticket: int, failures: Sequence[MessageFailure]) -> MessageOutcome | None:
        """Some plans failed; returns the outcome to store before `committed`, or None if it is no longer ours."""
        delivery = self._end_flight(ticket)
        if delivery is None:
            return None
        self.committing += 1
        delivery.suspicions = 0
        self.counts[delivery.source].failed += 1
        return decide_outcome(delivery, failures, self._retry, stays=self._is_ordered(delivery))

    def give_up(self, ticket: int, why: str, kind: str, error: str) -> MessageOutcome | None:
        """Further attempts would not help; returns the outcome to store before `committed`."""
        delivery = self._end_flight(ticket)
        if delivery is None:
            return None
        self.committing += 1
        return MessageOutcome(delivery, dead=NewDeadLetter(why, delivery.attempt, delivery.plans, kind, error))

    def hold(self, ticket: int) -> MessageOutcome | None:
        """It has succeeded, and its outbox must be stored before `committed`."""
        delivery = self._end_flight(ticket)
        if delivery is None:
            return None
        self.committing += 1
        return MessageOutcome(delivery)

    def committed(self, outcome: MessageOutcome, now: float) -> list[Delivery]:
        """Its outcome is stored; returns the messages to acknowledge."""
        self.committing -= 1
        delivery, counts = outcome.delivery, self.counts[outcome.delivery.source]
        counts.done += outcome.succeeded
        counts.dead += outcome.dead is not None
        if outcome.retry is not None:
            counts.retried += 1
            if outcome.retry.stays:
                delivery.attempt, delivery.plans, delivery.noted = outcome.retry.attempts, outcome.retry.plans, True
                self._wait(delivery, now + outcome.retry.delay)
                return []
        acks = [delivery]
        self._finish(delivery, now, succeeded=outcome.succeeded, acks=acks)
        return acks

    def fenced(self, outcome: MessageOutcome, now: float) -> None:
        """Another dispatcher has taken it over: it is neither acknowledged nor retried here."""
        self.committing -= 1
        self._finish(outcome.delivery, now, succeeded=False, acks=[])

    def engine_died(self, tickets: Iterable[int], why: str, *, alone: bool) -> list[MessageOutcome]:
        """An engine died while running these: they run in quarantine.

        If it ran only one, that is a loss of this message, which is given up if that has happened too often.
        """
        given_up: list[MessageOutcome] = []
        for ticket in sorted(tickets):
            delivery = self._end_flight(ticket)
            if delivery is None:
                continue
            delivery.losses += alone
            delivery.suspicions = suspected_again(delivery.suspicions, alone=alone)
            self.counts[delivery.source].lost += alone
            if delivery.losses >= self._max_losses:
                self.committing += 1
                given_up.append(lost(delivery, why))
            else:
                self._suspects.append(delivery)
        return given_up

    def give_back(self) -> list[Delivery]:
        """Remove and return all unfinished messages; their sources will deliver them again."""
        back = [*self.flights.values(), *self._again, *self._suspects, *(entry[2] for entry in self._later)]
        for queue in self._queues:
            back += queue
            queue.clear()
        back += self._keys.clear()
        back += [follower for delivery in back for follower in delivery.followers or ()]
        self.flights.clear()
        self._again.clear()
        self._suspects.clear()
        self._later.clear()
        self._under_way.clear()
        self._quarantined.clear()
        self.in_flight = [0] * len(self.sources)
        for lane in self._lanes:
            lane.size = 0
        return back

    def drop_waiting(self, is_lost: Callable[[Delivery], bool], now: float) -> None:
        """Remove waiting messages that belong to another reader now."""
        dropped = self._keys.drop(is_lost)
        for delivery in dropped:
            self._lanes[delivery.source].size -= len(delivery.payload)
        for lane, queue in zip(self._lanes, self._queues, strict=True):
            gone = take_lost(queue, is_lost)
            lane.size -= size_of(gone)
            dropped += gone
        later = [entry[2] for entry in self._later if is_lost(entry[2])]
        self._later = [entry for entry in self._later if not is_lost(entry[2])]
        heapq.heapify(self._later)
        for delivery in (*dropped, *later):
            followers, delivery.followers = delivery.followers or (), None
            self._put(delivery.source, [each for each in followers if not is_lost(each)])
            self._forget_id(delivery)
        for delivery in later:
            self._finish(delivery, now, succeeded=False, acks=[])

    # -- changes by operators ---------------------------------------------------------------------

    def set_source(self, index: int, now: float, *, weight: float, max_qps: float | None, enabled: bool) -> None:
        """Change the weight and the limit of a source, and switch it on or off."""
        lane = self._lanes[index]
        lane.enabled = enabled
        if weight != lane.weight:
            lane.weight = weight
            self._lanes[-1].weight = max(each.weight for each in self._lanes[:-1])
            self._fair.reweigh()
        self._limit_slots()
        if not max_qps:
            lane.bucket = None
        elif lane.bucket is None:
            lane.bucket = bucket_for(max_qps, now=now)
        elif lane.bucket.rate != max_qps:
            lane.bucket.change(max_qps, now)

    def source_now(self, index: int) -> tuple[float, float | None, bool]:
        """The weight and the limit of a source, and whether it is on."""
        lane = self._lanes[index]
        return lane.weight, None if lane.bucket is None else lane.bucket.rate, lane.enabled

    # -- internals --------------------------------------------------------------------------------

    def _put(self, index: int, deliveries: Sequence[Delivery]) -> None:
        """Add messages to a lane."""
        self._queues[index].extend(deliveries)
        self._lanes[index].size += size_of(deliveries)

    def _limit_slots(self) -> None:
        """Compute how many slots each source may use."""
        lanes = self._lanes[:-1]
        total = sum(lane.weight for lane in lanes if lane.enabled) or 1.0
        self._most = [
            _most_of(source, min(1.0, lane.weight / total), self._max)
            for source, lane in zip(self.sources, lanes, strict=True)
        ]

    def _end_flight(self, ticket: int) -> Delivery | None:
        self._quarantined.discard(ticket)
        delivery = self.flights.pop(ticket, None)
        if delivery is not None:
            self.in_flight[delivery.source] -= 1
        return delivery

    def _finish(self, delivery: Delivery, now: float, *, succeeded: bool, acks: list[Delivery]) -> None:
        """Remember its id, release the next message of its key, and acknowledge its duplicates."""
        if succeeded and delivery.id is not None and self._seen is not None:
            self._seen.note((delivery.source, delivery.id), now)
        self._forget_id(delivery)
        if delivery.followers:
            acks += delivery.followers
        if not self._is_ordered(delivery):
            return
        if self.accepting:
            following = self._keys.leave(delivery)
            if following is not None:
                self._lanes[following.source].size -= len(following.payload)
                self._again.append(following)
        else:  # While draining, the messages behind it go back to their lane.
            self._queues[delivery.source].extendleft(reversed(self._keys.release_waiting(delivery)))

    def _forget_id(self, delivery: Delivery) -> None:
        """Stop attaching duplicates to it."""
        if delivery.id is not None and self._under_way.get((delivery.source, delivery.id)) is delivery:
            del self._under_way[delivery.source, delivery.id]


def _most_of(source: Source, share: float, slots: int) -> int:
    """How many slots a source may use: even with slow plans it leaves the others a quarter of their shares."""
    if source.max_concurrency is not None:
        return min(source.max_concurrency, slots)
    return math.ceil(slots * (1 - (1 - share) / 4))
