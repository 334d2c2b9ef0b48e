"""Tasks: the functions that jobs name, and their options."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypedDict, overload

import msgspec
from typing_extensions import TypeVar

from tidemill.core.codec import Signature, encode
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError, PayloadError, UnknownTaskError
from tidemill.core.jobs.job import DEFAULT_PRIORITY, Callback, JobOptions, NewJob, Origin, check_name
from tidemill.core.jobs.key_template import check_template, fill_in
from tidemill.core.limits.resources import Resources
from tidemill.core.limits.size_limits import check_payload
from tidemill.core.retry import RetryPolicy
from tidemill.core.schedule import OVERLAPS, Catchup, Overlap, Schedule, parse_schedule
from tidemill.engine.batching import Batch
from tidemill.store.jobs.schedules.schedules import RunTemplate

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - the item of a job
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T", default=R)


#: Facts that are objects or long texts.
UNFIT_FOR_KEYS = frozenset({"args", "error"})

#: What a task for failures may take: the failed job's id, task and arguments, and its last error.
FAILURE_FACTS = ("job", "task", "args", "error")


#: The keys that a task may declare, and those that a job may have. `{argument}` is filled in.
TASK_KEYS = ("concurrency_key", "fair_key", "rate_key")
KEYS = frozenset((*TASK_KEYS, "unique_key"))


class TaskOptions(msgspec.Struct, frozen=True):
    """How the jobs of a task are enqueued and run, unless the caller overrides it."""

    queue: str
    priority: int = DEFAULT_PRIORITY
    retry: RetryPolicy | None = None
    budget: float | None = None
    stall: float | None = None
    isolation: Literal["process"] | None = None
    tags: tuple[str, ...] = ()
    concurrency_key: str | None = None
    max_concurrency: int = 1
    fair_key: str | None = None
    rate_key: str | None = None
    rate: float | None = None
    burst: float | None = None
    """How many jobs of one rate key may start a second, and at once after a quiet time."""
    required_model: str | None = None
    on_failure: Callback | None = None
    webhook: Callback | None = None
    memory: int | None = None
    """How much memory an isolated task may take beyond what its process takes before it."""
    resources: Resources | None = None
    """What its jobs need of a machine in a cluster."""

    def __post_init__(self) -> None:
        if self.memory is not None and self.isolation is None:
            raise ConfigError("memory= limits a process of its own: add isolation='process'")
        if self.isolation not in (None, "process"):
            raise ConfigError(f"isolation {self.isolation!r} is not known: leave it out, or say 'process'")

    def job_options(self) -> JobOptions | None:
        """The options stored with each job; None if all are defaults."""
        options = JobOptions(
            retry=self.retry,
            budget=self.budget,
            stall=self.stall,
            isolation=self.isolation,
            required_model=self.required_model,
            on_failure=self.on_failure,
            webhook=self.webhook,
        )
        return None if options == JobOptions() else options


class ScheduleOptions(TypedDict, total=False):
    """The options of `app.schedule` beside its times."""

    timezone: str
    """Of a cron expression: `Europe/Berlin`; UTC if not given."""
    catchup: Catchup
    """What to do about fires that were missed: "skip", "one" or "all"."""
    jitter: Duration
    """What is started begins up to this much later."""
    overlap: Overlap
    """What a fire does while the job or run of the previous one is unfinished: "allow", "skip", "queue" or "cancel"."""


class Periodic(msgspec.Struct, frozen=True):
    """A schedule that enqueues a task, or starts what `run` makes."""

    name: str
    task: str
    spec: Schedule
    args: bytes
    catchup: Catchup
    jitter: float
    overlap: Overlap = "allow"
    run: Callable[[], RunTemplate] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        task: str,
        args: bytes,
        *,
        cron: str | None,
        every: Duration | None,
        timezone: str,
        catchup: Catchup,
        jitter: Duration,
        overlap: Overlap = "allow",
        run: Callable[[], RunTemplate] | None = None,
    ) -> Periodic:
        """Check and parse what a program declares."""
        if catchup not in ("skip", "one", "all"):
            raise ConfigError(f"catchup {catchup!r} is not one of skip, one, all")
        if overlap not in OVERLAPS:
            raise ConfigError(f"overlap {overlap!r} is not one of {', '.join(OVERLAPS)}")
        spec = parse_schedule(cron=cron, every=every, timezone=timezone)
        return cls(name, task, spec, args, catchup, parse_duration(jitter, what="jitter"), overlap, run)


class Call(Generic[R_co]):
    """A task with its arguments, checked and encoded. `app.enqueue`, `app.enqueue_many` and `app.schedule` take it."""

    __slots__ = ("arguments", "is_used", "task")

    def __init__(self, task: Task[..., R_co, Any], arguments: bytes, *, is_used: bool = False) -> None:
        self.task = task
        self.arguments = arguments
        self.is_used = is_used

    def __repr__(self) -> str:
        return f"<call of task {self.task.name} with {self.arguments.decode()}>"

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if not self.is_used:
            warn(
                f"{self.task.name}.call(...) was never enqueued: pass it to app.enqueue, app.enqueue_many or "
                "app.schedule",
                RuntimeWarning,
                stacklevel=2,
            )


class Task(Generic[P, R, T]):
    """A function that jobs can name: `task.call(...)` is what a job runs, `task(...)` runs the function in place.

    `R` is the result of its jobs; `T` is what calling it in place returns, which is a coroutine for an async function.
    """

    def __init__(self, function: Callable[P, T], name: str, options: TaskOptions) -> None:
        self.function = function
        self.run: Callable[..., Any] = function
        """What a job calls: the function, within the application's middleware and with what is injected."""
        self.name = check_name("task", name)
        self.batch: Batch | None = None
        """How many jobs one call takes, if it takes several."""
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(function, where=f"task {name}")
        self.job_options = options.job_options()
        for each in TASK_KEYS:
            check_template(each, getattr(options, each), self.signature.names, f"task {name}")
        NewJob(
            queue=options.queue,
            task=name,
            args=msgspec.Raw(b"{}"),
            priority=options.priority,
            max_concurrency=options.max_concurrency,
            options=self.job_options,
        ).validate()
        if options.isolation == "process" and self.is_async:
            raise ConfigError(f"task {name}: isolation='process' is for plain functions, not for async ones")
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)

    def change_options(self, **options: Any) -> None:
        """Change options of the task, for jobs that are enqueued from now on."""
        self.options = msgspec.structs.replace(self.options, **options)
        self.job_options = self.options.job_options()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call with these arguments for `app.enqueue`; a `PayloadError` says why they do not fit."""
        return Call(self, self.signature.bind(args, kwargs))

    def __repr__(self) -> str:
        return f"<task {self.name} on queue {self.options.queue}>"

    @property
    def _own_rate_key(self) -> str | None:
        return None if self.options.rate is None else f"task {self.name}"

    @property
    def is_shared(self) -> bool:
        """Whether its jobs have a key by which they share something with others."""
        keys = (self.options.concurrency_key, self.options.fair_key, self.options.rate_key, self.options.rate)
        return any(each is not None for each in keys)

    def fill_in(self, fields: dict[str, Any], args: bytes) -> None:
        """Fill the arguments of a job into its keys, wherever these come from."""
        values: dict[str, Any] | None = None

        def arguments() -> dict[str, Any]:
            nonlocal values
            if values is None:
                values = {**self.signature.defaults, **msgspec.json.decode(args)}
            return values

        for name in KEYS:
            if (template := fields.get(name)) is not None:
                fields[name] = fill_in(name, template, arguments, f"task {self.name}")

    def changed_keys(self, row: Mapping[str, Any], before: bytes, after: bytes) -> dict[str, str]:
        """The columns of a job with other arguments whose keys are filled in from them, except those of its call."""
        new = self.new_job(after)
        try:
            old = self.new_job(before)
        except PayloadError:
            return {}  # Keys cannot come from arguments that no longer fit the task.
        changed: dict[str, str] = {}
        for column, was, now in (
            ("concurrency_key", old.concurrency_key, new.concurrency_key),
            ("rate_key", old.rate_key, new.rate_key),
            ("fair_key", old.lane, new.lane),
        ):
            if was != now and row[column] == was and now is not None:
                changed[column] = now
        return changed

    def callback(self, facts: tuple[str, ...] = FAILURE_FACTS, *, of: str = "failures") -> Callback:
        """What the end of something enqueues, with those of its facts that this task takes; else a `ConfigError`."""
        if unknown := [name for name in self.signature.required if name not in facts]:
            raise ConfigError(f"task {self.name} needs {unknown[0]!r}: a task for {of} takes any of {', '.join(facts)}")
        takes = tuple(name for name in facts if name in self.signature.names)
        keys = {each: getattr(self.options, each) for each in TASK_KEYS}
        for name, template in keys.items():
            known = {*takes, *self.signature.defaults} - UNFIT_FOR_KEYS
            check_template(name, template, known, f"task {self.name} for {of}")
        keys["rate_key"] = keys["rate_key"] or self._own_rate_key
        return msgspec.structs.replace(self._callback(b"{}", takes, keys), defaults=self.signature.defaults)

    def callback_with(self, arguments: bytes) -> Callback:
        """What the end of something enqueues, with these arguments."""
        job = self.new_job(arguments)
        return self._callback(arguments, (), {each: getattr(job, each) for each in TASK_KEYS})

    def _callback(self, arguments: bytes, takes: tuple[str, ...], keys: dict[str, Any]) -> Callback:
        options = self.options
        return Callback(
            self.name,
            options.queue,
            takes,
            msgspec.Raw(b"null" if self.job_options is None else encode(self.job_options)),
            msgspec.Raw(arguments),
            options.priority,
            options.tags,
            max_concurrency=options.max_concurrency,
            key_rate=options.rate,
            key_burst=options.burst,
            **keys,
        )

    def template(self) -> bytes:
        """What a job of this task is like without its arguments, for the SQL function `enqueue`."""
        options = self.options
        return encode(
            {
                "queue": options.queue,
                "priority": options.priority,
                "tags": options.tags,
                "options": self.job_options,
                "concurrency_key": options.concurrency_key,
                "max_concurrency": options.max_concurrency,
                "fair_key": options.fair_key,
                "rate_key": options.rate_key or self._own_rate_key,
                "key_rate": options.rate,
                "key_burst": options.burst,
                "defaults": self.signature.defaults,
                "takes": self.signature.names,
            }
        )

    def new_job(
        self,
        args: bytes,
        *,
        origin: Origin | None = None,
        required_model: str | None = None,
        webhook: Callback | None = None,
        **changes: Any,
    ) -> NewJob:
        """A job of this task; `changes` are fields of `NewJob` that override the task's own."""
        options, job_options = self.options, self.job_options
        if required_model is not None:
            job_options = msgspec.structs.replace(job_options or JobOptions(), required_model=required_model)
        if webhook is not None:
            job_options = msgspec.structs.replace(job_options or JobOptions(), webhook=webhook)
        fields: dict[str, Any] = {
            "queue": options.queue,
            "task": self.name,
            "args": msgspec.Raw(args),
            "priority": options.priority,
            "tags": options.tags or None,
            "options": job_options,
            "origin": origin,
            "concurrency_key": options.concurrency_key,
            "max_concurrency": options.max_concurrency,
            "fair_key": options.fair_key,
            "rate_key": options.rate_key or self._own_rate_key,
        }
        fields.update((name, value) for name, value in changes.items() if value is not None)
        if not KEYS.isdisjoint(changes) or self.is_shared:
            self.fill_in(fields, args)
        if fields["rate_key"] is not None:
            fields.update(key_rate=options.rate, key_burst=options.burst)
        return NewJob(**fields).validate()


