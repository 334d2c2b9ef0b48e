"""Follow a durable run with its internal events: step states, idle and unhandled ones.

Internal events are not stored. They are rebuilt from the journal by the program of the run, and put in order with the
published ones, which are stored with the last tick before each. So a follower in any process sees what it would see of
a run in memory, and a run that is not followed costs nothing more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from tidemill.core.codec import decode
from tidemill.core.errors import PayloadError
from tidemill.core.ticks import Publish
from tidemill.flows.definition.events import InternalDispatchEvent
from tidemill.flows.definition.workflow import AnyWorkflow
from tidemill.flows.encoding.values import encode_packed, unpack
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.flows.reducer.step_ticks import Narrated
from tidemill.flows.runner.event_stream import narration
from tidemill.flows.runner.restore import JournalFold
from tidemill.store.database import Database
from tidemill.store.runs.published import EVENT_GAP, last_published, read_published
from tidemill.store.runs.runs import read_snapshot, read_ticks, show_run
from tidemill.store.runs.versions import flow_definitions

TICKS_AT_ONCE = 500
EVENTS_AT_ONCE = 1000

#: An event with the number from which a stream resumes after it.
NumberedEvent = tuple[int, Any]


class EventHistory:
    """Puts the published and the internal events of one run in the order of a run in memory.

    `tick` is the last tick that it has folded, `number` the number of its last event.
    """

    def __init__(self, fold: JournalFold, *, tick: int = 0, number: int = 0) -> None:
        self.tick = tick
        self.number = number
        self._fold = fold
        self._published: deque[tuple[int, int, bytes]] = deque()

    def add(self, number: int, tick: int, data: bytes) -> None:
        """Add a published event, with its number and the last tick before it."""
        self._published.append((number, tick, data))

    def fold(self, seq: int, data: bytes) -> Iterator[NumberedEvent]:
        """Yield the events up to a tick, and those of the tick itself."""
        yield from self._published_before(seq)
        for command in self._fold.add(data)[1]:
            if type(command) is not Publish:
                continue
            event = command.event
            if type(event) is Narrated:
                yield self._internal(narration(event))
            elif isinstance(event, InternalDispatchEvent):
                yield self._internal(event)
            elif self._published and self._published[0][2] == encode_packed(event):
                yield self._next_published()  # It is stored with the last tick of its turn, which may be a later one.
        self.tick = seq

    def rest(self) -> Iterator[NumberedEvent]:
        """Yield what was published after the last tick."""
        yield from self._published_before(self.tick + 1)

    def _published_before(self, tick: int) -> Iterator[NumberedEvent]:
        while self._published and self._published[0][1] < tick:
            yield self._next_published()

    def _next_published(self) -> NumberedEvent:
        self.number, _, data = self._published.popleft()
        with self._fold.reading():
            return self.number, unpack(decode(data))

    def _internal(self, event: Any) -> NumberedEvent:
        if (self.number + 1) % EVENT_GAP:  # Otherwise there are too many: a stream that resumes here repeats some.
            self.number += 1
        return self.number, event


class RunFollower:
    """Reads the journal and the published events of a run as they are stored."""

    def __init__(self, database: Database, run_id: int, workflow: AnyWorkflow, *, after: int) -> None:
        self._database = database
        self._run_id = run_id
        self._workflow = workflow
        self._after = after
        self._read_up_to = 0
        self._history: EventHistory | None = None

    async def news(self, last_tick: int) -> AsyncIterator[NumberedEvent]:
        """Yield the events since the last call, up to this tick at least."""
        history = self._history
        while history is None or history.tick < last_tick:
            if history is None:
                history = self._history = await self._begin()
            ticks = await read_ticks(self._database, self._run_id, after=history.tick, limit=TICKS_AT_ONCE)
            if ticks[0]["seq"] > history.tick + 1 if ticks else history.tick < last_tick:
                self._after, history = max(self._after, history.number), None  # The run has continued as new.
                continue
            await self._read_published(history, ticks[-1]["seq"] if ticks else history.tick)
            for row in ticks:
                for each in self._fold(history, row):
                    if self._is_new(each):
                        yield each
        await self._read_published(history, history.tick)
        for each in history.rest():
            if self._is_new(each):
                yield each

    def _is_new(self, each: NumberedEvent) -> bool:
        return each[0] > self._after or (each[0] == self._after and (each[0] + 1) % EVENT_GAP == 0)

    def _fold(self, history: EventHistory, row: Any) -> list[NumberedEvent]:
        try:
            return list(history.fold(row["seq"], row["data"]))
        except PayloadError as error:
            raise WorkflowRuntimeError(
                f"the internal events of run r{self._run_id} cannot be rebuilt here, because its journal does not fit "
                f"this version of its workflow ({error}): follow it from a process that has the version of the run, or "
                "without expose_internal"
            ) from error

    async def _begin(self) -> EventHistory:
        """Begin with the first tick; with the snapshot, if the first is gone or the stream resumes after it."""
        row = await show_run(self._database, self._run_id)
        definitions = await flow_definitions(self._database, row["kind"])
        found = await read_snapshot(self._database, self._run_id)
        if found is not None:
            tick, snapshot = found
            last = await last_published(self._database, self._run_id, tick=tick)
            first = await read_ticks(self._database, self._run_id, limit=1)
            is_later = self._after // EVENT_GAP > last // EVENT_GAP
            if is_later or not first or first[0]["seq"] > 1:
                self._read_up_to = min(self._after, last)
                fold = JournalFold(
                    self._workflow, definitions, narrates=True, snapshot=snapshot, version=row["version"]
                )
                return EventHistory(fold, tick=tick, number=last if is_later else self._after)
        self._read_up_to = 0
        return EventHistory(JournalFold(self._workflow, definitions, narrates=True))

    async def _read_published(self, history: EventHistory, tick: int) -> None:
        """Read what was published up to a tick and by the turn after it, which may have begun before the tick."""
        turn: int | None = None
        while True:
            rows = await read_published(self._database, self._run_id, after=self._read_up_to, limit=EVENTS_AT_ONCE)
            for row in rows:
                history.add(row["number"], row["tick"], row["data"])
                self._read_up_to = row["number"]
                if turn is None and row["tick"] > tick:
                    turn = row["tick"]
            if len(rows) < EVENTS_AT_ONCE or (turn is not None and rows[-1]["tick"] > turn):
                return
