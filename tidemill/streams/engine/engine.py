"""The engine: runs the plans of messages, many at once, and answers each message.

It has no access to sources, retries or databases: messages come in and answers go out, in batches. A few workers take
messages in turn; when one has to wait, another continues, so a message that never waits needs no task of its own. Live
requests go first. The engine is ready when every plan has started, which includes loading their models.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from tidemill.core.codec import encode, storable
from tidemill.core.errors import PayloadError, words_of
from tidemill.core.retry import Discard, RetryAfter, Snooze, error_lineage
from tidemill.engine.containment.blocked_time import CANCEL_SECONDS
from tidemill.engine.containment.cancellation import end
from tidemill.engine.telemetry.tracing import is_tracing, message_span
from tidemill.engine.worker.log_capture import listen
from tidemill.engine.worker.threads import WorkThreads
from tidemill.sources.base import read_option
from tidemill.streams.definition.message import EngineAnswer, MessageFailure, OutboxItem
from tidemill.streams.definition.plans import Filtered
from tidemill.streams.definition.stream import Stream
from tidemill.streams.engine.context import Context, Message, OutboxTargets
from tidemill.streams.engine.plan_runner import Breakers, RunningPlan
from tidemill.streams.engine.plan_statistics import PlanStatistics
from tidemill.streams.engine.route import Route, live_route, read_options, route_of
from tidemill.streams.runner.link import MessageWork, ToDispatcher

log = structlog.get_logger("tidemill.streams")

_STRETCH = 64  # messages that a worker takes before it yields to the event loop
_STRETCH_SECONDS = 0.1  # and for how long it takes them at most: messages that are slow to decode are no silence
MOST_TRACEBACK = 8000
PACKAGE = str(Path(__file__).parents[2])
GONE = "the stream has no plan of this name any more: declare it again, and replay the message"

Send = Callable[[ToDispatcher], None]


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
        self._live: deque[MessageWork] = deque()
        self._backlog: deque[MessageWork] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._rousing = False
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
        self._live.clear()
        self._backlog.clear()  # A worker that swallows the cancellation finds nothing to continue with.
        await end(self._workers, CANCEL_SECONDS)
        for running in self._plans.values():
            await running.plan.stop()
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
        if not self._rousing:
            self._rouse()

    def statistics(self) -> dict[str, Any]:
        """The statistics of each plan, by source."""
        told: dict[str, Any] = {}
        for route in self._routes:
            for plan, statistics in route.statistics.items():
                told.setdefault(plan, {})[route.source] = msgspec.to_builtins(statistics)
        return told

    # -- workers ----------------------------------------------------------------------------------

    def _rouse(self) -> None:
        """Wake one more worker, in the next iteration of the event loop."""
        self._rousing = True
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
            self._rousing = False
            taken, yield_at = 0, time.monotonic() + _STRETCH_SECONDS
            while live or backlog:
                work = live.popleft() if live else backlog.popleft()
                if not self._rousing and (live or backlog):
                    self._rouse()  # If this message has to wait, another worker starts the next one.
                has_trace = self._is_tracing or (work.extra is not None and work.extra[2])
                await (self._run_in_trace(work) if has_trace else self._run(work))
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
        extra = work.extra
        parent = None if extra is None or not extra[2] else read_option("header:traceparent", extra[2], None)
        attempt = 1 if extra is None else extra[5]
        source = self._routes[work.source].source
        with message_span(parent, self._stream.name, source, f"{work.part}:{work.position}", attempt):
            await self._run(work)

    async def _run(self, work: MessageWork) -> None:
        route, extra = self._routes[work.source], work.extra
        if extra is not None and extra[4] is not None and extra[4] <= time.time():
            self._answer(EngineAnswer(work.ticket, "expired"))
            return
        value = work.payload
        if route.decode is not None:
            try:
                value = route.decode(value)
            except BaseException as error:  # noqa: BLE001 - a decoder is user code: it may raise anything
                failure = MessageFailure("", type(error).__name__, describe(error))
                self._answer(EngineAnswer(work.ticket, "undecodable", (failure,)))
                return
        message = Message(self._stream.name, route.source, value, work.source < 0, work.part, work.position)
        if extra is not None:
            message.id, message.key, message.headers, message.at, message.deadline, message.attempt, _ = extra
        plan = route.only_plan
        if plan is None or (extra is not None and extra[6] is not None):
            await self._run_chosen(work, route, message)
            return
        ctx = Context(message, value, plan.name, route.eligibilities, self._targets)
        if plan.is_timed:
            ctx.give_up = partial(self._give_up, work, (plan,))
        failure = await self._run_plan(plan, ctx, route)
        if failure is None and not ctx.outbox and message.eligibilities is None:
            self._ok.append(work.ticket)
            if not self._flushing:
                self._flush_soon()
            return
        await self._run_added(work, route, route.eligibilities, [plan], [ctx], [failure])

    async def _run_chosen(self, work: MessageWork, route: Route, message: Message) -> None:
        """Run the plans that the message, an earlier attempt or a live request has chosen."""
        if work.source < 0:  # A live request is never repeated: its place must be unique.
            message.part = self._life
        try:
            eligible = read_options(route, work, message)
        except ValueError as error:
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
        gone = () if work.extra is None else self._gone(work)
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
        statistics = route.statistics.get(plan.name)
        if statistics is None:
            statistics = route.statistics[plan.name] = PlanStatistics()
        began = time.perf_counter()
        listen(ctx)
        ends_at = ctx.message.ends_at
        try:
            if ends_at is None:
                await plan.run(ctx)
            else:
                async with asyncio.timeout(max(0.0, ends_at - time.time())):
                    await plan.run(ctx)
            statistics.done += 1
        except Filtered as ended:
            statistics.filtered_for(storable(str(ended.reason)))
            ctx.results["filtered"] = ended.reason
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            statistics.failed += 1
            return attempt_of(ctx, plan.name, error, began)  # A task cancelled something of its own.
        except BaseException as error:  # noqa: BLE001 - whatever a task raises, SystemExit too, is an answer
            statistics.failed += 1
            if ends_at is not None and time.time() >= ends_at and isinstance(error, TimeoutError):
                return MessageFailure(plan.name, "DeadlineExceeded", "its deadline has passed", verdict="expired")
            return attempt_of(ctx, plan.name, error, began)
        statistics.took(time.perf_counter() - began)
        return None

    def _plans_of(self, work: MessageWork, route: Route, eligible: Collection[str]) -> Sequence[RunningPlan]:
        only = None if work.extra is None else work.extra[6]
        if only is not None:  # Also one whose eligibility was added by a plan that has succeeded since.
            return [plan for plan in self._plans.values() if plan.name in only and plan.settings.serves(route.source)]
        return route.plans if eligible is route.eligibilities else self._plans_for(eligible, route.source)

    def _added(self, message: Message, ran: Sequence[RunningPlan]) -> list[RunningPlan]:
        """The plans whose eligibility was added to a message while others ran."""
        known = {plan.name for plan in ran}
        return [plan for plan in self._plans_for(message.eligibilities, message.source) if plan.name not in known]

    def _gone(self, work: MessageWork) -> tuple[MessageFailure, ...]:
        """Failures for the plans that a retried message needs and that the stream no longer has."""
        only = None if work.extra is None else work.extra[6]
        known = {plan.name for plan in self._stream.plans} if only else ()
        return tuple(
            MessageFailure(name, "PlanGone", GONE, verdict="discard") for name in only or () if name not in known
        )

    def _plans_for(self, eligibilities: Any, source: str) -> tuple[RunningPlan, ...]:
        return tuple(
            running
            for running in self._plans.values()
            if running.plan.eligibility in eligibilities and running.settings.serves(source)
        )

    # -- answers ----------------------------------------------------------------------------------

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


def answer_of(
    ticket: int,
    plans: Sequence[RunningPlan],
    contexts: Sequence[Context],
    failures: Sequence[MessageFailure | None],
    *,
    gone: tuple[MessageFailure, ...] = (),
    live: bool,
) -> EngineAnswer:
    """The answer for a message. The outbox of a failed plan is dropped."""
    expired = any(failure is not None and failure.verdict == "expired" for failure in failures)
    failed = (*(each for each in failures if each is not None and each.verdict != "expired"), *gone)
    outbox: list[OutboxItem] = []
    for ctx, failure in zip(contexts, failures, strict=True):
        if failure is None:
            outbox += ctx.outbox
    result = None
    if live:
        found = {
            plan.name: ctx.results for plan, ctx, failure in zip(plans, contexts, failures, strict=True) if not failure
        }
        try:
            result = encode(found)
        except PayloadError as error:  # A task returned something that has no JSON form.
            failed = (*failed, MessageFailure("", type(error).__name__, describe(error)))
    if expired and not failed and not outbox:
        return EngineAnswer(ticket, "expired")
    return EngineAnswer(ticket, "failed" if failed else "ok", failed, tuple(outbox), result)


def attempt_of(ctx: Context, plan: str, error: BaseException, began: float) -> MessageFailure:
    """The failure of a plan with what helps to find its cause: the traceback, and what the plan logged."""
    failure = failure_of(plan, error)
    if failure.verdict == "snooze":
        return failure
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename.startswith(PACKAGE):
        frames = frames.tb_next  # The engine's own frames say nothing about the cause.
    written = storable("".join(traceback.format_exception(type(error), error, frames))[-MOST_TRACEBACK:])
    took = time.perf_counter() - began
    return msgspec.structs.replace(failure, traceback=written, lines=ctx.lines_json(), seconds=took)


def failure_of(plan: str, error: BaseException) -> MessageFailure:
    """An exception as data: its class, its text, and the retry that it asks for."""
    kind, lineage = type(error).__name__, error_lineage(type(error))
    if isinstance(error, Snooze):
        return MessageFailure(plan, kind, describe(error), lineage, error.seconds, "snooze")
    if isinstance(error, RetryAfter):
        return MessageFailure(plan, kind, describe(error), lineage, error.seconds)
    if isinstance(error, Discard):
        return MessageFailure(plan, kind, describe(error), lineage, None, "discard")
    return MessageFailure(plan, kind, describe(error), lineage)


def describe(error: BaseException) -> str:
    """The text of an error and of its causes, in a form that can be sent and stored."""
    words = words_of(error) or type(error).__name__
    seen: set[int] = {id(error)}
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        said = words_of(cause) or type(cause).__name__
        if said not in words:
            words += f" (because of {type(cause).__name__}: {said})"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return storable(words)
