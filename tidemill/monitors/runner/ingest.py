"""Ingests events: backfills the past of new entities, then reads everything new since the cursor.

A page is stored in one statement together with the cursor or the position of the backfill. After a crash the next
process reads again from the last stored position, and events that were stored already are dropped by their ids.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
import structlog

from tidemill.core.codec import decode, storable
from tidemill.core.errors import ConfigError
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.reducer.cursor import SourceCursor, moved
from tidemill.monitors.reducer.fold import describe
from tidemill.monitors.reducer.lateness import Lateness
from tidemill.monitors.runner.callbacks import Callbacks
from tidemill.monitors.runner.evaluate import shard_of
from tidemill.sources.base import (
    HistoryReader,
    PageReader,
    PartitionReader,
    RecordPage,
    Source,
    SourceError,
    SourceEvent,
    read_event,
)
from tidemill.store.database import Database, Executor
from tidemill.store.monitors.monitors import (
    CursorMove,
    NewEvents,
    Stored,
    add_entities,
    ingest,
    keep_lateness,
    read_lateness,
    start_monitor,
)
from tidemill.store.monitors.problems import note_problems
from tidemill.store.monitors.roster import move_backfill, next_backfills
from tidemill.store.monitors.source_positions import move_parts, read_parts, share_of_part

log = structlog.get_logger("tidemill.monitors")

T = TypeVar("T")

PAGES_A_TICK = 40
BACKFILLS_AT_ONCE = 8
BACKFILL_TRIES = 5
PROBE_EVERY = 60.0
CHEAP_PAGES = 2
KEPT_BUFFERS = 31 << 20
MOST_NAME = 600  # characters of an id or an entity: both are in indexes
MOST_REPORTED = 10_000
NEWS = 60.0  # what is not older than this when an entity is first followed is no history


class EntityBackfill(msgspec.Struct, omit_defaults=True):
    """How far the past of an entity has been read."""

    since: float
    token: str | None = None
    pages: int = 0
    events: int = 0
    failures: int = 0


class Ingested(msgspec.Struct, frozen=True):
    """The result of a poll: the number of new events, and up to when the source has been read, if not up to now."""

    count: int
    read_until: float | None = None
    parts: int = 0
    """The number of partitions of the source, each of which is read up to a time of its own."""


class Ingest:
    """Reads the source of a monitor into its log."""

    def __init__(
        self,
        database: Database,
        monitor: Monitor,
        reader: PageReader | PartitionReader,
        callbacks: Callbacks,
        reached: Callable[[str], None],
    ) -> None:
        self._database = database
        self._monitor = monitor
        self._reader = reader
        self._callbacks = callbacks
        source = monitor.source
        self._id, self._time = (source.id, source.time) if isinstance(source, Source) else ("id", ("at",))
        self._reached = reached
        self.lateness: Lateness | None = None
        """None before the first poll of this process."""
        self._started_at: float | None = None
        self._known: set[str] = set()
        self._failed: list[str] = []
        self._reported: OrderedDict[str, None] = OrderedDict()
        self._probe_at = 0.0
        self._next_backfill = 0.0

    async def read_pages(self, reader: PageReader, cursor: SourceCursor, now: float) -> Ingested:
        """Store all new events. Raises `SourceError` if the source fails."""
        least, most = reader.overlap, reader.overlap_most
        started = await self._start(now)
        lateness = await self._known_lateness()
        probing = cursor.at is not None and now >= self._probe_at and most > least
        if cursor.at is None:
            since = now - self._monitor.backfill
        elif probing:
            # Sometimes further back, to find events that are later than is usual, or of a clock that was set back.
            since = cursor.at - most
        else:
            since = cursor.at - lateness.overlap(now, least=least, most=most)
        began, seen, count, pages, read_until = cursor, [], 0, 0, None
        async for page in _pages_of(reader.pages(since, cursor.token, now)):
            pages += 1
            events, unreadable = self._read(page, now)
            if page.complete:
                cursor = moved(cursor, [*seen, *events], now, page.token)
            elif events:
                seen.append(max(events, key=lambda event: event.at))
            move = CursorMove(cursor.at, cursor.id, cursor.token) if page.complete else CursorMove()
            stored = await self._store(events, unreadable, move, began, started - NEWS)
            late = [] if began.at is None else [began.at - at for at in stored.behind]
            lateness.observe(len(page.records), stored.count, late)
            count += stored.count
            self._reached("ingest")
            if page.complete and pages >= PAGES_A_TICK:
                read_until = cursor.at  # There may be more: entities whose events are not read yet are not silent.
                break
        if probing:
            self._probe_at = now + PROBE_EVERY * max(1, pages // CHEAP_PAGES)
        if lateness.end_poll(now) and most > least:
            await keep_lateness(self._database, self._monitor.name, lateness.usual(now), lateness.minutes)
        known = (read_until, getattr(reader, "read_until", None))
        return Ingested(count, min((each for each in known if each is not None), default=None))

    async def _start(self, now: float) -> float:
        """When the monitor was first followed; what happened long before that is history."""
        if self._started_at is None:
            self._started_at = await start_monitor(self._database, self._monitor.name, now)
        return self._started_at

    async def _known_lateness(self) -> Lateness:
        """How late events are, as the process before this one has left it."""
        if self.lateness is None:
            self.lateness = Lateness(await read_lateness(self._database, self._monitor.name))
        return self.lateness

    def overlap(self, now: float) -> float:
        """How far back the next poll reads."""
        lateness = self.lateness or Lateness()
        return lateness.overlap(now, least=self._reader.overlap, most=self._reader.overlap_most)

    async def read_partitions(self, reader: PartitionReader, owner: int, shares: Sequence[int], now: float) -> Ingested:
        """Store all new events of the partitions of these shares, each page together with its positions."""
        parts, name = await _answer_of(reader.partitions()), self._monitor.name
        own = [part for part in range(parts) if share_of_part(part) in set(shares)]
        positions: dict[int, int | None] = {**dict.fromkeys(own), **await read_parts(self._database, name, own)}
        past = await self._start(now) - NEWS
        count = pages = 0
        async for page in _pages_of(reader.read(positions, now)):
            events, unreadable = self._read(page, now)
            new = await self._columns(events)
            move = CursorMove(at=min(now, max(new.times))) if new.times else CursorMove()
            async with self._database.transaction() as connection:
                count += (await ingest(self._database, connection, name, new, move, past=past)).count
                await move_parts(self._database, connection, name, owner, page.positions, page.read_until)
                await self._note_unreadable(connection, unreadable)
            self._reached("ingest")
            pages += 1
            if pages >= PAGES_A_TICK:
                break
        return Ingested(count, parts=parts)

    def _read(self, page: RecordPage, now: float) -> tuple[list[SourceEvent], list[str]]:
        """The events of a page, and why each of the others cannot be read."""
        events: list[SourceEvent] = []
        unreadable: list[str] = []
        for record in page.records:
            try:
                events.append(read_event(record, self._id, self._time, by_place=page.by_place, now=now))
            except Exception as error:  # noqa: BLE001 - records come from outside
                why = error if isinstance(error, ValueError) else describe(error)
                unreadable.append(f"{why}: {record.payload[:120].decode(errors='replace')}")
            else:
                if len(events[-1].id) > MOST_NAME:
                    unreadable.append(f"its id is longer than {MOST_NAME:,} characters: {events.pop().id[:120]}")
        return events, unreadable

    async def _store(
        self,
        events: Sequence[SourceEvent],
        unreadable: Sequence[str],
        move: CursorMove,
        began: SourceCursor,
        past: float,
    ) -> Stored:
        new = await self._columns(events)
        async with self._database.acquire() as connection:
            stored = await ingest(self._database, connection, self._monitor.name, new, move, behind=began.at, past=past)
            await self._note_unreadable(connection, unreadable)
        return stored

    async def _note_unreadable(self, connection: Executor, unreadable: Sequence[str]) -> None:
        """Store why events were skipped: those that cannot be read, and those for which `entity` has failed."""
        problems = [("source", "", storable(f"an event was skipped: {why}")) for why in unreadable]
        problems += [("entity", "", storable(why)) for why in self._failed]
        self._failed.clear()
        await note_problems(self._database, connection, self._monitor.name, problems)

    async def _columns(self, events: Sequence[SourceEvent]) -> NewEvents:
        """Events as columns: each id once, without those that are about no entity. New entities are added first."""
        monitor = self._monitor
        about: dict[str, tuple[SourceEvent, str]] = {}
        without_entity = 0
        for event in events:
            entity = self._entity(event)
            if entity is None:
                without_entity += 1
            else:
                about[event.id] = (event, entity)
        self._callbacks.end()
        if monitor.roster == "open":
            newcomers = sorted({entity for _, entity in about.values()} - self._known)
            if newcomers:
                await add_entities(self._database, monitor.name, newcomers, [shard_of(each) for each in newcomers])
                self._known.update(newcomers)
        kept = list(about.values())
        return NewEvents(
            [storable(event.id) for event, _ in kept],
            [event.at for event, _ in kept],
            [entity for _, entity in kept],
            [event.raw for event, _ in kept],
            without_entity,
            [
                (storable(event.id), event.at, event.trace, event.origin)
                for event, _ in kept
                if event.trace is not None or event.origin is not None
            ],
        )

    def _entity(self, event: SourceEvent) -> str | None:
        try:
            self._callbacks.begin("entity", event.id)
            found = self._monitor.entity_of(event.data)
            if found is None:
                return None
            if len(found) > MOST_NAME:
                raise ValueError(f"the entity's name is longer than {MOST_NAME:,} characters")
            return storable(found)
        except BaseException as error:  # noqa: BLE001 - user code: the other events go on
            if event.id not in self._reported:  # The overlap reads the event again: report it once.
                self._reported[event.id] = None
                self._failed.append(f"event {event.id} was skipped: {describe(error)}")
                if len(self._reported) > MOST_REPORTED:
                    self._reported.popitem(last=False)
            return None

    # -- backfills --------------------------------------------------------------------------------

    async def backfill(self, now: float) -> int:
        """Read some of the past of new entities, within the rate limit; returns how many events were new."""
        if now < self._next_backfill:
            return 0
        rows = await next_backfills(self._database, self._monitor.name, BACKFILLS_AT_ONCE)
        count, pages = 0, 0
        for row in rows:
            plan = decode(row["backfill"], EntityBackfill)
            reader = self._reader
            if not isinstance(reader, HistoryReader):
                async with self._database.acquire() as connection:
                    await move_backfill(self._database, connection, self._monitor.name, row["entity"], None)
                continue
            pages += 1
            try:
                count += await self._backfill_one(reader, row["entity"], plan, now)
            except (SourceError, ConfigError) as error:
                await self._backfill_failed(row["entity"], plan, str(error))
            self._reached("backfill")
        self._next_backfill = now + pages / self._monitor.backfill_rate
        return count

    async def _backfill_failed(self, entity: str, plan: EntityBackfill, error: str) -> None:
        """Schedule a retry, up to a limit: the backfill of one entity must not delay the others."""
        plan.failures += 1
        tried = plan if plan.failures < BACKFILL_TRIES else None
        async with self._database.transaction() as connection:
            await move_backfill(self._database, connection, self._monitor.name, entity, tried)
            problems = [("backfill", entity, storable(error))]
            await note_problems(self._database, connection, self._monitor.name, problems)

    async def _backfill_one(self, reader: HistoryReader, entity: str, plan: EntityBackfill, now: float) -> int:
        """Read one page of the past of an entity, and store it together with the position of the backfill."""
        pages = _pages_of(reader.history(entity, plan.since, plan.token))
        page = await anext(pages, None)
        follows = page is not None and await anext(pages, None) is not None
        name = self._monitor.name
        async with self._database.transaction() as connection:
            count = 0
            if page is not None:
                events, unreadable = self._read(page, now)
                new = await self._columns(events)
                stored = await ingest(self._database, connection, name, new, CursorMove(), past=now - NEWS)
                count = stored.count
                await self._note_unreadable(connection, unreadable)
            plan = EntityBackfill(plan.since, page.token if page else None, plan.pages + 1, plan.events + count)
            await move_backfill(self._database, connection, name, entity, plan if follows else None)
        log.info("backfill", monitor=name, entity=entity, pages=plan.pages, events=plan.events, done=not follows)
        return count


def keep_buffers() -> None:
    """Make the C library reuse the buffers of pages instead of mapping new memory for each page.

    When a large block is freed, glibc raises the size up to which it reuses blocks. Other C libraries ignore this.
    """
    bytearray(KEPT_BUFFERS)


async def _pages_of(pages: AsyncIterator[RecordPage]) -> AsyncIterator[RecordPage]:
    """The pages of a source; every exception of it becomes a `SourceError`."""
    while True:
        try:
            page = await _answer_of(anext(pages))
        except StopAsyncIteration:
            return
        yield page


async def _answer_of(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except (StopAsyncIteration, SourceError):
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if not isinstance(error, Exception) and task is not None and task.cancelling():
            raise asyncio.CancelledError from error  # Also the SystemExit of a task that ends the process.
        raise SourceError(describe(error)) from error
