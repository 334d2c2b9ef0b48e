"""The application: what a program declares, and how it hands out work.

from tidemill import App

app = App("shop")

@app.task(queue="mail", retry=app.retry(max_attempts=5), budget="2m")
async def send_receipt(order_id: int) -> dict: ...

await app.enqueue(send_receipt, order_id=7)          # in async code
app.enqueue_sync(send_receipt, order_id=7)           # in plain code
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, ParamSpec, TypeVar, overload

import msgspec

from tidemill.core.codec import decode
from tidemill.core.duration import Duration, parse_duration, parse_rate
from tidemill.core.errors import ConfigError, NotFoundError, PayloadError
from tidemill.core.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, FINAL_STATES, JobRef, NewJob, Origin, check_name
from tidemill.core.retry import RetryPolicy, retry
from tidemill.core.schedule import Catchup, parse_schedule
from tidemill.engine.context import find_current_job
from tidemill.engine.enqueuer import Enqueuer
from tidemill.engine.portal import Portal
from tidemill.engine.settings import Settings, load_settings
from tidemill.engine.task import Periodic, Task, TaskBook, TaskOptions
from tidemill.engine.worker import Worker
from tidemill.store.borrowed import insert_async, insert_sync
from tidemill.store.database import Database
from tidemill.store.inspect import show_job
from tidemill.store.migrate import wait_for_schema
from tidemill.store.schedules import Declared
from tidemill.store.workers import QueueLimit

P = ParamSpec("P")
R = TypeVar("R")

_WAIT_FIRST, _WAIT_LONGEST = 0.02, 0.5


class JobResult(msgspec.Struct, frozen=True):
    """How a job ended."""

    id: int
    state: str
    result: Any
    note: str | None


class App:
    """One application: its tasks, schedules and queues, and its way to the database."""

    retry = staticmethod(retry)

    def __init__(self, name: str, **settings: Any) -> None:
        self.name = check_name("application", name)
        self.tasks = TaskBook()
        self.periodics: dict[str, Periodic] = {}
        self.limits: dict[str, QueueLimit] = {}
        self.source = sys._getframe(1).f_globals.get("__file__")
        self.acting_as: str | None = None  # whom to name as the origin of jobs, where it is not the application itself
        self._arguments = settings
        self._settings: Settings | None = None
        self._opened: dict[asyncio.AbstractEventLoop, tuple[Database, Enqueuer]] = {}
        self._portal: Portal | None = None
        self._portal_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self.tasks)} tasks, {len(self.periodics)} schedules>"

    @property
    def settings(self) -> Settings:
        """The settings in force: arguments of App(...), environment, pyproject.toml, defaults."""
        if self._settings is None:
            self._settings = load_settings(**self._arguments)
        return self._settings

    def configure(self, **settings: Any) -> None:
        """Override settings, before the application is first used."""
        self._arguments = {**self._arguments, **{name: value for name, value in settings.items() if value is not None}}
        self._settings = None

    # -- declaring --------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | int | None = None,
        budget: Duration | None = None,
        stall: Duration | None = None,
        isolation: Literal["process"] | None = None,
        tags: Iterable[str] = (),
        concurrency_key: str | None = None,
        concurrency: int = 1,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        catchup: Catchup = "one",
        jitter: Duration = 0,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | int | None = None,
        budget: Duration | None = None,
        stall: Duration | None = None,
        isolation: Literal["process"] | None = None,
        tags: Iterable[str] = (),
        concurrency_key: str | None = None,
        concurrency: int = 1,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        catchup: Catchup = "one",
        jitter: Duration = 0,
    ) -> Any:
        """Declare a function as a task, and with `cron=` or `every=` also a schedule that enqueues it.

        queue            where its jobs wait; any name, made by using it
        priority         0 to 9; 9 goes first
        retry            `app.retry(...)`, or a number of attempts; without it a failed job stays failed
        budget           the longest an attempt may run before the watchdog ends it
        stall            the longest an attempt may be silent after its first progress report
        isolation        "process": run it in a child process that can be killed
        concurrency_key  jobs that share this key run at most `concurrency` at a time; `{argument}` is filled in
        catchup          what a schedule does about fires that it missed: "skip", "one" or "all"
        jitter           a schedule's jobs start up to this much later
        """
        policy = RetryPolicy(max_attempts=retry) if isinstance(retry, int) else retry
        options = TaskOptions(
            queue=check_name("queue", queue),
            priority=priority,
            retry=policy,
            budget=None if budget is None else parse_duration(budget, what="budget"),
            stall=None if stall is None else parse_duration(stall, what="stall"),
            isolation=isolation,
            tags=tuple(tags),
            concurrency_key=concurrency_key,
            concurrency_max=concurrency,
        )

        def declare(body: Callable[..., Any]) -> Task[Any, Any]:
            task = Task(body, name or getattr(body, "__name__", ""), options)
            self.tasks.add(task)
            if cron is not None or every is not None:
                self.schedule(
                    task.name, task, cron=cron, every=every, timezone=timezone, catchup=catchup, jitter=jitter
                )
            return task

        return declare if function is None else declare(function)

    def schedule(
        self,
        name: str,
        task: Task[Any, Any] | str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        args: Mapping[str, Any] | None = None,
        catchup: Catchup = "one",
        jitter: Duration = 0,
    ) -> None:
        """Enqueue a task again and again: a second schedule for a task, or one with arguments."""
        known = self._task(task)
        if name in self.periodics:
            raise ConfigError(f"two schedules are called {name!r}")
        if catchup not in ("skip", "one", "all"):
            raise ConfigError(f"catchup {catchup!r} is not one of skip, one, all")
        self.periodics[check_name("schedule", name)] = Periodic(
            name=name,
            task=known.name,
            spec=parse_schedule(cron=cron, every=every, timezone=timezone),
            args=known.signature.bind((), dict(args or {})),
            catchup=catchup,
            jitter=parse_duration(jitter, what="jitter"),
        )

    def queue(self, name: str, *, rate: str | float | None = None, burst: float | None = None) -> None:
        """Limit how fast jobs of a queue start, over all workers together: `rate="100/s"`.

        `burst` is how many may start at once after a quiet time; a tenth of a second's worth if not given.
        """
        per_second = None if rate is None else parse_rate(rate, what=f"rate of queue {name}")
        if per_second is not None and burst is None:
            burst = max(1.0, per_second / 10)
        if burst is not None and burst < 1:
            raise ConfigError(f"queue {name}: a burst of {burst} would never let a job start")
        self.limits[check_name("queue", name)] = QueueLimit(name, per_second, burst)

    def declared_schedules(self) -> list[Declared]:
        """The schedules as the database stores them."""
        return [
            Declared(
                name=periodic.name,
                spec=periodic.spec,
                job=self.tasks[periodic.task].new_job(periodic.args),
                catchup=periodic.catchup,
                jitter=periodic.jitter,
            )
            for periodic in self.periodics.values()
        ]

    # -- enqueueing -------------------------------------------------------------------------------

    async def enqueue(
        self,
        task: Task[Any, Any] | str,
        /,
        *positional: Any,
        args: Mapping[str, Any] | None = None,
        conn: Any = None,
        delay: Duration | None = None,
        at: datetime | float | None = None,
        priority: int | None = None,
        queue: str | None = None,
        unique_key: str | None = None,
        unique_for: Duration | None = None,
        concurrency_key: str | None = None,
        concurrency: int | None = None,
        deadline: Duration | datetime | None = None,
        tags: Iterable[str] | None = None,
        **kwargs: Any,
    ) -> JobRef:
        """Store a job; when this returns, it is committed.

        The task's arguments come as they would in a call; those named like an option here go into `args={...}`.

        conn             your own open connection: the job then exists if and only if your transaction commits
        delay, at        not before: from now on, or at a moment
        unique_key       no second unfinished job of this task with this key; `unique_for` holds the key for a time
        concurrency_key  at most `concurrency` jobs with this key run at once
        deadline         dropped unrun after this long, or at this moment
        """
        known = self._task(task)
        job = self._new_job(
            known, self._bound(known, positional, args, kwargs), delay=delay, at=at, priority=priority, queue=queue,
            unique_key=unique_key, unique_for=unique_for, concurrency_key=concurrency_key, concurrency=concurrency,
            deadline=deadline, tags=tags,
        )  # fmt: skip
        if conn is not None:
            return (await insert_async(self._describe_database(), conn, [job]))[0]
        return await (await self._open())[1].put(job)

    def enqueue_sync(
        self,
        task: Task[Any, Any] | str,
        /,
        *positional: Any,
        args: Mapping[str, Any] | None = None,
        conn: Any = None,
        delay: Duration | None = None,
        at: datetime | float | None = None,
        priority: int | None = None,
        queue: str | None = None,
        unique_key: str | None = None,
        unique_for: Duration | None = None,
        concurrency_key: str | None = None,
        concurrency: int | None = None,
        deadline: Duration | datetime | None = None,
        tags: Iterable[str] | None = None,
        **kwargs: Any,
    ) -> JobRef:
        """The twin of `enqueue` for plain code; `conn` is then a plain connection."""
        known = self._task(task)
        job = self._new_job(
            known, self._bound(known, positional, args, kwargs), delay=delay, at=at, priority=priority, queue=queue,
            unique_key=unique_key, unique_for=unique_for, concurrency_key=concurrency_key, concurrency=concurrency,
            deadline=deadline, tags=tags,
        )  # fmt: skip
        if conn is not None:
            return insert_sync(self._describe_database(), conn, [job])[0]
        return self._call(lambda enqueuer: enqueuer.put(job))

    async def enqueue_many(
        self,
        task: Task[Any, Any] | str,
        calls: Iterable[Mapping[str, Any]],
        *,
        conn: Any = None,
        delay: Duration | None = None,
        priority: int | None = None,
        queue: str | None = None,
        tags: Iterable[str] | None = None,
    ) -> list[JobRef]:
        """Store one job per set of arguments: all of them, or none if any is wrong."""
        jobs = self._new_jobs(self._task(task), calls, delay=delay, priority=priority, queue=queue, tags=tags)
        if conn is not None:
            return await insert_async(self._describe_database(), conn, jobs)
        return await (await self._open())[1].put_many(jobs)

    def enqueue_many_sync(
        self,
        task: Task[Any, Any] | str,
        calls: Iterable[Mapping[str, Any]],
        *,
        conn: Any = None,
        delay: Duration | None = None,
        priority: int | None = None,
        queue: str | None = None,
        tags: Iterable[str] | None = None,
    ) -> list[JobRef]:
        """The twin of `enqueue_many` for plain code."""
        jobs = self._new_jobs(self._task(task), calls, delay=delay, priority=priority, queue=queue, tags=tags)
        if conn is not None:
            return insert_sync(self._describe_database(), conn, jobs)
        return self._call(lambda enqueuer: enqueuer.put_many(jobs))

    async def wait(self, job: JobRef | int, *, timeout: Duration | None = None) -> JobResult:
        """Return when a job has ended, with its result. Raises TimeoutError if that takes too long."""
        job_id = job if isinstance(job, int) else job.id
        database, _ = await self._open()
        async with asyncio.timeout(None if timeout is None else parse_duration(timeout)):
            pause = _WAIT_FIRST
            while True:
                row = await show_job(database, job_id)
                if row is None:
                    raise NotFoundError(f"there is no job {job_id}")
                if row["state"] in FINAL_STATES:
                    result = None if row["result"] is None else decode(row["result"])
                    return JobResult(job_id, row["state"], result, row["note"])
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _WAIT_LONGEST)

    # -- living -----------------------------------------------------------------------------------

    def database(self, *, application: str | None = None) -> Database:
        """A new, unopened way to this application's database."""
        return Database(self.settings.database(), application=application or f"tidemill {self.name}")

    def worker(
        self, queues: Iterable[str] | None = None, *, concurrency: int | None = None, database: Database | None = None
    ) -> Worker:
        """A worker for these queues, or for all that the tasks name; `await worker.run()` works until stopped."""
        wanted = tuple(dict.fromkeys(queues if queues is not None else self.tasks.queues()))
        return Worker(
            database or self.database(application=f"tidemill worker {self.name}"),
            self.tasks,
            self.settings.worker(wanted, concurrency),
            limits=self.limits.values(),
            app_path=self.source,
        )

    async def close(self) -> None:
        """Close this event loop's connections; the embedded server stops if this process runs it."""
        opened = self._opened.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened[1].close()
            await opened[0].close()

    def close_sync(self) -> None:
        """Close what the plain functions have opened."""
        with self._portal_lock:
            portal, self._portal = self._portal, None
        if portal is not None:
            portal.call(self.close())
            portal.close()

    async def __aenter__(self) -> App:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- inner parts ------------------------------------------------------------------------------

    def _task(self, task: Task[Any, Any] | str) -> Task[Any, Any]:
        if isinstance(task, str):
            return self.tasks.require(task)
        if isinstance(task, Task):
            return self.tasks.require(task.name)
        raise ConfigError(f"{task!r} is not a task: decorate the function with @app.task")

    def _bound(
        self,
        task: Task[Any, Any],
        positional: tuple[Any, ...],
        args: Mapping[str, Any] | None,
        kwargs: Mapping[str, Any],
    ) -> bytes:
        both = kwargs if args is None else {**args, **kwargs}
        if args is not None and len(both) != len(args) + len(kwargs):
            raise PayloadError(f"task {task.name}: an argument is given both in args= and by name")
        return task.signature.bind(positional, both)

    def _new_job(self, task: Task[Any, Any], args: bytes, **wish: Any) -> NewJob:
        at, deadline = wish.pop("at", None), wish.pop("deadline", None)
        delay, unique_for, tags = wish.pop("delay", None), wish.pop("unique_for", None), wish.pop("tags", None)
        return task.new_job(
            args,
            origin=self._origin(),
            delay=None if delay is None else parse_duration(delay, what="delay"),
            at=_moment("at", at),
            deadline=_deadline(deadline),
            unique_for=None if unique_for is None else parse_duration(unique_for, what="unique_for"),
            tags=None if tags is None else (*task.options.tags, *tags),
            concurrency_max=wish.pop("concurrency", None),
            **wish,
        )

    def _new_jobs(self, task: Task[Any, Any], calls: Iterable[Mapping[str, Any]], **wish: Any) -> list[NewJob]:
        """Jobs that differ in their arguments only: the rest is worked out once."""
        jobs: list[NewJob] = []
        template: NewJob | None = None
        for index, call in enumerate(calls):
            try:
                args = task.signature.bind((), call)
            except PayloadError as error:
                raise PayloadError(f"call {index}: {error}; nothing was enqueued") from error
            if template is None or task.options.concurrency_key is not None:
                template = self._new_job(task, args, **wish)
                jobs.append(template)
            else:
                jobs.append(msgspec.structs.replace(template, args=msgspec.Raw(args)))
        return jobs

    def _origin(self) -> Origin:
        job = find_current_job()
        by = self.acting_as or f"app {self.name}" if job is None else f"job {job.id} ({job.task})"
        return Origin(by=by, host=_HOST, pid=os.getpid(), parent=None if job is None else job.id)

    def _describe_database(self) -> Database:
        """Enough of a database to write statements for its schema; no connection is made."""
        return self.database()

    async def _open(self) -> tuple[Database, Enqueuer]:
        loop = asyncio.get_running_loop()
        opened = self._opened.get(loop)
        if opened is None:
            database = self.database()
            await database.open(patience=30.0)
            await wait_for_schema(database, patience=10.0)
            opened = self._opened.setdefault(loop, (database, Enqueuer(database)))
            if opened[0] is not database:
                await database.close()
        return opened

    def _call(self, work: Callable[[Enqueuer], Any]) -> Any:
        with self._portal_lock:
            if self._portal is None:
                self._portal = Portal()
            portal = self._portal

        async def run() -> Any:
            return await work((await self._open())[1])

        return portal.call(run())


_HOST = socket.gethostname()


def _moment(what: str, value: datetime | float | None) -> float | None:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigError(f"{what}={value} has no time zone: add one, so that it means one moment")
        return value.timestamp()
    return value


def _deadline(value: Duration | datetime | None) -> float | None:
    if value is None or isinstance(value, datetime):
        return _moment("deadline", value)
    return time.time() + parse_duration(value, what="deadline")
