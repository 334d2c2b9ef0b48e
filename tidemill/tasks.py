"""How an application declares its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from tidemill.core.check_given import check_kind
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.duration import Duration, parse_duration, parse_limit
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, check_name
from tidemill.core.limits.memory_size import Memory, parse_memory
from tidemill.core.limits.resources import Needs, parse_resources
from tidemill.core.retry import RetryPolicy, retry as retry_policy
from tidemill.declarations import Declarations
from tidemill.engine.batching import A_BATCH, Batch
from tidemill.engine.jobs.batched_task import batched_task
from tidemill.engine.jobs.enqueue_options import read_words
from tidemill.engine.jobs.task import ScheduleOptions, Task, TaskOptions
from tidemill.engine.jobs.webhook import webhook_callback


class TaskDeclaration(ScheduleOptions, total=False):
    """The options of `app.task`; those of a schedule are for `cron` or `every`."""

    name: str | None
    """Its name; that of the function, if not given."""
    queue: str
    """Where its jobs wait; any name, made by using it."""
    priority: int
    """0 to 9; 9 goes first."""
    retry: RetryPolicy | int | None
    """`app.retry(...)`, or a number of attempts; without it a failed job stays failed."""
    budget: Duration | None
    """The longest an attempt may run before the watchdog ends it."""
    stall: Duration | None
    """The longest an attempt may be silent after its first progress report."""
    isolation: Literal["process"] | None
    """"process": run it in a child process that can be killed."""
    memory: Memory | None
    """How much memory the child process of an isolated task may take for it: "512 MB"."""
    resources: Needs | None
    """What its jobs need on a Ray cluster: {"cpu": 4, "gpu": 0.5, "memory": "8 GB"}."""
    tags: Iterable[str]
    """Words to find its jobs by."""
    concurrency_key: str | None
    """Jobs that share this key run at most `max_concurrency` at a time; `{argument}` is filled in."""
    max_concurrency: int
    fair_key: str | None
    """Jobs of different keys share their queue by weight, such as "{tenant}"; see `app.queue`."""
    rate_key: str | None
    """Jobs that share this key start at most at its `rate`, over all workers; `{argument}` is filled in."""
    rate: str | float | None
    """How fast jobs of one rate key may start: "10/s". Without a rate key, all jobs of the task."""
    burst: float | None
    """How many of them may start at once after a quiet time."""
    required_model: str | None
    """The model of App(models=[...]) that it needs: loaded before it starts, kept until it ends."""
    on_failure: Task[Any, Any, Any] | None
    """The task to enqueue when a job has failed for good: it takes any of job, task, args, error."""
    webhook: str | None
    """The address to which the outcome of each job is posted, signed."""
    cron: str | None
    """Also enqueue it at these times: a cron expression."""
    every: Duration | None
    """Also enqueue it this often."""


def declare_task(
    declared: Declarations, schedule: Callable[..., None], function: Callable[..., Any] | None, given: dict[str, Any]
) -> Any:
    """Declare a function as a task: see `App.task`."""
    if function is not None and not callable(function):
        hint = f"name its options, as in name={function!r:.100}"
        raise ConfigError(f"app.task takes a function, and not {function!r:.100}: {hint}")
    known = [*TaskDeclaration.__annotations__, "batch"]
    if unknown := given.keys() - set(known):
        hint = did_you_mean(min(unknown), known) or f"; its options are {', '.join(sorted(known))}"
        raise ConfigError(f"task has no option {min(unknown)!r}{hint}")
    times: Any = {name: given[name] for name in _OF_SCHEDULES if name in given}
    is_scheduled = given.get("cron") is not None or given.get("every") is not None
    if times and not is_scheduled:
        raise ConfigError(f"{min(times)}= is of a schedule: add cron= or every=")
    options = read_task_options(**{each: value for each, value in given.items() if each not in _NOT_OF_JOBS})
    batch: Batch | None = given.get("batch")
    if batch is not None:
        check_kind("task: batch=", batch, Batch, A_BATCH)

    def declare(body: Callable[..., Any]) -> Task[Any, Any]:
        name = given.get("name") or getattr(body, "__name__", "")
        if batch is None:
            task = declared.surround(Task(body, name, options))
        else:
            task = batched_task(body, name, options, batch, declared.surrounded(name, body))
        declared.add_task(task)
        if options.webhook is not None:
            declared.use_webhooks()
        if is_scheduled:
            schedule(task.name, task.call(), cron=given.get("cron"), every=given.get("every"), **times)
        return task

    return declare if function is None else declare(function)


_OF_SCHEDULES = tuple(ScheduleOptions.__annotations__)
_NOT_OF_JOBS = ("name", "batch", "cron", "every", *_OF_SCHEDULES)


def read_task_options(
    *,
    queue: str = DEFAULT_QUEUE,
    priority: int = DEFAULT_PRIORITY,
    retry: RetryPolicy | int | None = None,
    budget: Duration | None = None,
    stall: Duration | None = None,
    memory: Memory | None = None,
    resources: Needs | None = None,
    tags: Iterable[str] = (),
    on_failure: Task[Any, Any, Any] | None = None,
    webhook: str | None = None,
    rate: str | float | None = None,
    burst: float | None = None,
    **plain: Any,
) -> TaskOptions:
    """The options of a task from what is declared; those that are stored as they are given are `plain`."""
    if burst is not None and rate is None:
        raise ConfigError("burst= says how many jobs may start at once within a rate: add rate=")
    if retry is not None:
        check_kind("task: retry=", retry, (RetryPolicy, int), "app.retry(...), or a number of attempts")
    if on_failure is not None:
        check_kind("task: on_failure=", on_failure, Task, "a task, which stands above this one")
    per_second, at_once = parse_limit(rate, burst, what="a task")
    return TaskOptions(
        queue=check_name("queue", queue),
        priority=priority,
        retry=retry_policy(retry) if isinstance(retry, int) else retry,
        budget=None if budget is None else parse_duration(budget, what="budget"),
        stall=None if stall is None else parse_duration(stall, what="stall"),
        memory=None if memory is None else parse_memory(memory, what="memory"),
        resources=None if resources is None else parse_resources(resources),
        tags=read_words(tags),
        on_failure=None if on_failure is None else on_failure.callback(),
        webhook=None if webhook is None else webhook_callback(webhook),
        rate=per_second,
        burst=at_once,
        **plain,
    )
