"""The dispatcher's decisions: which message is sent next, and what happens to it when its engine has answered.

Pure: no I/O, no clock, no random numbers. The dispatcher reports what arrived and what was answered, with the time, and
carries out the decisions. The same sequence of reports gives the same decisions.

    arrived -> (expired | duplicate | waits behind its key | sent) -> done
                                                                   -> failed -> retried later, or a dead letter
                                                                   -> its engine died -> quarantine, or a dead letter
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from tidemill.core.blame import suspected_again
from tidemill.core.retry import RetryPolicy
from tidemill.sources.base import Source
from tidemill.sources.delivery import Delivery
from tidemill.streams.definition.message import MessageFailure
from tidemill.streams.reducer.dedupe import MessageIds
from tidemill.streams.reducer.fair_share import NEVER, FairShare, Lane, interleaved
from tidemill.streams.reducer.history import note_attempts, note_loss
from tidemill.streams.reducer.key_order import KeyOrder
from tidemill.streams.reducer.lane_limits import apply_limits, what_holds
from tidemill.streams.reducer.outcomes import MessageOutcome, NewDeadLetter, decide_outcome, lost
from tidemill.streams.reducer.source_limits import Choice, SourceCounts, SourceLimits, most_slots
from tidemill.streams.reducer.suspects import choose_suspects
from tidemill.streams.reducer.waiting import WaitingMessages, prepare, take_matching


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
        self._committing: dict[int, Delivery] = {}
        self.accepting = True
        self._max = max_concurrency
        self._retry = retry
        self._max_losses = max_losses
        self.ids = MessageIds(len(sources), dedup_window, max_concurrency)
        self._waiting = [WaitingMessages() for _ in sources]
        self.limits = [
            SourceLimits(source.weight, source.enabled, source.max_qps, source.burst, source.max_concurrency)
            for source in sources
        ]
        self._lanes = [
            Lane(source.name, waiting, held=waiting.fresh)
            for source, waiting in zip(sources, self._waiting, strict=True)
        ]
        self._is_plain = [not (each.delay or each.ordered or each.message_id) for each in sources]
        self._index = {id(lane): index for index, lane in enumerate(self._lanes)}
        self._fair = FairShare(self._lanes, now=now)
        self._most: list[int] = []
        for index in range(len(sources)):
            self._apply_limits(index, now)
        self._suspects, self._quarantined = deque[Delivery](), set[int]()
        self._later: list[tuple[float, int, Delivery]] = []
        self._keys = KeyOrder(len(sources))
        self._tickets = 0

    # -- arrivals ---------------------------------------------------------------------------------

    def arrived(self, index: int, deliveries: Sequence[Delivery], wall: float = 0.0) -> None:
        """Take messages that a source has delivered."""
        prepare(self.sources[index], index, deliveries, wall)
        self.counts[index].arrived += len(deliveries)
        self._waiting[index].put(deliveries)

    def due_again(self, deliveries: Sequence[Delivery], wall: float = 0.0) -> None:
        """Take stored messages that are due for another attempt."""
        for delivery in deliveries:
            delivery.arrived = wall
            self._waiting[delivery.source].put_again((delivery,))

    def waiting(self, index: int) -> int:
        """How many messages of a source were read ahead and are not in flight."""
        return len(self._waiting[index].fresh) + self._keys.held[index]

    def waiting_size(self, index: int) -> int:
        """The size of the messages that were read ahead, in bytes."""
        return self._waiting[index].size

    def waiting_again(self, index: int) -> int:
        """How many stored messages of a source are here for another attempt and not in flight."""
        return len(self._waiting[index].again)

    def waiting_again_size(self, index: int) -> int:
        return self._waiting[index].again_size

    def backlog(self, index: int) -> int:
        """How many messages of a source could be sent if its limits and slots allowed it."""
        return len(self._waiting[index])

    def waiting_for_key(self, index: int) -> int:
        """How many messages of a source wait behind another one of their key."""
        return self._keys.held[index]

    @property
    def busy(self) -> int:
        """How many messages are in flight, including those whose outcome is being stored."""
        return len(self.flights) + len(self._committing)

    def count_busy(self, matches: Callable[[Delivery], bool]) -> int:
        """How many of the messages that match are in flight, or have an outcome that is being stored."""
        return sum(map(matches, self.flights.values())) + sum(map(matches, self._committing.values()))

    @property
    def unfinished(self) -> int:
        """How many messages a drain still has to wait for."""
        return self.busy + sum(self._lanes[each.source].enabled for each in self._suspects)

    @property
    def has_suspects(self) -> bool:
        """Whether messages wait for the quarantine engine, or run there."""
        return bool(self._suspects or self._quarantined)

    def suspects(self) -> list[Delivery]:
        """The messages that wait for the quarantine engine or run there. May be called in another thread."""
        running = [self.flights.get(ticket) for ticket in list(self._quarantined)]
        return [*list(self._suspects), *(each for each in running if each is not None)]

    def places(self) -> Iterator[tuple[str, Delivery]]:
        """Every message that is here, with where it is; those of a source that wait, in their order."""
        yield from (("in_flight", each) for each in self.flights.values())
        yield from (("committing", each) for each in self._committing.values())
        yield from (("quarantine", each) for each in self._suspects)
        yield from (("retry", delivery) for _, _, delivery in self._later)
        for waiting in self._waiting:
            yield from (("waiting", each) for each in waiting)
        yield from (("key", each) for each in self._keys)

    def waits_for(self, index: int, now: float) -> str:
        """What keeps the messages of a source that could be sent: its limits, a free slot, or nothing but the order."""
        room, free = self._most[index] - self.in_flight[index], self._max - self.busy
        return "resume" if not self.accepting else what_holds(self._lanes[index], room, free, now)

    # -- sending ----------------------------------------------------------------------------------

    def choose(self, now: float, wall: float, *, quarantine: bool = False) -> Choice:
        """Choose messages for the free slots, and suspects if the quarantine engine is ready."""
        choice = Choice([], [], [])
        while self.accepting and self._later and self._later[0][0] <= now:
            _, _, delivery = heapq.heappop(self._later)
            self._waiting[delivery.source].first.append(delivery)
        free = self._max - self.busy
        if quarantine and self._suspects and not self._quarantined and free > 0:
            self._send_suspects(choice, free, now)
            free -= len(choice.suspects)
        while free > 0 and self.accepting:
            for lane, most, under_way in zip(self._lanes, self._most, self.in_flight, strict=True):
                lane.in_flight = under_way
                lane.room = max(0, most - under_way)
            picks = self._fair.pick(free, now)
            if not picks:
                break
            bounds = [len(choice.send)]
            for lane, count in picks:
                self._take(lane, count, choice, now, wall)
                bounds.append(len(choice.send))
            choice.send[bounds[0] :] = interleaved(choice.send, bounds)
            free -= bounds[-1] - bounds[0]
        return choice

    def wakes_at(self, now: float) -> float:
        """When to choose again if nothing happens before."""
        quarantine = NEVER
        if self._suspects and not self._quarantined:
            quarantine = min(self._admitted_at(each, now) for each in self._suspects)
        if not self.accepting:
            return quarantine  # A drain waits for suspects.
        return min(self._later[0][0] if self._later else NEVER, self._fair.wakes_at(now), quarantine)

    def _take(self, lane: Lane, count: int, choice: Choice, now: float, wall: float) -> None:
        """Send up to `count` messages of a lane. Messages that need no work are no part of them."""
        index = self._index[id(lane)]
        source, waiting = self.sources[index], self._waiting[index]
        delay = float(source.delay)  # pyright: ignore[reportArgumentType]
        before = len(choice.send)
        if self._is_plain[index] and not waiting.again:
            self._send_plain(index, count, choice.send)
        while len(choice.send) - before < count:
            if waiting.first:
                self._send(waiting.first.popleft(), choice.send)
                continue
            delivery = waiting.pop(only_again=lane.held_until > now)
            if delivery is None:
                break
            if delivery.deadline is not None and delivery.deadline <= wall:
                self.counts[index].expired += 1
                choice.ack.append(delivery)
                continue
            if delay and delivery.retry_row is None:
                due = min(delivery.at, delivery.arrived) + delay  # A producer's clock may be ahead.
                if due > wall:
                    waiting.put_back((delivery,))
                    waiting.size += len(delivery.payload)
                    lane.held_until = now + due - wall
                    continue
            if delivery.id is not None and self._is_duplicate(delivery, choice, now):
                continue
            if self._is_ordered(delivery):
                if not self._keys.enter(delivery, now):
                    waiting.size += len(delivery.payload)
                    continue
                if delivery.not_before > wall:
                    self._wait(delivery, now + delivery.not_before - wall)
                    continue
            self._send(delivery, choice.send)
        if lane.bucket is not None:
            lane.bucket.take(len(choice.send) - before, now)

    def _send_plain(self, index: int, count: int, sent: list[tuple[int, Delivery]]) -> None:
        """Send fresh messages that nothing has to be asked of, quickly, up to the first that is not so."""
        waiting, flights, ticket = self._waiting[index], self.flights, self._tickets
        fresh, size = waiting.fresh, 0
        for _ in range(min(count, len(fresh))):
            delivery = fresh[0]
            if delivery.deadline is not None or delivery.id is not None:
                break
            fresh.popleft()
            size += len(delivery.payload)
            ticket += 1
            flights[ticket] = delivery
            sent.append((ticket, delivery))
        number, self._tickets = ticket - self._tickets, ticket
        waiting.size -= size
        self.in_flight[index] += number
        self.counts[index].sent += number

    def _is_duplicate(self, delivery: Delivery, choice: Choice, now: float) -> bool:
        if self.ids.was_finished(delivery, now):
            choice.ack.append(delivery)
        elif not self.ids.follows(delivery):
            return False
        self.counts[delivery.source].duplicates += 1
        return True

    def _is_ordered(self, delivery: Delivery) -> bool:
        """Whether messages of its key wait for it; a message that was stored for a retry no longer holds its key."""
        return self.sources[delivery.source].ordered and delivery.key is not None and delivery.retry_row is None

    def _send_suspects(self, choice: Choice, free: int, now: float) -> None:
        """Send suspects that may run together, the least suspected ones first, within the limits of their sources."""
        admitted = [each for each in self._suspects if self._admitted_at(each, now) <= now]
        room = [most - under_way for most, under_way in zip(self._most, self.in_flight, strict=True)]
        group = choose_suspects(admitted, self._lanes, room, free, now)
        chosen = {id(each) for each in group}
        self._suspects = deque(each for each in self._suspects if id(each) not in chosen)
        for delivery in group:
            self._send(delivery, choice.suspects)
        self._quarantined = {ticket for ticket, _ in choice.suspects}

    def _admitted_at(self, delivery: Delivery, now: float) -> float:
        """When the limits of its source let a suspect through."""
        lane = self._lanes[delivery.source]
        if not lane.enabled:
            return NEVER
        return now if lane.bucket is None else lane.bucket.ready_at(now)

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
                continue  # Another engine has answered the message.
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

    def failed(
        self, ticket: int, failures: Sequence[MessageFailure], *, engine: str = "", wall: float = 0.0
    ) -> MessageOutcome | None:
        """Some plans failed; returns the outcome to store before `committed`, or None if it is no longer ours."""
        delivery = self._end_flight(ticket)
        if delivery is None:
            return None
        self._committing[id(delivery)] = delivery
        delivery.suspicions = 0
        self.counts[delivery.source].failed += 1
        note_attempts(delivery, failures, engine, wall)
        return decide_outcome(delivery, failures, self._retry, stays=self._is_ordered(delivery))

    def give_up(self, ticket: int, why: str, kind: str, error: str) -> MessageOutcome | None:
        """Further attempts would not help; returns the outcome to store before `committed`."""
        delivery = self._end_flight(ticket)
        if delivery is None:
            return None
        self._committing[id(delivery)] = delivery
        return MessageOutcome(delivery, dead=NewDeadLetter(why, delivery.attempt, delivery.plans, kind, error))

    def hold(self, ticket: int) -> MessageOutcome | None:
        """It has succeeded, and its outbox must be stored before `committed`."""
        delivery = self._end_flight(ticket)
        if delivery is None:
            return None
        self._committing[id(delivery)] = delivery
        return MessageOutcome(delivery)

    def committed(self, outcome: MessageOutcome, now: float) -> list[Delivery]:
        """Its outcome is stored; returns the messages to acknowledge."""
        self._committing.pop(id(outcome.delivery), None)
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
        self._committing.pop(id(outcome.delivery), None)
        self._release_followers(outcome.delivery)
        self._finish(outcome.delivery, now, succeeded=False, acks=[])

    def engine_died(
        self, tickets: Iterable[int], why: str, *, alone: bool, engine: str = "", wall: float = 0.0
    ) -> list[MessageOutcome]:
        """An engine died while running these: they run in quarantine.

        If it ran only one, that is a loss of this message, which is given up if that has happened too often.
        """
        given_up: list[MessageOutcome] = []
        for ticket in sorted(tickets):
            delivery = self._end_flight(ticket)
            if delivery is None:
                continue
            note_loss(delivery, why, engine, wall, alone=alone)
            delivery.losses += alone
            delivery.suspicions = suspected_again(delivery.suspicions, alone=alone)
            self.counts[delivery.source].lost += alone
            if delivery.losses >= self._max_losses:
                self._committing[id(delivery)] = delivery
                given_up.append(lost(delivery, why))
            else:
                self._suspects.append(delivery)
        return given_up

    def give_back(self) -> list[Delivery]:
        """Remove and return all unfinished messages; their sources will deliver them again."""
        back = [*self.flights.values(), *self._suspects, *(delivery for _, _, delivery in self._later)]
        for waiting in self._waiting:
            back += waiting.clear()
        back += self._keys.clear()
        back += [follower for delivery in back for follower in delivery.followers or ()]
        self.flights.clear()
        self._suspects.clear()
        self._later.clear()
        self.ids.forget_all()
        self._quarantined.clear()
        self.in_flight = [0] * len(self.sources)
        return back

    def drop_waiting(self, is_lost: Callable[[Delivery], bool], now: float) -> None:
        """Remove waiting messages that belong to another reader now."""
        dropped = self._keys.drop(is_lost)
        for delivery in dropped:
            self._waiting[delivery.source].size -= len(delivery.payload)
        later = [delivery for _, _, delivery in self._later if is_lost(delivery)]
        for waiting in self._waiting:
            dropped += waiting.remove(is_lost)
            later += take_matching(waiting.first, is_lost)
        self._later = [entry for entry in self._later if not is_lost(entry[2])]
        heapq.heapify(self._later)
        for delivery in (*dropped, *later):
            self._release_followers(delivery, is_lost)
            self.ids.forget(delivery)
        for delivery in later:
            self._finish(delivery, now, succeeded=False, acks=[])

    # -- changes by operators ---------------------------------------------------------------------

    def set_source(
        self, index: int, now: float, *, weight: float, max_qps: float | None, enabled: bool, burst: float | None = None
    ) -> None:
        """Change the weight and the limit of a source, and switch it on or off."""
        limits = self.limits[index]
        limits.weight, limits.enabled = weight, enabled
        limits.set_rate(max_qps, burst)
        self._apply_limits(index, now)

    def set_part(self, index: int, now: float, *, rate: float | None, slots: int | None) -> None:
        """Change the part of a source's limits that this dispatcher may use."""
        limits = self.limits[index]
        if limits.awaits_part:
            self._lanes[index].bucket = None  # The first part of a limit begins with its burst.
        limits.qps_part, limits.concurrency_part, limits.awaits_part = rate, slots, False
        self._apply_limits(index, now)

    def await_part(self, index: int, now: float) -> None:
        """Hold messages back until the limits of their source have been divided among the dispatchers."""
        self.limits[index].await_part()
        self._apply_limits(index, now)

    def _apply_limits(self, index: int, now: float) -> None:
        apply_limits(self._lanes[index], self.limits[index], now)
        total = sum(each.weight for each in self.limits if each.enabled) or 1.0
        self._most = [most_slots(each, min(1.0, each.weight / total), self._max) for each in self.limits]

    def _end_flight(self, ticket: int) -> Delivery | None:
        self._quarantined.discard(ticket)
        delivery = self.flights.pop(ticket, None)
        if delivery is not None:
            self.in_flight[delivery.source] -= 1
        return delivery

    def _finish(self, delivery: Delivery, now: float, *, succeeded: bool, acks: list[Delivery]) -> None:
        """Remember its id, release the next message of its key, and acknowledge its duplicates."""
        if succeeded:
            self.ids.finish(delivery, now)
        self.ids.forget(delivery)
        if delivery.followers:
            acks += delivery.followers
        if not self._is_ordered(delivery):
            return
        if self.accepting:
            following = self._keys.leave(delivery, now)
            if following is not None:
                waiting = self._waiting[following.source]
                waiting.size -= len(following.payload)
                waiting.first.append(following)
        else:  # While draining, the messages behind it go back to those that were read ahead.
            self._waiting[delivery.source].put_back(reversed(self._keys.release_waiting(delivery)))

    def _release_followers(self, delivery: Delivery, is_lost: Callable[[Delivery], bool] = lambda _: False) -> None:
        """Let its duplicates wait by themselves: another reader has it now, but maybe not them."""
        followers, delivery.followers = delivery.followers or (), None
        self._waiting[delivery.source].put([each for each in followers if not is_lost(each)])
