"""Runs a plan in an engine: its tasks in order, within its limits."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from tidemill.core.duration import parse_duration
from tidemill.core.retry import Snooze
from tidemill.engine.batching import Batched
from tidemill.engine.containment.blocked_time import TimeLimit
from tidemill.engine.telemetry.tracing import is_tracing, task_span
from tidemill.engine.worker.log_capture import listen
from tidemill.engine.worker.threads import WorkThreads
from tidemill.streams.definition.plans import Filtered, Plan, TaskRule, check_graph
from tidemill.streams.definition.stream import PlanSettings
from tidemill.streams.engine.circuit_breaker import Breaker
from tidemill.streams.engine.context import BatchLines, Context
from tidemill.streams.engine.limits import ConcurrencyLimit, RateLimit

Step = Callable[[Context], Awaitable[Any]]


class Breakers:
    """The circuit breakers of an engine, one per dependency."""

    def __init__(self) -> None:
        self.all: dict[str, Breaker] = {}

    def of(self, rule: TaskRule) -> Breaker | None:
        if rule.breaker is None:
            return None
        return self.all.setdefault(rule.breaker, Breaker(rule.breaker, rule.rule))


class RunningPlan:
    """One plan of one engine."""

    def __init__(
        self,
        plan: Plan,
        settings: PlanSettings,
        breakers: Breakers,
        threads: WorkThreads,
        live_threads: WorkThreads,
        surrounded: Callable[[Plan, TaskRule], Callable[..., Any]] = lambda plan, rule: getattr(plan, rule.name),
        on_ignored: Callable[[str], None] | None = None,
        last_attempt: int = 1,
    ) -> None:
        """Live requests have threads of their own: they do not wait behind the plain functions of messages.

        `surrounded` returns the function of a task, within the application's middleware; `on_ignored` is called for a
        batch that does not end though it was cancelled.
        """
        self.plan = plan
        self.name = plan.name
        self.settings = settings
        self._threads, self._live_threads = threads, live_threads
        self._surrounded = surrounded
        self._on_ignored = on_ignored
        self._last_attempt = last_attempt
        self._batches: list[Batched] = []
        order = check_graph(plan.name, plan.tasks)
        self._steps = {name: self._step(plan.tasks[name], breakers) for name in order}
        self._after = {name: plan.tasks[name].after for name in order}
        self._chain = (
            all(self._after[name] == order[at - 1 : at] for at, name in enumerate(order) if at)
            and not (self._after[order[0]])
        )
        max_concurrency = settings.max_concurrency or plan.max_concurrency
        rate = settings.rate or plan.rate
        self._concurrency_limit = None if max_concurrency is None else ConcurrencyLimit(max_concurrency)
        self._rate_limit = None if rate is None else RateLimit(float(rate))
        timeout = settings.timeout if settings.timeout is not None else plan.timeout
        self._timeout = None if timeout is None else parse_duration(timeout)
        self.is_timed = self._timeout is not None or any(rule.timeout is not None for rule in plan.tasks.values())
        self._items = tuple(self._steps.items())
        has_limits = self._concurrency_limit is not None or self._rate_limit is not None or self._timeout is not None
        self._unlimited = None if has_limits or not self._chain else self._items
        rule = plan.tasks[order[0]]
        is_bare = len(order) == 1 and not has_limits and not (rule.timeout or rule.rate or rule.breaker)
        is_bare = is_bare and rule.max_concurrency is None and not is_tracing()
        self.only_batches = self._batches[0] if self._batches and is_bare else None
        self.first_task = order[0]

    async def stop(self) -> None:
        """Cancel the calls that run, then stop the plan."""
        for batched in self._batches:
            await batched.stop()
        await self.plan.stop()

    async def run(self, ctx: Context) -> None:
        """Run the tasks for one message; raises what a task raised."""
        if self._unlimited is not None:
            results = ctx.results
            for name, step in self._unlimited:
                results[name] = await step(ctx)
            return
        live = ctx.message.live
        if self._rate_limit is not None:
            await self._rate_limit.acquire(live)
        if self._concurrency_limit is not None:
            await self._concurrency_limit.acquire(live)
        try:
            if self._timeout is None:
                await self._run_tasks(ctx)
            else:
                await _within(self._timeout, self._run_tasks(ctx), f"plan {self.name}", ctx)
        finally:
            if self._concurrency_limit is not None:
                self._concurrency_limit.release()

    async def _run_tasks(self, ctx: Context) -> None:
        if self._chain:
            for name, step in self._items:
                ctx.results[name] = await step(ctx)
            return
        await self._run_graph(ctx)

    async def _run_graph(self, ctx: Context) -> None:
        """Start each task as soon as those before it have ended; the first error cancels the others."""
        begun: dict[str, asyncio.Task[None]] = {}

        async def run(name: str, step: Step) -> None:
            for before in self._after[name]:
                await begun[before]
            try:
                ctx.results[name] = await step(ctx)
            except (SystemExit, KeyboardInterrupt) as error:  # A task of asyncio would end the event loop with it.
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        try:
            async with asyncio.TaskGroup() as group:
                for name, step in self._items:
                    begun[name] = group.create_task(run(name, step), name=f"{self.name}.{name}")
        except BaseExceptionGroup as errors:
            raise _first(errors) from None

    def _step(self, rule: TaskRule, breakers: Breakers) -> Step:
        """A task wrapped in its limits; a task without limits is called directly."""
        body = self._surrounded(self.plan, rule)
        step: Step
        if rule.batch is not None:
            batched = Batched(
                _listening(body),
                max_size=rule.batch.max_size,
                max_wait=rule.batch.max_wait,
                max_concurrency=rule.batch.max_concurrency,
                name=f"{self.name}.{rule.name}",
                on_ignored=self._on_ignored,
                on_exhausted=self._threads.on_exhausted,
                most_lost=self._threads.size,
            )

            self._batches.append(batched)

            async def batch(ctx: Context) -> Any:
                # At its last attempt, what others of its batch do wrong does not count against a message.
                alone = 1 < ctx.message.attempt >= self._last_attempt
                if not ctx.limits:
                    return await batched(ctx, first=ctx.message.live, alone=alone)
                return await _in_turn(batched, ctx, ctx.limits, alone)

            step = batch
        elif rule.threaded:
            what = f"task {self.name}.{rule.name}"

            async def in_thread(ctx: Context) -> Any:
                threads = self._live_threads if ctx.message.live else self._threads
                return await threads.run(partial(body, ctx), what, rule.timeout)

            step = in_thread
        else:
            step = body
        if rule.timeout is not None and (rule.batch is not None or not rule.threaded):
            step = _timed(step, rule.timeout, f"task {self.name}.{rule.name}")
        if (breaker := breakers.of(rule)) is not None:
            step = _guarded(step, breaker)
        if rule.rate is not None:
            step = _limited(step, RateLimit(rule.rate))
        if rule.max_concurrency is not None:
            step = _limited(step, ConcurrencyLimit(rule.max_concurrency))
        return _spanned(step, self.name, rule.name) if is_tracing() else step


def _listening(body: Callable[..., Any]) -> Callable[[list[Context]], Any]:
    """The function of a batch; what it logs is kept for each of its messages."""
    if inspect.iscoroutinefunction(body):

        async def call_async(contexts: list[Context]) -> Any:
            listen(BatchLines(contexts))
            return await body(contexts)

        return call_async

    def call(contexts: list[Context]) -> Any:
        listen(BatchLines(contexts))
        return body(contexts)

    return call


def _spanned(step: Step, plan: str, task: str) -> Step:
    async def spanned(ctx: Context) -> Any:
        with task_span(plan, task):
            return await step(ctx)

    return spanned


def _timed(step: Step, timeout: float, what: str) -> Step:
    async def timed(ctx: Context) -> Any:
        return await _within(timeout, step(ctx), what, ctx)

    return timed


def _limited(step: Step, limit: ConcurrencyLimit | RateLimit) -> Step:
    async def limited(ctx: Context) -> Any:
        await limit.acquire(ctx.message.live)
        try:
            return await step(ctx)
        finally:
            if isinstance(limit, ConcurrencyLimit):
                limit.release()

    return limited


def _guarded(step: Step, breaker: Breaker) -> Step:
    clock = asyncio.get_running_loop().time

    async def guarded(ctx: Context) -> Any:
        wait = breaker.wait(clock())
        if wait is not None:
            raise Snooze(wait, f"the circuit breaker of {breaker.name} is open: it has failed too often")
        try:
            result = await step(ctx)
        except (asyncio.CancelledError, Filtered, Snooze) as error:
            if isinstance(error, Filtered):
                breaker.record(True, clock())
            else:
                breaker.abandon()
            raise
        except BaseException:
            breaker.record(False, clock())
            raise
        breaker.record(True, clock())
        return result

    return guarded


async def _in_turn(batched: Batched, ctx: Context, limits: Sequence[TimeLimit], alone: bool) -> Any:
    """The result of a batch. Time in which it waits for other batches does not count against the message."""
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            for limit in limits:
                limit.resume()

    for limit in limits:
        limit.pause()
    try:
        return await batched(ctx, first=ctx.message.live, alone=alone, on_begin=begin)
    finally:
        begin()


async def _within(seconds: float, work: Awaitable[Any], what: str, ctx: Context) -> Any:
    expires = None

    def ignored() -> None:
        if ctx.give_up is not None:
            ctx.give_up(f"{what} took longer than {seconds:g} s and did not end when it was cancelled")

    limit = TimeLimit(seconds, ignored)
    ctx.limits = (*ctx.limits, limit)
    try:
        async with limit as expires:
            return await work
    except TimeoutError:
        if expires is not None and expires.expired():
            raise TimeoutError(f"{what} took longer than {seconds:g} s") from None
        raise
    finally:
        ctx.limits = tuple(each for each in ctx.limits if each is not limit)


def _first(errors: BaseExceptionGroup) -> BaseException:
    """The first error; one that is not `Filtered` takes precedence."""
    flat: list[BaseException] = []
    for error in errors.exceptions:
        flat += [_first(error)] if isinstance(error, BaseExceptionGroup) else [error]
    return next((error for error in flat if not isinstance(error, Filtered)), flat[0])
