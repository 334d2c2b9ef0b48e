"""Tasks that take many jobs in one call: `@app.task(batch=Batch(100, "1s"))`.

Each job waits for the result of its own item: its retries, losses, cancellation and budget are those of any job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tidemill.core.errors import ConfigError
from tidemill.core.jobs.injected import is_injected
from tidemill.engine.batching import Batch, Batched
from tidemill.engine.jobs.task import Task, TaskOptions


def batched_task(
    function: Callable[..., Any], name: str, options: TaskOptions, batch: Batch, run: Callable[..., Any]
) -> Task[Any, Any]:
    """A task whose jobs each have one `item` of the list that its function takes; `run` calls the function."""
    if options.isolation is not None:
        raise ConfigError(f"task {name}: a task with batch= runs in its worker; leave out isolation=")
    taken = [each for each in inspect.signature(function).parameters.values() if not is_injected(each)]
    if len(taken) != 1:
        raise ConfigError(f"task {name}: a function with batch= takes one argument, the list of the jobs' items")
    call = Batched(
        run, max_size=batch.max_size, max_wait=batch.max_wait, max_concurrency=batch.max_concurrency, name=name
    )

    async def one(item: Any) -> Any:
        return await call(item)

    hints = get_type_hints(function)
    one.__annotations__ = {"item": _member(hints.get(taken[0].name)), "return": _member(hints.get("return"))}
    one.__doc__ = function.__doc__
    task: Task[Any, Any] = Task(one, name, options)
    task.batch = batch
    return task


def _member(kind: Any) -> Any:
    """The type of the members of a list, without the exceptions that may stand for results."""
    if get_origin(kind) is not list or not get_args(kind):
        return Any
    (member,) = get_args(kind)
    if get_origin(member) not in (Union, UnionType):
        return member
    return reduce(or_, (each for each in get_args(member) if not _is_exception(each)))


def _is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
