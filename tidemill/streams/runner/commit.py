"""Commits the outcomes of messages, many per transaction, before the messages are acknowledged.

Retries, dead letters and outboxes commit together with the position of the source, if that is stored in our database.
While the database is unreachable or full, messages wait here and count as in flight, so that no more are taken than can
be committed. If the connection is lost during a commit, the transaction is repeated, and does nothing if it was
committed: nothing is stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec
import structlog

from tidemill.core.codec import storable
from tidemill.sources.base import ORIGIN_HEADER, Consumer, FencedError, Source, origin_of
from tidemill.sources.delivery import Delivery
from tidemill.store.database import Database, Executor
from tidemill.store.database_errors import is_transient
from tidemill.store.streams import streams as store
from tidemill.store.streams.commits import OnceCommitter, drop_committers
from tidemill.store.streams.dead_letters import add_dead_letters
from tidemill.store.streams.handed_over import HandedOver, add_handed_over
from tidemill.store.streams.seen import add_seen
from tidemill.streams.definition.message import OutboxItem
from tidemill.streams.engine.answers import describe
from tidemill.streams.reducer.outcomes import MessageOutcome, NewDeadLetter, RetryLater
from tidemill.streams.runner.outbox import InterruptedStatementError, StateWriter, store_outbox

log = structlog.get_logger("tidemill.streams")

TOGETHER = 500
MOST_NAME = 200  # characters that are kept of a statement
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

#: How often in a row a connection may be lost during a statement of a message, until the statement is to blame.
_MOST_INTERRUPTIONS = 8


class PendingCommit(msgspec.Struct):
    """One message to commit: its outcome and its outbox."""

    outcome: MessageOutcome
    outbox: tuple[OutboxItem, ...] = ()

    @property
    def delivery(self) -> Delivery:
        return self.outcome.delivery


class OutcomeCommitter(msgspec.Struct, eq=False, kw_only=True):
    """Stores outcomes; calls `on_committed` when they are stored, `on_fenced` if another dispatcher has taken over."""

    database: Database
    stream: str
    sources: Sequence[Source]
    consumers: Sequence[Consumer]
    states: StateWriter | None = None
    on_committed: Callable[[list[PendingCommit]], None]
    on_fenced: Callable[[list[PendingCommit]], None]
    waiting: list[PendingCommit] = []
    wakeup: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _committers: list[OnceCommitter] = []
    _idle: list[OnceCommitter] = []

    def put(self, commit: PendingCommit) -> None:
        self.waiting.append(commit)
        self.wakeup.set()

    async def run(self) -> None:
        """Commit outcomes until cancelled."""
        while True:
            await self.wakeup.wait()
            batch, self.waiting = self.waiting[:TOGETHER], self.waiting[TOGETHER:]
            if not self.waiting:
                self.wakeup.clear()
            await self._commit(batch)

    async def store_live_outbox(self, outbox: Sequence[OutboxItem]) -> None:
        """Store the outbox of a live request, which has no source and no position."""

        async def store(connection: Executor) -> None:
            await self._store_outbox(connection, outbox, exact=True)

        await self._patiently(store, len(outbox))

    async def _commit(self, batch: list[PendingCommit]) -> None:
        try:
            await self._patiently(lambda connection: self._store(connection, batch), len(batch))
        except FencedError as error:
            if len(batch) > 1:
                await self._one_by_one(batch)
                return
            log.warning("a message belongs to another dispatcher now", why=str(error))
            self.on_fenced(batch)
            return
        except Exception as error:
            if len(batch) > 1:
                await self._one_by_one(batch)
                return
            if not batch[0].outbox:
                raise
            await self._give_up(batch[0], error)
            return
        self.on_committed(batch)

    async def _one_by_one(self, batch: list[PendingCommit]) -> None:
        """One message failed and the transaction was rolled back: commit each by itself."""
        for each in batch:
            await self._commit([each])

    async def _give_up(self, commit: PendingCommit, error: Exception) -> None:
        """Its outbox cannot be stored, and a retry would not help: make it a dead letter."""
        delivery = commit.delivery
        words = f"its outbox cannot be stored: {describe(error)}"
        dead = NewDeadLetter("failed", delivery.attempt, delivery.plans, type(error).__name__, words)
        commit.outcome, commit.outbox = MessageOutcome(delivery, dead=dead), ()
        await self._commit([commit])

    async def _patiently(self, work: Callable[[Executor], Awaitable[None]], messages: int) -> None:
        """Do the work in one transaction, exactly once, waiting for the database if need be."""
        pause, warned, interruptions = _FIRST_PAUSE, False, 0
        committer = self._idle.pop() if self._idle else self._new_committer()
        committer.next()
        while True:
            try:
                async with self.database.transaction() as connection:
                    if await committer.is_new(self.database, connection):
                        await work(connection)
                self._idle.append(committer)
                return
            except Exception as error:
                interruptions = interruptions + 1 if isinstance(error, InterruptedStatementError) else 0
                if interruptions >= _MOST_INTERRUPTIONS or not (interruptions or is_transient(error)):
                    self._idle.append(committer)
                    raise
                if not warned:
                    log.warning("outcomes cannot be stored now: messages wait", error=str(error), messages=messages)
                    warned = True
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    def _new_committer(self) -> OnceCommitter:
        """One more transaction at a time: outcomes have one, and each live request whose outbox is being stored."""
        committer = OnceCommitter()
        self._committers.append(committer)
        return committer

    async def forget(self) -> None:
        """Delete what is stored of its transactions, when there will be no more."""
        await drop_committers(self.database, [each.id for each in self._committers])

    async def _store(self, connection: Executor, batch: list[PendingCommit]) -> None:
        database, stream = self.database, self.stream
        rows = [each.delivery.retry_row for each in batch if each.delivery.retry_row is not None]
        if rows and len(await store.drop_retries(database, connection, rows)) < len(set(rows)):
            raise FencedError("its attempt was finished by another dispatcher")
        outcomes = [each.outcome for each in batch]
        if stays := [self._note_row(each.delivery, each.retry) for each in outcomes if each.retry and each.stays]:
            await store.note_attempts(database, connection, stream, list(zip(*stays, strict=True)))
        if retries := [
            self._retry_row(each.delivery, each.retry) for each in outcomes if each.retry and not each.stays
        ]:
            await store.add_retries(database, connection, stream, list(zip(*retries, strict=True)))
        if dead := [self._dead_row(each.delivery, each.dead) for each in outcomes if each.dead]:
            await add_dead_letters(database, connection, stream, list(zip(*dead, strict=True)))
        if full := [each for each in batch if each.outbox]:
            await self._hand_over(connection, full)
        if ids := [
            (self._name(each.delivery), each.delivery.id) for each in outcomes if each.succeeded and each.delivery.id
        ]:
            await add_seen(database, connection, stream, ids)
        through = [outcome.delivery for outcome in outcomes if not outcome.stays]
        if noted := [(self._name(delivery), delivery.place) for delivery in through if delivery.noted]:
            await store.forget_attempts(database, connection, stream, noted)
        for index, consumer in enumerate(self.consumers):
            mine = [each for each in through if each.source == index and each.retry_row is None]
            if mine and consumer.transactional:
                await consumer.commit(connection, mine)

    async def _hand_over(self, connection: Executor, batch: list[PendingCommit]) -> None:
        """Store the outboxes of messages, and for people what each has handed over."""
        rows: list[HandedOver] = []
        for exact in (True, False):
            mine = [each for each in batch if self._is_exact(each.delivery) is exact]
            outbox = [one for each in mine for one in each.outbox]
            jobs = iter(await self._store_outbox(connection, outbox, exact=exact))
            for each in mine:
                message = (self._name(each.delivery), each.delivery.place, each.delivery.id, origin_of(each.delivery))
                rows += [(*message, one.kind, *handed_over(one, jobs)) for one in each.outbox]
        await add_handed_over(self.database, connection, self.stream, rows)

    async def _store_outbox(self, connection: Executor, outbox: Sequence[OutboxItem], *, exact: bool) -> list[int]:
        if not outbox:
            return []
        return await store_outbox(self.database, connection, self.stream, outbox, exact=exact, states=self.states)

    def _is_exact(self, delivery: Delivery) -> bool:
        """Whether its position is stored in the same transaction."""
        return delivery.retry_row is not None or self.consumers[delivery.source].transactional

    def _name(self, delivery: Delivery) -> str:
        return self.sources[delivery.source].name

    def _note_row(self, delivery: Delivery, retry: RetryLater) -> tuple[Any, ...]:
        return (
            self._name(delivery), delivery.place, retry.delay, retry.attempts, retry.losses, _joined(retry.plans),
            storable(retry.error), history_json(delivery),
        )  # fmt: skip

    def _retry_row(self, delivery: Delivery, retry: RetryLater) -> tuple[Any, ...]:
        return (
            self._name(delivery), delivery.place, retry.delay, retry.attempts, retry.losses, delivery.at,
            delivery.deadline, delivery.id, delivery.key, headers_json(delivery), _joined(retry.plans),
            storable(retry.error), delivery.payload, history_json(delivery),
        )  # fmt: skip

    def _dead_row(self, delivery: Delivery, dead: NewDeadLetter) -> tuple[Any, ...]:
        return (
            self._name(delivery), delivery.place, dead.why, dead.attempts, delivery.at, delivery.id, delivery.key,
            headers_json(delivery), _joined(dead.plans), dead.kind, storable(dead.error), delivery.payload,
            history_json(delivery),
        )  # fmt: skip


def headers_json(delivery: Delivery) -> str | None:
    """Headers as JSON text; bytes that are not valid UTF-8 are replaced."""
    readable = {name: storable(value.decode(errors="replace")) for name, value in delivery.headers or ()}
    if delivery.origin is not None:  # Kept with the message, for its next attempt.
        readable.setdefault(ORIGIN_HEADER, delivery.origin)
    if not readable:
        return None
    return msgspec.json.encode(readable).decode()


def history_json(delivery: Delivery) -> str | None:
    """The failed attempts of a message as JSON text."""
    return None if not delivery.history else msgspec.json.encode(delivery.history).decode(errors="replace")


def handed_over(item: OutboxItem, jobs: Iterator[int]) -> tuple[str | None, str | None]:
    """The name and id of an item, for people; `jobs` gives the ids of the stored jobs."""
    name = storable(item.name[:MOST_NAME])
    match item.kind:
        case "job":
            return name, str(next(jobs))
        case "event":
            return None, item.name
        case "state":
            return name, storable(str(item.key))
        case _:
            return name, None


def _joined(plans: Sequence[str] | None) -> str | None:
    return None if plans is None else ",".join(plans)