class TaskDecorator(Protocol):
    """What `@app.task(...)` with options returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class BatchTaskDecorator(Protocol):
    """What `@app.task(batch=...)` returns: the function takes a list of what each job is called with."""

    @overload
    def __call__(
        self, function: Callable[[list[I]], Coroutine[Any, Any, list[R | Exception]]], /
    ) -> Task[[I], R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(
        self, function: Callable[[list[I]], Coroutine[Any, Any, list[R]]], /
    ) -> Task[[I], R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(
        self, function: Callable[[list[I]], list[R | Exception]], /
    ) -> Task[[I], R, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, function: Callable[[list[I]], list[R]], /) -> Task[[I], R, Coroutine[Any, Any, R]]: ...


class TaskRegistry(Mapping[str, Task[Any, Any]]):
    """All tasks of an application, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}

    def add(self, task: Task[Any, Any]) -> None:
        if task.name in self._tasks:
            raise ConfigError(f"two tasks are called {task.name!r}: give one of them another name=")
        self._tasks[task.name] = task

    def __getitem__(self, name: str) -> Task[Any, Any]:
        return self._tasks[name]

    def __iter__(self) -> Any:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def require(self, name: str) -> Task[Any, Any]:
        """The task of this name, or an error that lists the declared tasks."""
        task = self.get(name)  # Also one of a workflow file, or one that the host resolves.
        if task is None:
            known = ", ".join(sorted(self._tasks)) or "none"
            hint = did_you_mean(name, self._tasks)
            raise UnknownTaskError(f"there is no task {name!r}; this application declares: {known}{hint}")
        return task

    def queues(self) -> Iterable[str]:
        """The queues that these tasks use, in order of declaration."""
        return dict.fromkeys(task.options.queue for task in self._tasks.values())


def require_task(given: Any) -> Task[Any, Any, Any]:
    """The task that was given, or an error that says how to declare and enqueue one."""
    if isinstance(given, Task):
        return given
    raise ConfigError(
        f"{given!r:.200} is neither a task nor a call of one: decorate the function with @app.task, and write "
        "function.call(...) to enqueue it"
    )


def encode_result(task: str, value: Any) -> bytes | None:
    """Encode a task's return value as JSON, None as None; a `PayloadError` names the task."""
    if value is None:
        return None
    try:
        data = encode(value)
    except PayloadError as error:
        raise PayloadError(f"task {task} returned something that is not JSON: {error}") from error
    return check_payload(data, f"the result of task {task}")
