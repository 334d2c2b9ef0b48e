"""The dispatcher: takes messages from sources, sends them to engines, and acknowledges them when their work is done.

The reducer makes all decisions; the dispatcher moves messages, and sleeps until something happens:

    feeders (one per source) -> reducer -> engines -> answers -> reducer -> acks, or the committer and then acks
    the committer -> outbox -> senders (one per sink)

The first stop drains: no more messages are taken, those in flight finish and are committed, at most until the drain
limit. A second stop ends it at once; messages in flight are delivered again. No message is acknowledged before its work
is done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from uuid import uuid4

import structlog

from tidemill.core.errors import ConfigError
from tidemill.engine.containment.cancellation import end, is_ending
from tidemill.engine.roles.garbage import tune_garbage_collection
from tidemill.engine.roles.lease import ProcessStatus, describe_process
from tidemill.engine.roles.role import Life
from tidemill.engine.telemetry.meter import Meter
from tidemill.engine.topic_callbacks import TopicCallbacks
from tidemill.sinks import LogSink
from tidemill.sources.base import Consumer, SourceContext
from tidemill.sources.delivery import Delivery
from tidemill.sources.opening import open_consumer
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.jobs.workers import CONTROL_CHANNEL, WorkerCard
from tidemill.store.notify import ANYTHING
from tidemill.store.streams import streams as store
from tidemill.store.streams.event_log import STREAMS_CHANNEL
from tidemill.store.streams.limits import limits_topic
from tidemill.store.streams.outbox import outbox_topic
from tidemill.store.streams.streams import cursor_topic, settings_topic
from tidemill.streams.definition.message import EngineAnswer
from tidemill.streams.definition.stream import Stream
from tidemill.streams.engine.answers import failure_of
from tidemill.streams.reducer.fair_share import NEVER
from tidemill.streams.reducer.outcomes import suspects_text
from tidemill.streams.reducer.reducer import StreamReducer
from tidemill.streams.runner.acknowledgements import Acknowledgements
from tidemill.streams.runner.attempts import OrderedAttempts
from tidemill.streams.runner.commit import OutcomeCommitter, PendingCommit
from tidemill.streams.runner.control import StreamController, stream_part
from tidemill.streams.runner.engine_pool import EngineHandle, EnginePool
from tidemill.streams.runner.link import ToDispatcher, message_work
from tidemill.streams.runner.live_requests import LiveRequests
from tidemill.streams.runner.message_lookup import MessageLookup
from tidemill.streams.runner.prefetch import Prefetch
from tidemill.streams.runner.retries import RetryFeeder
from tidemill.streams.runner.shared_limits import SharedLimits
from tidemill.streams.runner.sink_sender import SinkSender
from tidemill.streams.runner.source_health import ConnectionHealth, open_source, wait_until_tried
from tidemill.streams.runner.stored_ids import StoredIds
from tidemill.streams.view.report import StreamReporter

log = structlog.get_logger("tidemill.streams")

PREFETCH = 4000  # the most messages of a source that wait here
ERROR_PAUSE = (0.2, 5.0)
STOP_ENGINES = 10.0
STOP_SINKS = 10.0


#: Serves the live requests of a stream at its own addresses while the block lasts.
ServeStream = Callable[[Stream, LiveRequests, Database], AbstractAsyncContextManager[None]]


class Dispatcher:
    """The work of a process that dispatches one stream."""

    def __init__(self, stream: Stream, database: Database, *, target: str | None, serve: ServeStream | None) -> None:
        """`target` is the program or file that declares the stream, for its engines to load.

        `serve` is needed if the stream has addresses for live requests.
        """
        if serve is None and (stream.grpc is not None or stream.http is not None):
            raise ConfigError(
                f"stream {stream.name} has an address for live requests: run it by `app.running()` or "
                "`tidemill stream run`, which serve it"
            )
        self.stream = stream
        self._serve = serve
        self.channels = {STREAMS_CHANNEL: self._notified, CONTROL_CHANNEL: lambda _: self.control.wake()}
        self.id = uuid4()
        self.draining = False
        self.reducer = StreamReducer(
            stream.sources,
            max_concurrency=stream.max_concurrency,
            retry=stream.retry,
            max_losses=stream.max_losses,
            dedup_window=stream.dedup_window,
            now=time.monotonic(),
        )
        self.engines = EnginePool(stream, target or stream.declared_in, self)
        self.live_requests = LiveRequests(stream, self.engines)
        self.control = StreamController(database, self)
        self.retries = RetryFeeder(database, self)
        self.limits = SharedLimits(database, self)
        self.ids = StoredIds(database, self)
        self._lookup = MessageLookup(database, self)
        self._attempts = OrderedAttempts(database, stream.name, [source.name for source in stream.sources])
        self._database = database
        share = stream.prefetch // (len(stream.sources) + 1)
        self._ahead = [Prefetch(max(PREFETCH, 2 * stream.max_concurrency), share) for _ in stream.sources]
        self._topics = TopicCallbacks()
        self._context = SourceContext(
            stream.name,
            self.id,
            database,
            on_lost=self._drop_lost,
            wait_finished=self._wait_finished,
            on_notify=self._topics.on,
        )
        self.consumers: list[Consumer] = [open_consumer(source, self._context) for source in stream.sources]
        self.health = [ConnectionHealth() for _ in stream.sources]
        self.sinks = [
            SinkSender(sink, stream.name, self.id, database)
            for sink in stream.sinks.values()
            if not isinstance(sink, LogSink)
        ]
        for sender in self.sinks:
            self._topics.on(outbox_topic(stream.name, sender.sink.name), sender.wake)
            self._topics.on(cursor_topic(stream.name, sender.sink.name), sender.wake)
        self._has_ids = any(source.message_id is not None for source in stream.sources)
        self._is_open = [False] * len(stream.sources)
        self._committer = OutcomeCommitter(
            database=database,
            stream=stream.name,
            sources=stream.sources,
            consumers=self.consumers,
            states=stream.states,
            on_committed=self._committed,
            on_fenced=self._fenced,
        )
        self._acks = Acknowledgements(self, self.ids if self._has_ids else None, self._attempts)
        self.meter = Meter()
        self._reporter = StreamReporter(self, database, self.meter)
        self._room = [asyncio.Event() for _ in stream.sources]
        self._dispatch_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self.life = Life()
        self._feeders: list[asyncio.Task[None]] = []
        self._storing: set[asyncio.Task[None]] = set()
        self._sending: list[asyncio.Task[None]] = []

    @property
    def stopping(self) -> bool:
        return self.life.is_stopping

    def describe(self) -> WorkerCard:
        """Its card in the worker list."""
        return describe_process([stream_part(self.stream)], max_concurrency=self.stream.max_concurrency)

    def process_status(self) -> ProcessStatus:
        """Its status, reported with the lease."""
        busy = self.reducer.busy
        return ProcessStatus(
            self.control.status(), busy, is_busy=busy > 0, trouble=self.trouble, lost_threads=self.engines.lost_threads
        )

    @property
    def trouble(self) -> str | None:
        """What is wrong with it now, for people."""
        names = [source.name for source in self.stream.sources]
        found = (suspects_text(self.reducer.suspects(), names), self.engines.trouble)
        return "; ".join(each for each in found if each) or None

    # -- life -------------------------------------------------------------------------------------

    async def work(self, life: Life) -> None:
        """Open everything, dispatch until stopped, drain, close. Ready when engines are and sources are open."""
        self.life = life
        helpers = [self._spawn(self.engines.run(), "engines")]
        try:
            await self._until(self._engines_ready(), helpers)
            helpers += [
                self._spawn(self._committer.run(), "committer"),
                self._spawn(self._acks.run(), "acknowledgements"),
            ]
            await self.control.apply()
            await self.limits.renew()
            await self._attempts.forget_old()
            self._feeders = [
                self._spawn(self._feed(index), f"feed {source.name}")
                for index, source in enumerate(self.stream.sources)
            ]
            self._feeders.append(self._spawn(self.retries.run(), "retries"))
            await self._until(wait_until_tried(self.health), [*helpers, *self._feeders])
            helpers += [
                self._spawn(self.control.run(), "control"),
                self._spawn(self.limits.run(), "limits"),
                *([self._spawn(self.ids.forget_old(), "ids")] if self._has_ids else []),
                *self._start_sinks(),
                self._spawn(self._reporter.run(), "report"),
            ]
            async with self._serving():
                tune_garbage_collection()
                life.ready()
                sources, engines = len(self.consumers), self.engines.ready
                log.info("stream is running", stream=self.stream.name, sources=sources, engines=engines)
                await self._until(life.stopped.wait(), [*helpers, *self._feeders])
                await self._drain(helpers)
        finally:
            await self._close(helpers)

    def _serving(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._serve is None else self._serve(self.stream, self.live_requests, self._database)

    async def _engines_ready(self) -> None:
        while not self.engines.ready:
            self._idle.clear()
            await self._idle.wait()

    async def _drain(self, helpers: Sequence[asyncio.Task[None]]) -> None:
        """Take no more messages and finish those in flight, until the drain limit or a second stop."""
        self.live_requests.close()
        self.draining = True
        self.reducer.accepting = False
        await end(self._feeders)
        began = logged_at = time.monotonic()
        hurry = asyncio.create_task(self.life.hurried.wait())
        try:
            while self.reducer.unfinished or self.live_requests.open:
                left = began + self.stream.drain - time.monotonic()
                if left <= 0 or hurry.done():
                    break
                self._idle.clear()
                idle = asyncio.create_task(self._idle.wait())
                await asyncio.wait([idle, hurry, *helpers], timeout=min(left, 1.0), return_when=asyncio.FIRST_COMPLETED)
                idle.cancel()
                _raise_failed(helpers)
                if time.monotonic() - logged_at >= 1.0:
                    logged_at = time.monotonic()
                    log.info("draining", stream=self.stream.name, left=self.reducer.unfinished, limit=f"{left:.0f}s")
        finally:
            hurry.cancel()
        if self.reducer.unfinished:
            log.warning(
                "not all messages finished in time: the others will be delivered again",
                stream=self.stream.name,
                messages=self.reducer.unfinished,
            )
        else:
            log.info("drained", stream=self.stream.name, took=f"{time.monotonic() - began:.2f}s")

    async def _close(self, helpers: Sequence[asyncio.Task[None]]) -> None:
        finished = not self.reducer.unfinished
        if self._timer is not None:
            self._timer.cancel()
        await end(self._feeders)
        engines, others = helpers[:1], helpers[1:]
        await self.engines.stop(STOP_ENGINES if finished else 0.0)
        await end(engines)
        for sender in self.sinks:
            sender.stop()
        if self._sending:
            await asyncio.wait(self._sending, timeout=STOP_SINKS)
        await end([*others, *self._storing])
        back = self.reducer.give_back()
        if self._has_ids and self.life.is_ready:
            await self._best_effort(self.ids.flush(), "ids of finished messages could not be stored")
        for index, consumer in enumerate(self.consumers):
            if not self._is_open[index]:
                continue
            mine = [each for each in back if each.source == index and each.retry_row is None]
            consumer.nack(sorted(mine, key=lambda each: (each.part, each.position)))
            await self._best_effort(consumer.stop(), f"source {self.stream.sources[index].name} could not be closed")
        if self.life.is_ready:
            await self._best_effort(self.retries.give_back(back), "claimed retries could not be released")
            await self._best_effort(self._attempts.flush(), "stored attempts could not be deleted")
            await self._best_effort(self.limits.give_back(), "parts of limits could not be given back")
            await self._best_effort(self._committer.forget(), "numbers of transactions could not be deleted")
            self._reporter.count()
            await self._best_effort(
                self._database.fetch(store.DROP_STATUS, self.id, patience=1.0), "the status could not be deleted"
            )

    def _start_sinks(self) -> list[asyncio.Task[None]]:
        self._sending = [self._spawn(sender.run(), f"sink {sender.sink.name}") for sender in self.sinks]
        return self._sending

    async def _until(self, happens: object, helpers: Sequence[asyncio.Task[None]]) -> None:
        """Wait for an event, or raise the failure of a helper task."""
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

    async def _best_effort(self, work: object, complaint: str) -> None:
        """Finish some work on the way out; a failure is only logged."""
        try:
            async with asyncio.timeout(5.0):
                await work  # pyright: ignore[reportGeneralTypeIssues]
        except Exception as error:  # noqa: BLE001 - the process ends; no acknowledgement depends on it
            log.warning(complaint, error=str(error) or type(error).__name__)

    # -- arrivals ---------------------------------------------------------------------------------

    async def _feed(self, index: int) -> None:
        """Keep some messages of a source ready to be sent."""
        source = self.stream.sources[index]
        consumer = await open_source(index, source, self.consumers, self.health[index], self._context)
        self._is_open[index] = True
        health, room, ahead = self.health[index], self._room[index], self._ahead[index]
        pause = ERROR_PAUSE[0]
        while not is_ending():
            while not (most := ahead.room(self.reducer.waiting(index), self.reducer.waiting_size(index))):
                room.clear()
                await room.wait()
            try:
                deliveries = await consumer.poll(most)
                pause = ERROR_PAUSE[0]
                if health.failures:
                    health.succeeded()
            except Exception as error:
                if isinstance(error, ConfigError):
                    raise
                health.failed(error)
                level = log.warning if is_transient(error) else log.error
                level("the source cannot be read now: retrying", source=source.name, error=str(error), after=pause)
                await asyncio.sleep(pause)
                pause = min(ERROR_PAUSE[1], pause * 2)
                continue
            if deliveries:
                if source.ordered:
                    await self._attempts.load(index, deliveries)
                if source.message_id is not None:
                    await self.ids.load(index, deliveries)
                ahead.update_size(deliveries)
                self.reducer.arrived(index, deliveries, time.time())
                self.schedule_dispatch()

    def schedule_dispatch(self) -> None:
        """Choose and send messages in the next iteration of the event loop."""
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_scheduled = False
        if not self.engines.ready:
            return
        now = time.monotonic()
        choice = self.reducer.choose(now, time.time(), quarantine=self.engines.quarantine.ready)
        self.engines.keep_quarantine(self.reducer.has_suspects)
        if choice.suspects:
            self.engines.submit_suspects([message_work(ticket, delivery) for ticket, delivery in choice.suspects])
        if choice.send:
            self.engines.submit([message_work(ticket, delivery) for ticket, delivery in choice.send])
        if choice.ack:
            self._acks.ack(choice.ack)
        for index, (room, ahead) in enumerate(zip(self._room, self._ahead, strict=True)):
            if not room.is_set() and ahead.is_low(self.reducer.waiting(index), self.reducer.waiting_size(index)):
                room.set()
        self.retries.claim_if_low()
        if self.limits.short:
            self.limits.ask_if_short(now)
        self._wake_at(self.reducer.wakes_at(now), now)
        self._idle.set()

    def _wake_at(self, when: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when < NEVER:
            self._timer = asyncio.get_running_loop().call_later(max(0.0005, when - now), self.schedule_dispatch)

    # -- answers ----------------------------------------------------------------------------------

    def on_ready(self) -> None:
        self._idle.set()
        self.schedule_dispatch()

    def on_frame(self, handle: EngineHandle, frame: ToDispatcher) -> None:
        """Handle the answers of an engine."""
        now = time.monotonic()
        tickets = handle.tickets
        if frame.ok:
            tickets.difference_update(frame.ok)
            self._acks.ack(self.reducer.done(frame.ok, now))
        for answer in frame.answers:
            tickets.discard(answer.ticket)
            if answer.ticket < 0:
                self._answered_live(answer)
            else:
                self._answered(answer, handle.name, now)
        self.schedule_dispatch()

    def _answered(self, answer: EngineAnswer, engine: str, now: float) -> None:
        if answer.status == "expired":
            self._acks.ack(self.reducer.expired(answer.ticket, now))
            return
        if answer.status == "undecodable":
            failure = answer.failures[0]
            outcome = self.reducer.give_up(answer.ticket, "undecodable", failure.kind, failure.error)
        elif answer.status == "failed":
            outcome = self.reducer.failed(answer.ticket, answer.failures, engine=engine, wall=time.time())
        elif answer.outbox:
            outcome = self.reducer.hold(answer.ticket)
        else:
            self._acks.ack(self.reducer.done((answer.ticket,), now))
            return
        if outcome is not None:
            self._committer.put(PendingCommit(outcome, answer.outbox))

    def _answered_live(self, answer: EngineAnswer) -> None:
        """Answer a live request once its outbox is stored."""
        if not answer.outbox:
            self.live_requests.answered(answer)
            return
        storing = self._spawn(self._store_live(answer), "live")
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)

    async def _store_live(self, answer: EngineAnswer) -> None:
        try:
            await self._committer.store_live_outbox(answer.outbox)
        except Exception as error:  # noqa: BLE001 - the client of the request gets the error
            failure = failure_of("", error)
            answer = EngineAnswer(answer.ticket, "failed", (*answer.failures, failure), (), answer.result)
        self.live_requests.answered(answer)
        self.schedule_dispatch()

    def on_death(self, handle: EngineHandle, tickets: set[int], why: str) -> None:
        """An engine died: send its messages to another one."""
        self.live_requests.lost({ticket for ticket in tickets if ticket < 0}, why)
        lost, alone = {ticket for ticket in tickets if ticket > 0}, len(tickets) == 1
        for outcome in self.reducer.engine_died(lost, why, alone=alone, engine=handle.name, wall=time.time()):
            self._committer.put(PendingCommit(outcome))
        self.schedule_dispatch()

    def _committed(self, commits: list[PendingCommit]) -> None:
        now = time.monotonic()
        for each in commits:
            acks = self.reducer.committed(each.outcome, now)
            if not each.outcome.stays:
                each.delivery.noted = False  # The stored attempts were deleted together with the outcome.
            self.retries.committed(each.delivery)
            self._acks.ack(acks)
        if any(each.outcome.retry is not None for each in commits):
            self.retries.wake()
        self.schedule_dispatch()

    def _fenced(self, commits: list[PendingCommit]) -> None:
        """Another dispatcher has taken these over: they are neither acknowledged nor retried here."""
        for each in commits:
            self.reducer.fenced(each.outcome, time.monotonic())
        self.schedule_dispatch()

    def _drop_lost(self, is_lost: Callable[[Delivery], bool]) -> None:
        """Drop waiting messages that belong to another reader now."""
        self.reducer.drop_waiting(is_lost, time.monotonic())
        self.schedule_dispatch()

    async def _wait_finished(self, matches: Callable[[Delivery], bool]) -> None:
        """Wait until no message that matches is in flight."""
        while self.reducer.count_busy(matches):
            self._idle.clear()
            await self._idle.wait()

    # -- notifications -------------------------------------------------------------------------------------

    def _notified(self, payload: str) -> None:
        self._lookup.asked(payload)
        if payload in (ANYTHING, settings_topic(self.stream.name)):
            self.control.wake()
            self.retries.check_all()
        if payload in (ANYTHING, limits_topic(self.stream.name)):
            self.limits.wake()
        self._topics.notified(payload)


def _raise_failed(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error
