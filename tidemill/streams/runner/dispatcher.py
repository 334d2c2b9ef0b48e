"""The dispatcher: takes messages from sources, hands them to engines, acks them when their work is done.

All decisions are the policy's; this shell moves messages, and sleeps until something happens:

    feeders (one per source) -> policy -> engines -> answers -> policy -> acks, or the settler and then acks

`stop()` once drains: nothing more is taken, what is under way ends and is committed, then it is over, at once when
that is so and at the latest after the drain limit. A second `stop()` ends it now; what was under way is delivered
again. Nothing is acked before its work is done, whatever ends first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from uuid import uuid4

import structlog

from tidemill.core.errors import ConfigError
from tidemill.engine.cancellation import end, is_ending
from tidemill.engine.role import Life, Role
from tidemill.engine.telemetry.meter import Meter
from tidemill.engine.telemetry.meter import MeterReporter as CountReporter
from tidemill.sources.base import Consumer, FencedError, SourceContext
from tidemill.sources.delivery import Delivery
from tidemill.sources.opening import open_consumer
from tidemill.store.database import Database, is_passing
from tidemill.store.notify import ANYTHING
from tidemill.store.streams import streams as store
from tidemill.store.streams.event_log import STREAMS_CHANNEL
from tidemill.streams.definition.message import EngineAnswer
from tidemill.streams.definition.stream import Stream
from tidemill.streams.engine.engine import failure_of
from tidemill.streams.live.requests import LiveRequest
from tidemill.streams.live.serve import serving
from tidemill.streams.reducer.fair_share import NEVER
from tidemill.streams.reducer.reducer import StreamReducer
from tidemill.streams.runner.attempts import Attempts
from tidemill.streams.runner.commit import OutcomeCommitter, PendingCommit
from tidemill.streams.runner.control import StreamControl
from tidemill.streams.runner.engine_pool import EngineHandle, Engines
from tidemill.streams.runner.link import MessageWork, ToDispatcher
from tidemill.streams.runner.prefetch import Prefetch
from tidemill.streams.runner.retries import RetryFeeder
from tidemill.streams.view.report import StreamReporter

log = structlog.get_logger("tidemill.streams")

FLUSH_EVERY = 0.05
PREFETCH = 4000  # messages of a source that wait here, at most
ERROR_PAUSE = (0.2, 5.0)
STOP_ENGINES = 10.0


class Dispatcher:
    """The work of a process that dispatches one stream."""

    def __init__(self, stream: Stream, database: Database, *, target: str | None = None) -> None:
        """`target` is the program or file that declares the stream, for its engines to load."""
        self.stream = stream
        self.channels = {STREAMS_CHANNEL: self._heard}
        self.id = uuid4()
        self.draining = False
        self.policy = StreamReducer(
            stream.sources,
            max_in_flight=stream.max_in_flight,
            retry=stream.retry,
            max_losses=stream.max_losses,
            dedup_window=stream.dedup_window,
            now=time.monotonic(),
        )
        self.engines = Engines(stream, target or stream.declared_in, self)
        self.asking = LiveRequest(stream, self.engines)
        self.control = StreamControl(database, self)
        self.retries = RetryFeeder(database, self)
        self._attempts = Attempts(database, stream.name, [source.name for source in stream.sources])
        self._database = database
        share = stream.prefetch // (len(stream.sources) + 1)
        self._ahead = [Prefetch(max(PREFETCH, 2 * stream.max_in_flight), share) for _ in stream.sources]
        self._news: dict[str, list[Callable[[], None]]] = {}
        context = SourceContext(stream.name, self.id, database, on_lost=self._lose, on_notify=self._on_news)
        self.consumers: list[Consumer] = [open_consumer(source, context) for source in stream.sources]
        self._settler = OutcomeCommitter(
            database,
            stream.name,
            stream.sources,
            self.consumers,
            states=stream.states,
            on_settled=self._settled,
            on_fenced=self._fenced,
        )
        self.meter = Meter()
        self._reporter = StreamReporter(self, database, self.meter)
        self._room = [asyncio.Event() for _ in stream.sources]
        self._to_flush: set[int] = set()
        self._flush_news = asyncio.Event()
        self._turning = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self.life = Life()
        self._feeders: list[asyncio.Task[None]] = []
        self._storing: set[asyncio.Task[None]] = set()

    @property
    def stopping(self) -> bool:
        return self.life.is_stopping

    # -- life -------------------------------------------------------------------------------------

    async def work(self, life: Life) -> None:
        """Open everything, dispatch until stopped, drain, close. Ready when engines are and sources are open."""
        self.life = life
        helpers = [self._spawn(self.engines.run(), "engines")]
        try:
            await self._until(self._engines_ready(), helpers)
            helpers += [
                self._spawn(self._settler.run(), "settler"),
                self._spawn(self._flush(), "flush"),
            ]
            await self.control.obey()
            await self._attempts.forget_old()
            for consumer in self.consumers:
                await self._until(consumer.start(), helpers)
            self._feeders = [
                self._spawn(self._feed(index), f"feed {source.name}")
                for index, source in enumerate(self.stream.sources)
            ]
            self._feeders.append(self._spawn(self.retries.run(), "retries"))
            helpers += [
                self._spawn(self.control.run(), "control"),
                self._spawn(self._reporter.run(), "report"),
            ]
            async with serving(self.stream, self.asking):
                life.ready()
                log.info(
                    "stream is running",
                    stream=self.stream.name,
                    sources=len(self.consumers),
                    engines=self.engines.ready,
                )
                await self._until(life.stopped.wait(), [*helpers, *self._feeders])
                await self._drain(helpers)
        finally:
            await self._close(helpers)

    async def _engines_ready(self) -> None:
        while not self.engines.ready:
            self._idle.clear()
            await self._idle.wait()

    async def _drain(self, helpers: Sequence[asyncio.Task[None]]) -> None:
        """Stop taking, finish what is under way: at most as long as the drain limit, or until asked again."""
        self.draining = True
        self.policy.taking = False
        self.asking.closed = True
        await end(self._feeders)
        began = told = time.monotonic()
        hurry = asyncio.create_task(self.life.hurried.wait())
        try:
            while self.policy.unfinished or self.asking.open:
                left = began + self.stream.drain - time.monotonic()
                if left <= 0 or hurry.done():
                    break
                self._idle.clear()
                idle = asyncio.create_task(self._idle.wait())
                await asyncio.wait([idle, hurry, *helpers], timeout=min(left, 1.0), return_when=asyncio.FIRST_COMPLETED)
                idle.cancel()
                _raise_failed(helpers)
                if time.monotonic() - told >= 1.0:
                    told = time.monotonic()
                    log.info("draining", stream=self.stream.name, left=self.policy.unfinished, limit=f"{left:.0f}s")
        finally:
            hurry.cancel()
        took = time.monotonic() - began
        if self.policy.unfinished:
            log.warning(
                "not everything ended in time: it will be delivered again",
                stream=self.stream.name,
                messages=self.policy.unfinished,
            )
        else:
            log.info("drained", stream=self.stream.name, took=f"{took:.2f}s")

    async def _close(self, helpers: Sequence[asyncio.Task[None]]) -> None:
        finished = not self.policy.unfinished
        if self._timer is not None:
            self._timer.cancel()
        await end(self._feeders)
        engines, others = helpers[:1], helpers[1:]
        await self.engines.stop(STOP_ENGINES if finished else 0.0)
        await end(engines)
        await end([*others, *self._storing])
        back = self.policy.give_back()
        for index, consumer in enumerate(self.consumers):
            consumer.nack([each for each in back if each.source == index and each.retry_row is None])
            if self.life.is_ready:
                await self._quietly(consumer.stop(), f"source {self.stream.sources[index].name} did not close well")
        if self.life.is_ready:
            await self._quietly(self.retries.give_back(back), "kept messages could not be given back")
            await self._quietly(self._attempts.flush(), "notes of attempts stay behind")
            self._reporter.count()
            await self._quietly(self._database.fetch(store.DROP_STATUS, self.id, patience=1.0), "status stays behind")

    async def _until(self, happens: object, helpers: Sequence[asyncio.Task[None]]) -> None:
        """Wait for something, or for the failure of what we live by."""
        waiting = asyncio.ensure_future(happens)  # pyright: ignore[reportArgumentType, reportCallIssue]
        try:
            await asyncio.wait([waiting, *helpers], return_when=asyncio.FIRST_COMPLETED)
            _raise_failed(helpers)
            if waiting.done():
                waiting.result()
        finally:
            waiting.cancel()

    def _spawn(self, work: object, name: str) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=f"stream {name}")  # pyright: ignore[reportArgumentType]

    async def _quietly(self, work: object, complaint: str) -> None:
        """The last words: what they cannot say is said again to whoever comes next."""
        try:
            async with asyncio.timeout(5.0):
                await work  # pyright: ignore[reportGeneralTypeIssues]
        except Exception as error:  # noqa: BLE001 - we are leaving; nothing acked depends on it
            log.warning(complaint, error=str(error) or type(error).__name__)

    # -- messages in ------------------------------------------------------------------------------

    async def _feed(self, index: int) -> None:
        """Keep some messages of a source ready to be sent."""
        source, consumer = self.stream.sources[index], self.consumers[index]
        room, ahead = self._room[index], self._ahead[index]
        pause = ERROR_PAUSE[0]
        while not is_ending():
            while not (most := ahead.room(self.policy.waiting(index), self.policy.waiting_size(index))):
                room.clear()
                await room.wait()
            try:
                deliveries = await consumer.poll(most)
                pause = ERROR_PAUSE[0]
            except Exception as error:
                if isinstance(error, ConfigError):
                    raise
                level = log.warning if is_passing(error) else log.error
                level("source cannot be read now: trying again", source=source.name, error=str(error), after=pause)
                await asyncio.sleep(pause)
                pause = min(ERROR_PAUSE[1], pause * 2)
                continue
            if deliveries:
                if source.ordered:
                    await self._attempts.recall(index, deliveries)
                ahead.learn(deliveries)
                self.policy.arrived(index, deliveries)
                self.kick()

    def kick(self) -> None:
        """Something has happened: decide anew, in the next turn of the loop."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if not self.engines.ready:
            return
        now = time.monotonic()
        choice = self.policy.choose(now, time.time())
        if choice.send:
            self.engines.submit([_work(ticket, delivery) for ticket, delivery in choice.send])
        if choice.ack:
            self._ack(choice.ack)
        for index, (room, ahead) in enumerate(zip(self._room, self._ahead, strict=True)):
            if not room.is_set() and ahead.is_low(self.policy.waiting(index), self.policy.waiting_size(index)):
                room.set()
        self.retries.look()
        self._wake_at(self.policy.wakes_at(now), now)
        if self.draining:
            self._idle.set()

    def _wake_at(self, when: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when < NEVER:
            self._timer = asyncio.get_running_loop().call_later(max(0.0005, when - now), self.kick)

    # -- answers ----------------------------------------------------------------------------------

    def on_ready(self) -> None:
        self._idle.set()
        self.kick()

    def on_frame(self, handle: EngineHandle, frame: ToDispatcher) -> None:
        """An engine has answered."""
        now = time.monotonic()
        tickets = handle.tickets
        if frame.ok:
            tickets.difference_update(frame.ok)
            self._ack(self.policy.done(frame.ok, now))
        for answer in frame.answers:
            tickets.discard(answer.ticket)
            if answer.ticket < 0:
                self._answered_live(answer)
            else:
                self._answered(answer, now)
        self.kick()

    def _answered(self, answer: EngineAnswer, now: float) -> None:
        if answer.status == "expired":
            self._ack(self.policy.expired(answer.ticket, now))
            return
        if answer.status == "undecodable":
            failure = answer.failures[0]
            outcome = self.policy.give_up(answer.ticket, "undecodable", failure.kind, failure.error)
        elif answer.status == "failed":
            outcome = self.policy.failed(answer.ticket, answer.failures)
        elif answer.handed:
            outcome = self.policy.hold(answer.ticket)
        else:
            self._ack(self.policy.done((answer.ticket,), now))
            return
        if outcome is not None:
            self._settler.put(PendingCommit(outcome, answer.handed))

    def _answered_live(self, answer: EngineAnswer) -> None:
        """Whoever asked is told when what the plans hand over is stored."""
        if not answer.handed:
            self.asking.answered(answer)
            return
        storing = self._spawn(self._store_live(answer), "live")
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)

    async def _store_live(self, answer: EngineAnswer) -> None:
        try:
            await self._settler.hand_over(answer.handed)
        except Exception as error:  # noqa: BLE001 - whatever cannot be stored is told to whoever asked
            failure = failure_of("", error)
            answer = EngineAnswer(answer.ticket, "failed", (*answer.failures, failure), (), answer.result)
        self.asking.answered(answer)
        self.kick()

    def on_death(self, tickets: set[int], why: str) -> None:
        """An engine died: what it had goes to another."""
        self.asking.lost({ticket for ticket in tickets if ticket < 0}, why)
        for outcome in self.policy.engine_died({ticket for ticket in tickets if ticket > 0}, why):
            self._settler.put(PendingCommit(outcome))
        self.kick()

    def _settled(self, settlements: list[PendingCommit]) -> None:
        now = time.monotonic()
        for each in settlements:
            acks = self.policy.settled(each.outcome, now)
            if not each.outcome.stays:
                each.delivery.noted = False  # Its note went together with what became of it.
            self.retries.settled(each.delivery)
            self._ack(acks)
        if any(each.outcome.retry is not None for each in settlements):
            self.retries.wake()
        self.kick()

    def _fenced(self, settlements: list[PendingCommit]) -> None:
        """Another dispatcher has these now: they are neither acked nor tried again here."""
        for each in settlements:
            self.policy.fenced(each.outcome, time.monotonic())
        self.kick()

    def _ack(self, deliveries: Sequence[Delivery]) -> None:
        """Tell the sources; they tell their brokers when they are flushed."""
        by_source: list[list[Delivery]] = [[] for _ in self.consumers]
        for delivery in deliveries:
            if delivery.retry_row is None:
                by_source[delivery.source].append(delivery)
                if delivery.noted:
                    self._attempts.over(delivery)
            else:
                self.retries.ack(delivery)
        for index, some in enumerate(by_source):
            if some:
                self.consumers[index].ack(some)
                self._to_flush.add(index)
        self._flush_news.set()

    def _lose(self, is_lost: Callable[[Delivery], bool]) -> None:
        """A source has lost its claim to some messages: those that wait here are dropped."""
        self.policy.drop_waiting(is_lost, time.monotonic())
        self.kick()

    async def _flush(self) -> None:
        """Make acks durable, a little after they come, many together."""
        while True:
            await self._flush_news.wait()
            await asyncio.sleep(FLUSH_EVERY)
            self._flush_news.clear()
            indexes, self._to_flush = self._to_flush, set()
            for index in indexes:
                try:
                    await self.consumers[index].flush()
                except FencedError as error:
                    log.warning("a position was not ours any more", why=str(error))
                except Exception as error:
                    if not is_passing(error):  # which an unreachable broker is, too
                        raise
                    self._to_flush.add(index)
            await self.retries.flush()
            await self._attempts.flush()
            if self._to_flush:
                await asyncio.sleep(ERROR_PAUSE[0])
                self._flush_news.set()

    # -- news -------------------------------------------------------------------------------------

    def _on_news(self, topic: str, callback: Callable[[], None]) -> None:
        self._news.setdefault(topic, []).append(callback)

    def _heard(self, payload: str) -> None:
        if payload in (ANYTHING, self.stream.name):
            self.control.wake()
            self.retries.look_around()
        for topic, callbacks in self._news.items():
            if payload in (ANYTHING, topic):
                for callback in callbacks:
                    callback()


def dispatcher_role(stream: Stream, database: Database, *, target: str | None = None) -> Role[Dispatcher]:
    """A dispatcher of a stream as a role. A first stop drains it, a second ends it at once."""
    dispatcher = Dispatcher(stream, database, target=target)
    name = f"stream {stream.name}"
    return Role(dispatcher, database, reporter=CountReporter(database, dispatcher.meter, name), name=name)


def _work(ticket: int, delivery: Delivery) -> MessageWork:
    usual = (
        not delivery.at
        and delivery.key is None
        and delivery.headers is None
        and delivery.id is None
        and delivery.deadline is None
        and delivery.attempt == 1
        and delivery.plans is None
    )
    if usual:
        return MessageWork(ticket, delivery.source, delivery.payload, delivery.part, delivery.position)
    extra = (
        delivery.id,
        delivery.key,
        delivery.headers,
        delivery.at,
        delivery.deadline,
        delivery.attempt,
        delivery.plans,
    )
    return MessageWork(ticket, delivery.source, delivery.payload, delivery.part, delivery.position, extra)


def _raise_failed(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error
