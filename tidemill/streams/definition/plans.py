"""Plans: the processing of a message. A plan is a small graph of tasks, selected by eligibility.

class SpamPlan(Plan, eligibility="spam_comment", timeout="5s"):
    async def start(self): ...                     # once per engine, before any message: load models here

    @task
    async def load(self, ctx): ...                 # its result is ctx.results["load"]

    @task(after="load", batch=Batch(max_size=32, max_wait="5ms"))
    async def classify(self, items): ...           # contexts of several messages; returns one result for each

A task starts when the tasks in `after` have ended. A plain function runs in a thread. Raise `Filtered("reason")` to end
the plan early without an error. The graph is checked when the class is defined.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar

import msgspec

from tidemill.core.check_given import check_function, check_kind
from tidemill.core.duration import Duration, parse_duration, parse_rate
from tidemill.core.errors import ConfigError
from tidemill.engine.batching import A_BATCH, Batch
from tidemill.streams.engine.circuit_breaker import BreakerRule


class Filtered(Exception):
    """Raise this in a task to end the plan for this message without an error."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class TaskRule(msgspec.Struct, frozen=True):
    """One task of a plan, as declared."""

    name: str
    after: tuple[str, ...]
    batch: Batch | None
    max_concurrency: int | None
    timeout: float | None
    rate: float | None
    breaker: str | None
    rule: BreakerRule | None
    threaded: bool


class Plan:
    """Base class of plans: decorate the methods that are tasks with `@task`. There is one instance per engine."""

    name: ClassVar[str]
    eligibility: ClassVar[str | None] = None
    tasks: ClassVar[Mapping[str, TaskRule]] = {}
    max_concurrency: ClassVar[int | None] = None
    timeout: ClassVar[float | None] = None
    rate: ClassVar[float | None] = None

    def __init_subclass__(
        cls,
        *,
        eligibility: str | None = None,
        name: str | None = None,
        max_concurrency: int | None = None,
        timeout: Duration | None = None,
        rate: str | float | None = None,
    ) -> None:
        super().__init_subclass__()
        cls.name = name or cls.__name__
        cls.eligibility = eligibility or cls.eligibility
        where = f"plan {cls.name}"
        if max_concurrency is not None:
            cls.max_concurrency = _count(max_concurrency, where)
        if timeout is not None:
            cls.timeout = parse_duration(timeout, what=f"{where}, timeout")
        if rate is not None:
            cls.rate = parse_rate(rate, what=f"{where}, rate")
        declared = {
            attribute: rule
            for kind in reversed(cls.__mro__)
            for attribute, value in vars(kind).items()
            if (rule := getattr(value, "__stream_task__", None)) is not None
        }
        for attribute, rule in declared.items():
            method = inspect.getattr_static(cls, attribute).__get__(cls, cls)
            takes = "message" if rule.batch is None else "messages"
            check_function(f"plan {cls.name}", method, takes, plain=False)
        cls.tasks = {rule.name: rule for rule in declared.values()}
        check_graph(cls.name, cls.tasks)

    async def start(self) -> None:
        """Called in each engine before the first message: load models here."""

    async def stop(self) -> None:
        """Called in each engine after the last message."""


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    after: str | Iterable[str] = (),
    batch: Batch | None = None,
    max_concurrency: int | None = None,
    timeout: Duration | None = None,
    rate: str | float | None = None,
    breaker: str | None = None,
    breaker_rule: BreakerRule | None = None,
) -> Any:
    """Mark a method of a plan as a task.

    after            the tasks that must have ended before it starts
    batch            call it with the contexts of several messages; it returns one result for each
    max_concurrency  how many calls may run at once in an engine
    timeout          how long a call may take
    rate             how often one engine may call it: "100/s"
    breaker          the name of a dependency: tasks with the same name share a circuit breaker
    """

    def mark(body: Callable[..., Any]) -> Any:
        where = f"task {body.__name__}"
        if batch is not None:
            check_kind(f"{where}: batch=", batch, Batch, A_BATCH)
        rule = TaskRule(
            name=body.__name__,
            after=(after,) if isinstance(after, str) else tuple(after),
            batch=batch,
            max_concurrency=None if max_concurrency is None else _count(max_concurrency, where),
            timeout=None if timeout is None else parse_duration(timeout, what=f"{where}, timeout"),
            rate=None if rate is None else parse_rate(rate, what=f"{where}, rate"),
            breaker=breaker,
            rule=breaker_rule,
            threaded=not inspect.iscoroutinefunction(body),
        )
        body.__stream_task__ = rule  # pyright: ignore[reportFunctionMemberAccess]
        return body

    return mark if function is None else mark(function)


def check_graph(plan: str, tasks: Mapping[str, TaskRule]) -> tuple[str, ...]:
    """The tasks in topological order; a `ConfigError` says what is wrong with the graph."""
    for rule in tasks.values():
        for before in rule.after:
            if before not in tasks:
                known = ", ".join(tasks)
                raise ConfigError(f"plan {plan}: task {rule.name} comes after {before!r}; its tasks are {known}")
    try:
        return tuple(TopologicalSorter({rule.name: rule.after for rule in tasks.values()}).static_order())
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise ConfigError(f"plan {plan}: its tasks wait for each other in a circle: {circle}") from None


def _count(value: int, where: str) -> int:
    if value < 1:
        raise ConfigError(f"{where}: a max_concurrency of {value} would never let it run")
    return value
