"""The engine: runs the plans of messages, many at once, and answers each message.

It has no access to sources, retries or databases: messages come in and answers go out, in batches. A few workers take
messages in turn; when one has to wait, another continues, so a message that never waits needs no task of its own. Live
requests go first. The engine is ready when every plan has started, which includes loading their models.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from tidemill.core.codec import storable
from tidemill.core.errors import words_of
from tidemill.engine.batching import Batched
from tidemill.engine.containment.blocked_time import CANCEL_SECONDS
from tidemill.engine.containment.cancellation import end
from tidemill.engine.telemetry.tracing import is_tracing, message_span
from tidemill.engine.worker.log_capture import listen
from tidemill.engine.worker.threads import WorkThreads
from tidemill.sources.base import read_option
from tidemill.streams.definition.message import EngineAnswer, MessageFailure
from tidemill.streams.definition.plans import Filtered
from tidemill.streams.definition.stream import Stream
from tidemill.streams.engine.answers import answer_of, attempt_of, describe, failure_of
from tidemill.streams.engine.context import Context, Message, OutboxTargets
from tidemill.streams.engine.plan_runner import Breakers, RunningPlan
from tidemill.streams.engine.plan_statistics import PlanStatistics
from tidemill.streams.engine.route import Route, live_route, read_options, route_of
from tidemill.streams.runner.link import DeliveryDetails, MessageWork, ToDispatcher

log = structlog.get_logger("tidemill.streams")

_STRETCH = 64  # messages that a worker takes before it yields to the event loop
_STRETCH_SECONDS = 0.1  # and for how long it takes them at most: messages that are slow to decode are no silence
GONE = "the stream no longer has a plan of this name: declare it again, and replay the message"
SWITCHED_OFF = "the plan is switched off for this source: switch it on again, and replay the message"

_NO_DETAILS = DeliveryDetails()

Send = Callable[[ToDispatcher], None]


class BatchedMessage:
    """Takes the result of a message that runs in a batch without a task of its own."""

    __slots__ = ("_answer", "_is_done", "began", "ctx", "route", "work")

    def __init__(
        self, work: MessageWork, route: Route, ctx: Context, answer: Callable[[BatchedMessage, Any, Any], None]
    ) -> None:
        self.work = work
        self.route = route
        self.ctx = ctx
        self.began = time.perf_counter()
        self._answer = answer
        self._is_done = False

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: Any, /) -> None:
        self._is_done = True
        self._answer(self, result, None)

    def set_exception(self, error: BaseException, /) -> None:
        self._is_done = True
        self._answer(self, None, error)


class Engine:
    """Runs the plans of a stream."""

    def __init__(self, stream: Stream, send: Send) -> None:
        self._stream = stream
        self._send = send
        self._threads = WorkThreads(stream.threads, f"stream-{stream.name}", self._exhausted)
        self._live_threads = WorkThreads(stream.threads, f"live-{stream.name}", self._exhausted)
        self._plans: dict[str, RunningPlan] = {}
        self._routes: list[Route] = []  # of the sources, then of live requests
        self._targets = OutboxTargets(stream.event_tick, stream.states, stream.sinks)
        self._is_stopping = False
        self._live: deque[MessageWork] = deque()
        self._backlog: deque[MessageWork] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._is_waking = False
        self._ok: list[int] = []
        self._answers: list[EngineAnswer] = []
        self._flushing = False
        self._life = secrets.token_hex(6)
        self._is_tracing = is_tracing()

    async def start(self) -> None:
        """Start every plan; messages may be submitted afterwards."""
        breakers = Breakers()
        for kind in self._stream.plans:
            settings = self._stream.settings_of(kind)
            if settings.disabled:
                continue
            plan = kind()
            await plan.start()
            self._plans[plan.name] = RunningPlan(
                *(plan, settings, breakers, self._threads, self._live_threads),
                surrounded=self._stream.surrounded,
                on_ignored=self._replace,
                last_attempt=self._stream.retry.max_attempts,
            )
        self._routes = [
            route_of(source, self._plans_for(source.eligibilities, source.name), self._stream.plans)
            for source in self._stream.sources
        ]
        self._routes.append(live_route(self._stream))

    async def stop(self) -> None:
        """Cancel the running messages, wait for their end, then stop the plans."""
        self._is_stopping = True
        self._live.clear()
        self._backlog.clear()  # A worker that swallows the cancellation finds nothing to continue with.
        await end(self._workers, CANCEL_SECONDS)
        for running in self._plans.values():
            await running.stop()
        self._threads.close()
        self._live_threads.close()

    def _exhausted(self) -> None:
        """Too many threads are lost: the dispatcher sends nothing more, and ends this engine when its messages have."""
        self._send(ToDispatcher(exhausted=True))

    def _replace(self, what: str) -> None:
        log.error("CANCELLATION IGNORED: the engine is replaced", what=what)
        self._exhausted()

    def _give_up(self, work: MessageWork, plans: Sequence[RunningPlan], why: str) -> None:
        """A task of a message does not end: all plans of the message have failed."""
        failures = tuple(failure_of(plan.name, TimeoutError(why)) for plan in plans)
        self._answer(EngineAnswer(work.ticket, "failed", failures))
        self._replace(why)

    def submit(self, work: Sequence[MessageWork], live: Sequence[MessageWork] = ()) -> None:
        """Take messages; each is answered once."""
        self._backlog.extend(work)
        self._live.extend(live)
        if not self._is_waking:
            self._wake_worker()

    def statistics(self) -> dict[str, Any]:
        """The statistics of each plan, by source."""
        by_plan: dict[str, Any] = {}
        for route in self._routes:
            for plan, statistics in route.statistics.items():
                by_plan.setdefault(plan, {})[route.source] = msgspec.to_builtins(statistics)
        return by_plan

    # -- workers ----------------------------------------------------------------------------------

    def _wake_worker(self) -> None:
        """Wake one more worker, in the next iteration of the event loop."""
        self._is_waking = True
        while self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)
                return
        worker = asyncio.get_running_loop().create_task(self._work(), name="stream-worker")
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        live, backlog = self._live, self._backlog
        loop = asyncio.get_running_loop()
        while True:
            self._is_waking = False
            taken, yield_at = 0, time.monotonic() + _STRETCH_SECONDS
            while live or backlog:
                work = live.popleft() if live else backlog.popleft()
                details, batches = work.details, self._routes[work.source].only_batches
                try:
                    if batches is not None and (details is None or details.is_batchable):
                        self._run_in_batch(work, batches)
                    else:
                        if not self._is_waking and (live or backlog):
                            self._wake_worker()  # If this message has to wait, another worker starts the next one.
                        has_trace = self._is_tracing or (details is not None and details.headers)
                        await (self._run_in_trace(work) if has_trace else self._run(work))
                except Exception as error:  # noqa: BLE001 - a message without an answer would be in flight forever
                    self._answer_error(work, error)
                taken += 1
                if taken == _STRETCH or time.monotonic() > yield_at:
                    await asyncio.sleep(0)
                    taken, yield_at = 0, time.monotonic() + _STRETCH_SECONDS
            waiting: asyncio.Future[None] = loop.create_future()
            self._idle.append(waiting)
            await waiting

    # -- one message ------------------------------------------------------------------------------

    async def _run_in_trace(self, work: MessageWork) -> None:
        """Run one message within the trace that its headers name."""
        details = work.details or _NO_DETAILS
        parent = read_option("header:traceparent", details.headers, None) if details.headers else None
        source = self._routes[work.source].source
        with message_span(parent, self._stream.name, source, f"{work.part}:{work.position}", details.attempt):
            await self._run(work)

    def _run_in_batch(self, work: MessageWork, batches: Batched) -> None:
        """Give a message to the batches of its only plan; nothing waits for them."""
        route = self._routes[work.source]
        message = self._decode(work, route)
        if message is None or route.only_plan is None:
            return
        ctx = Context(message, message.value, route.only_plan.name, route.eligibilities, self._targets)
        batches.submit(ctx, BatchedMessage(work, route, ctx, self._answer_from_batch))

    def _answer_from_batch(self, batched: BatchedMessage, result: Any, error: BaseException | None) -> None:
        route, ctx, plan = batched.route, batched.ctx, batched.route.only_plan
        if self._is_stopping or plan is None:
            return
        ctx.results[plan.first_task] = result
        failure = self._count(plan, ctx, route, batched.began, error)
        if failure is None and not ctx.outbox and ctx.message.eligibilities is None:
            self._succeeded(batched.work.ticket)
            return
        adding = self._run_added(batched.work, route, route.eligibilities, [plan], [ctx], [failure])
        finishing = asyncio.create_task(adding, name="stream-answer")
        self._workers.add(finishing)
        finishing.add_done_callback(self._workers.discard)

    def _decode(self, work: MessageWork, route: Route) -> Message | None:
        """The message with its value; answers one that cannot be decoded."""
        value, details = work.payload, work.details
        if route.decode is not None:
            try:
                value = route.decode(value)
            except BaseException as error:  # noqa: BLE001 - a decoder is user code: it may raise anything
                failure = MessageFailure("", type(error).__name__, describe(error))
                self._answer(EngineAnswer(work.ticket, "undecodable", (failure,)))
                return None
        message = Message(self._stream.name, route.source, value, work.source < 0, work.part, work.position)
        if details is not None:
            message.id, message.key, message.headers = details.id, details.key, details.headers
            message.at, message.deadline, message.attempt = details.at, details.deadline, details.attempt
        return message

    def _answer_error(self, work: MessageWork, error: Exception) -> None:
        """What surrounds the plans of a message has failed, such as reading which plans it names."""
        chosen = None if work.details is None else work.details.plans
        plans = chosen or [plan.name for plan in self._routes[work.source].plans]
        failures = tuple(failure_of(name, error) for name in plans)
        status = "failed" if failures else "undecodable"
        self._answer(EngineAnswer(work.ticket, status, failures or (failure_of("", error),)))

    async def _run(self, work: MessageWork) -> None:
        route, details = self._routes[work.source], work.details
        if details is not None and details.deadline is not None and details.deadline <= time.time():
            self._answer(EngineAnswer(work.ticket, "expired"))
            return
        message = self._decode(work, route)
        if message is None:
            return
        plan = route.only_plan
        if plan is None or (details is not None and details.plans is not None):
            await self._run_chosen(work, route, message)
            return
        ctx = Context(message, message.value, plan.name, route.eligibilities, self._targets)
        if plan.is_timed:
            ctx.give_up = partial(self._give_up, work, (plan,))
        failure = await self._run_plan(plan, ctx, route)
        if failure is None and not ctx.outbox and message.eligibilities is None:
            self._succeeded(work.ticket)
            return
        await self._run_added(work, route, route.eligibilities, [plan], [ctx], [failure])

    async def _run_chosen(self, work: MessageWork, route: Route, message: Message) -> None:
        """Run the plans that the message, an earlier attempt or a live request has chosen."""
        if work.source < 0:  # A live request is never repeated: its place must be unique.
            message.part = self._life
        try:
            eligible = read_options(route, work, message)
        except Exception as error:  # noqa: BLE001 - fields of a decoded value may be the user's code
            self._answer(EngineAnswer(work.ticket, "undecodable", (failure_of("", error),)))
            return
        if message.ends_at is not None and message.ends_at <= time.time():
            self._answer(EngineAnswer(work.ticket, "expired"))
            return
        plans = self._plans_of(work, route, eligible)
        contexts = self._contexts(work, message, plans, plans, eligible)
        failures = await self._run_together(route, plans, contexts)
        await self._run_added(work, route, eligible, plans, contexts, failures)

    async def _run_added(
        self,
        work: MessageWork,
        route: Route,
        eligible: Collection[str],
        plans: Sequence[RunningPlan],
        contexts: Sequence[Context],
        failures: Sequence[MessageFailure | None],
    ) -> None:
        """Answer a message, after the plans whose eligibility was added while others ran."""
        while contexts and (message := contexts[0].message).eligibilities is not None:
            more = self._added(message, plans)
            if not more:
                break
            plans = [*plans, *more]
            added = self._contexts(work, message, more, plans, eligible)
            contexts = [*contexts, *added]
            failures = [*failures, *await self._run_together(route, more, added)]
        gone = () if work.details is None else self._gone(work)
        self._answer(answer_of(work.ticket, plans, contexts, failures, gone=gone, live=work.source < 0))

    def _contexts(
        self,
        work: MessageWork,
        message: Message,
        plans: Sequence[RunningPlan],
        all_plans: Sequence[RunningPlan],
        eligible: Collection[str],
    ) -> list[Context]:
        """The contexts of some plans of a message; if a task does not end, all of its plans have failed."""
        give_up = partial(self._give_up, work, all_plans)
        return [Context(message, message.value, plan.name, eligible, self._targets, give_up=give_up) for plan in plans]

    async def _run_together(
        self, route: Route, plans: Sequence[RunningPlan], contexts: Sequence[Context]
    ) -> list[MessageFailure | None]:
        if len(plans) == 1:
            return [await self._run_plan(plans[0], contexts[0], route)]
        running = [self._run_plan(plan, ctx, route) for plan, ctx in zip(plans, contexts, strict=True)]
        return list(await asyncio.gather(*running))

    async def _run_plan(self, plan: RunningPlan, ctx: Context, route: Route) -> MessageFailure | None:
        began = time.perf_counter()
        listen(ctx)
        ends_at = ctx.message.ends_at
        try:
            if ends_at is None:
                await plan.run(ctx)
            else:
                async with asyncio.timeout(max(0.0, ends_at - time.time())):
                    await plan.run(ctx)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._count(plan, ctx, route, began, error)  # A task cancelled something of its own.
        except BaseException as error:  # noqa: BLE001 - whatever a task raises, SystemExit too, is an answer
            return self._count(plan, ctx, route, began, error)
        return self._count(plan, ctx, route, began, None)

    def _count(
        self, plan: RunningPlan, ctx: Context, route: Route, began: float, error: BaseException | None
    ) -> MessageFailure | None:
        """Count how a plan has ended; returns its failure if it has failed."""
        statistics = route.statistics.get(plan.name)
        if statistics is None:
            statistics = route.statistics[plan.name] = PlanStatistics()
        if error is None:
            statistics.done += 1
        elif isinstance(error, Filtered):
            statistics.filtered_for(storable(words_of(error)))
            ctx.results["filtered"] = error.reason
        else:
            statistics.failed += 1
            ends_at = ctx.message.ends_at
            if ends_at is not None and time.time() >= ends_at and isinstance(error, TimeoutError):
                return MessageFailure(plan.name, "DeadlineExceeded", "its deadline has passed", verdict="expired")
            return attempt_of(ctx, plan.name, error, began)
        statistics.took(time.perf_counter() - began)
        return None

    def _plans_of(self, work: MessageWork, route: Route, eligible: Collection[str]) -> Sequence[RunningPlan]:
        only = None if work.details is None else work.details.plans
        if only is not None:  # Includes plans whose eligibility was added by a plan that has succeeded since.
            return [plan for plan in self._plans.values() if plan.name in only and plan.settings.serves(route.source)]
        return route.plans if eligible is route.eligibilities else self._plans_for(eligible, route.source)

    def _added(self, message: Message, ran: Sequence[RunningPlan]) -> list[RunningPlan]:
        """The plans whose eligibility was added to a message while others ran."""
        known = {plan.name for plan in ran}
        return [plan for plan in self._plans_for(message.eligibilities, message.source) if plan.name not in known]

    def _gone(self, work: MessageWork) -> tuple[MessageFailure, ...]:
        """Failures for the plans that a stored message needs and that do not run: it is not done without them."""
        only = None if work.details is None else work.details.plans
        if not only:
            return ()
        source, declared = self._routes[work.source].source, {plan.name for plan in self._stream.plans}
        runs = {name for name, plan in self._plans.items() if plan.settings.serves(source)}
        return tuple(
            MessageFailure(name, "PlanGone", GONE, verdict="discard")
            if name not in declared
            else MessageFailure(name, "PlanSwitchedOff", SWITCHED_OFF, verdict="discard")
            for name in only
            if name not in runs
        )

    def _plans_for(self, eligibilities: Any, source: str) -> tuple[RunningPlan, ...]:
        return tuple(
            running
            for running in self._plans.values()
            if running.plan.eligibility in eligibilities and running.settings.serves(source)
        )

    # -- answers ----------------------------------------------------------------------------------

    def _succeeded(self, ticket: int) -> None:
        self._ok.append(ticket)
        if not self._flushing:
            self._flush_soon()

    def _answer(self, answer: EngineAnswer) -> None:
        self._answers.append(answer)
        if not self._flushing:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._flushing = True
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        ok, answers = self._ok, self._answers
        self._ok, self._answers = [], []
        self._send(ToDispatcher(ok, answers))
