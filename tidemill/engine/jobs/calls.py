"""Turns what `enqueue` is given into jobs: calls with options, or the short form of a task with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tidemill.core.did_you_mean import refuse_unknown
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.jobs.job import NewJob, Origin
from tidemill.engine.jobs.bulk import ManyJobs
from tidemill.engine.jobs.enqueue_options import OPTIONS, OPTIONS_FOR_MANY, read_options
from tidemill.engine.jobs.task import Call, Task, require_task

#: Keywords of the short form that are no arguments of the task.
_BESIDE = OPTIONS | {"conn"}


def read_call(
    what: Any,
    positional: tuple[Any, ...],
    more: dict[str, Any],
    find_task: Callable[[Any], Task[Any, Any, Any]] = require_task,
) -> tuple[Call[Any], Any]:
    """The call and the options that `enqueue` was given.

    In the short form, a task with its arguments, keywords that are options go to the job, all others to the task.
    """
    if isinstance(what, Call):
        call = use(what, "enqueue")
        if positional:
            raise ConfigError(f"enqueue takes the arguments in the call: {call.task.name}.call(...)")
        return call, more
    task = find_task(what)
    options: dict[str, Any] = {}
    args = more.pop("args", None)
    if args is not None and not isinstance(args, Mapping):
        raise PayloadError(f"task {task.name}: args= is a dict of its arguments; write {task.name}.call(args=...)")
    if not more.keys().isdisjoint(_BESIDE):
        options = {name: more.pop(name) for name in more.keys() & _BESIDE}
        if ambiguous := options.keys() & set(task.signature.names) - (args or {}).keys():
            name = min(ambiguous)
            raise PayloadError(
                f"task {task.name}: {name!r} is both an argument of the task and an option of enqueue; "
                f"write app.enqueue({task.name}.call({name}=...)), with options beside the call"
            )
    for name in more:
        if name not in task.signature.names:
            raise task.signature.unknown(name, _BESIDE)
    if args is not None:
        if twice := args.keys() & more.keys():
            raise PayloadError(f"task {task.name}: {min(twice)!r} is given both in args= and by name")
        more = {**args, **more}
    return Call(task, task.signature.bind(positional, more), is_used=True), options


def use(call: Any, taker: str) -> Call[Any]:
    """The call, which no longer warns that it was never enqueued."""
    if not isinstance(call, Call):
        raise ConfigError(f"{taker} takes a call, such as task.call(...), and not {call!r:.200}")
    call.is_used = True
    return call


def job_of_call(task: Task[Any, Any, Any], arguments: bytes, options: Mapping[str, Any], *, origin: Origin) -> NewJob:
    """The job of one call with its options."""
    if not options:
        return task.new_job(arguments, origin=origin)
    if not options.keys() <= OPTIONS:
        refuse_unknown("enqueue", options, _BESIDE)
    return task.new_job(arguments, origin=origin, **read_options(options, task))


class MappedCalls(NamedTuple):
    """The calls of one task, with arguments given as mappings."""

    task: Task[Any, Any, Any]
    each: Iterable[Mapping[str, Any]]


#: What `enqueue_many` is given.
ManyCalls = Iterable[Call[Any]] | MappedCalls


def jobs_of_calls(calls: ManyCalls, options: Mapping[str, Any], *, origin: Origin, batch: int | None) -> ManyJobs:
    """The jobs of many calls, with the same options for all of them."""
    tasks, arguments = _packed(calls) if isinstance(calls, MappedCalls) else _taken(each_call(calls))
    check_many_options(options)
    return ManyJobs(tasks, arguments, lambda task: {"origin": origin, "batch": batch, **read_options(options, task)})


def check_many_options(
    options: Mapping[str, Any], taker: str = "enqueue_many", others: Iterable[str] = ("conn",)
) -> None:
    """Raise a `ConfigError` for an option that many jobs cannot share; the call has `others` beside them."""
    refuse_unknown(taker, options, OPTIONS_FOR_MANY.union(others))


def each_call(calls: Iterable[Call[Any]]) -> Iterator[Call[Any]]:
    """The calls one by one; a `ConfigError` if these are not several."""
    if not isinstance(calls, Iterable):
        raise ConfigError(
            f"many jobs are given as a list of calls, such as [task.call(...)], and not as {calls!r:.200}"
        )
    return iter(calls)


def _taken(calls: Iterable[Call[Any]]) -> tuple[list[Task[Any, Any, Any]], list[bytes]]:
    tasks: list[Task[Any, Any, Any]] = []
    arguments: list[bytes] = []
    for call in calls:
        if type(call) is not Call:
            raise ConfigError(f"enqueue_many takes calls, such as task.call(...), and not {call!r:.200}")
        call.is_used = True
        tasks.append(call.task)
        arguments.append(call.arguments)
    return tasks, arguments


def _packed(calls: MappedCalls) -> tuple[list[Task[Any, Any, Any]], list[bytes]]:
    pack, arguments = calls.task.signature.pack, list[bytes]()
    try:
        for each in calls.each:
            arguments.append(pack(each))
    except PayloadError as error:
        raise PayloadError(f"call {len(arguments)}: {error}; nothing was enqueued") from error
    return [calls.task] * len(arguments), arguments
