"""Turns a call of `enqueue` into a job: separates the task's arguments from the job's options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.job import NewJob, Origin
from tidemill.engine.jobs.bulk import ManyJobs
from tidemill.engine.jobs.enqueue_options import WISHES, WISHES_FOR_MANY, read_wish
from tidemill.engine.jobs.task import Task


def job_of_call(
    task: Task[Any, Any],
    positional: tuple[Any, ...],
    args: Mapping[str, Any] | None,
    more: Mapping[str, Any],
    *,
    origin: Origin,
) -> NewJob:
    """The job of one call: keywords that are options go to the job, all others to the task."""
    wish = {name: value for name, value in more.items() if name in WISHES}
    kwargs = {name: value for name, value in more.items() if name not in WISHES}
    if ambiguous := (wish.keys() & set(task.signature.names)) - (args or {}).keys():
        name = sorted(ambiguous)[0]
        raise PayloadError(
            f"task {task.name}: {name!r} is both an argument of the task and an option of enqueue; "
            f"give the task's in args={{{name!r}: ...}}"
        )
    if args is not None:
        if twice := args.keys() & kwargs.keys():
            raise PayloadError(f"task {task.name}: {sorted(twice)[0]!r} is given both in args= and by name")
        kwargs = {**args, **kwargs}
    return task.new_job(task.signature.bind(positional, kwargs), origin=origin, **read_wish(wish, task))


def jobs_of_calls(
    task: Task[Any, Any], calls: Iterable[Mapping[str, Any]], wish: Mapping[str, Any], *, origin: Origin
) -> ManyJobs:
    """The jobs of many calls that differ only in their arguments."""
    if odd := wish.keys() - WISHES_FOR_MANY:
        raise ConfigError(f"enqueue_many has no option {sorted(odd)[0]!r}")
    arguments: list[bytes] = []
    for index, call in enumerate(calls):
        try:
            arguments.append(task.signature.pack(call))
        except PayloadError as error:
            raise PayloadError(f"call {index}: {error}; nothing was enqueued") from error
    return ManyJobs(task, {"origin": origin, **read_wish(wish, task)}, arguments)
