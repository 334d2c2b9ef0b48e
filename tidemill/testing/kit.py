"""What a test of an application needs: its own database, roles in the background, a clock to move, questions to ask.

    async def test_a_refund_is_cancelled_after_three_days(tidemill):
        tidemill.use(app)
        with tidemill.running():
            refund = await app.start(Refund, Order(id=7))
            tidemill.advance("3d")
            assert await refund == "cancelled"

Everything here is a plain call, for plain and for async tests alike: the roles run on an event loop in a thread of
their own, as they would in another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidemill.app import App
from tidemill.core.did_you_mean import find_declared
from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.engine.application.connections import SyncBridge
from tidemill.engine.jobs.task import Task
from tidemill.engine.jobs.view import JobView
from tidemill.monitors.definition.channels import Channel, Notice, channel_name
from tidemill.monitors.definition.monitor import Monitor
from tidemill.ops.monitors.alerts import Alert, ListAlerts, list_alerts
from tidemill.ops.runs.runs import ListRuns, Run, RunRef, get_run, list_runs
from tidemill.roles import running_here
from tidemill.sources.base import Source
from tidemill.sources.jsonl import JsonlSource
from tidemill.store.database import Database
from tidemill.store.jobs.schedules.schedules import NOTIFY_SCHEDULES
from tidemill.store.maintenance.databases_for_tests import (
    TestDatabases,
    count_due_entities,
    count_owned_runs,
    count_work_left,
    die_after,
    end_processes,
    extend_leases,
    list_jobs_of_task,
    next_due,
    read_published,
    set_clock,
)
from tidemill.store.migrate import migrate
from tidemill.store.runs.claims import free_runs
from tidemill.streams.definition.stream import Stream
from tidemill.testing.fakes import FakeChannel
from tidemill.testing.matching import fields_and_state, includes, value_of
from tidemill.testing.monitor_ticks import wait_for_ticks
from tidemill.testing.names import find_fed, run_name, task_name, trigger_name
from tidemill.testing.shifted_time import ShiftedTime

T = TypeVar("T")

POLL_SECONDS = 0.01
PAGE = 200
MOST_STATEMENTS = 60  # before a crash
LONGEST_PROCESS = 5.0  # seconds, of a process that has not run so many statements


class TestDatabaseServer:
    """The PostgreSQL of a test session, and the thread that talks to it."""

    __test__ = False

    def __init__(self, url: str, *, durable: bool = True) -> None:
        """`durable=False` is for a server that only tests use: it does not wait for the disk."""
        self.databases = TestDatabases(url, durable=durable)
        self.bridge = SyncBridge()

    def __enter__(self) -> TestDatabaseServer:
        self.bridge.call(self.databases.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.bridge.call(self.databases.close())
        self.bridge.close()


class TestKit:
    """The fixture `tidemill`."""

    __test__ = False

    def __init__(self, server: TestDatabaseServer) -> None:
        self._server = server
        self._bridge = server.bridge
        self._stack = contextlib.ExitStack()
        self._apps: dict[App, Database] = {}
        self._running: list[App] = []

    def __enter__(self) -> TestKit:
        self.url = self._bridge.call(self._server.databases.create())
        self._stack.callback(lambda: self._bridge.call(self._server.databases.drop(self.url)))
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-")))
        self._time = self._stack.enter_context(ShiftedTime())
        self._time.control(self._bridge.loop)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- applications -----------------------------------------------------------------------------

    def use(self, app: App, **settings: Any) -> App:
        """Give an application the database of this test, until the test ends; with other `settings`, if they are given.

        The application's own migrations are applied.
        """
        if app in self._apps:
            raise ConfigError(f"the test uses the application {app.name!r} already")
        declared = app.declarations
        # A lease outlasts every move of the clock: here its owner ends with the test.
        known = {"lease_seconds": "3650d", "heartbeat_seconds": 1.0, **settings, "database_url": self.url}
        self._stack.enter_context(declared.overriding(**known))
        self._stack.callback(declared.connections.abandon)
        if declared.uses("streams"):
            for stream in declared.streams.declared.values():
                self._replace(stream, "engines", 0)  # Plans run in this process, where the clock is the test's.
        self._apps[app] = database = declared.database(label="tidemill test")
        self._bridge.call(self._prepare(app, database))
        self._stack.callback(lambda: self._bridge.call(database.close()))
        self._stack.callback(lambda: self._bridge.call(declared.connections.close()))
        self._stack.callback(app.close_sync)
        return app

    def override(self, objects: Mapping[Any, Any], *, app: App | None = None, lifespan: bool = True) -> None:
        """Inject these objects in place of the real ones, by annotation, until the test ends: `{AsyncClient: fake}`.

        With `lifespan=False`, the application's lifespan is not opened: only these objects are there.
        """
        life = self._app(app).declarations.lifespan
        self._replace(life, "overrides", {**life.overrides, **objects})
        if not lifespan:
            self._replace(life, "hook", None)

    @contextlib.contextmanager
    def running(self, app: App | None = None, *, inline: bool = False) -> Iterator[App]:
        """Run all roles of the application in the background, for as long as the block lasts.

        With `inline`, `app.enqueue` and `app.enqueue_sync` return when the job has ended, however it ended.
        """
        chosen, stop, ready = self._app(app), asyncio.Event(), asyncio.Event()
        role = self._bridge.start(self._run(chosen, ready, stop))
        self._bridge.call(_first(ready.wait(), role))
        self._running.append(chosen)
        chosen.jobs.is_inline = inline
        try:
            yield chosen
        finally:
            chosen.jobs.is_inline = False
            self._running.remove(chosen)
            self._bridge.call(_stop(stop, role))

    def run_until_idle(self, app: App | None = None, *, timeout: Duration = "30s") -> None:
        """Run what is due until nothing is left to do: jobs that are due, runs that can go on, due schedules.

        What waits for time waits on: see `advance`. Outside of `running`, the roles run until then.
        """
        chosen = self._app(app)
        if chosen not in self._running:
            with self.running(chosen):
                self.run_until_idle(chosen, timeout=timeout)
            return
        self._bridge.call(self._wait_idle(chosen, parse_duration(timeout, what="timeout")))

    def simulate(
        self,
        app: App | None = None,
        *,
        seed: int = 0,
        crashes: int = 5,
        until: Callable[[], Any] | None = None,
        timeout: Duration = "60s",
    ) -> None:
        """Run what is due until nothing is left to do, or `until` is true, in processes that are killed.

        Each of them is a fork of this one with all roles of the application. It is killed with SIGKILL, `crashes` times
        and each time after a number of statements that is drawn from the seed; others take over what it had. What their
        code leaves in memory is lost, as in a crash: ask the database, files and services what has happened.
        """
        chosen, draw = self._app(app), random.Random(seed)
        if chosen in self._running:
            raise ConfigError("simulate() runs the roles in other processes: call it outside of running()")
        end = self._monotonic() + parse_duration(timeout, what="timeout")
        has_ended = partial(value_of, until or (lambda: self._bridge.call(self._is_idle(chosen))))
        for _ in range(crashes):
            process = self._fork(chosen, draw.randint(1, MOST_STATEMENTS))
            latest = min(end, self._monotonic() + LONGEST_PROCESS)
            is_alive = True
            try:
                while (
                    (is_alive := os.waitpid(process, os.WNOHANG) == (0, 0))
                    and not has_ended()
                    and self._monotonic() < latest
                ):
                    time.sleep(POLL_SECONDS)
            finally:
                if is_alive:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
            self._bridge.call(self._take_over(chosen))
            if has_ended():
                return
        with self.running(chosen):
            left = f"{max(end - self._monotonic(), 1):.0f}s"
            self.run_until_idle(chosen, timeout=left) if until is None else self.run_until(until, timeout=left)

    def run_until(self, condition: Callable[[], T], *, timeout: Duration = "30s") -> T:
        """The first true value of a condition, while the roles run; fails with its last value."""
        end = self._monotonic() + parse_duration(timeout, what="timeout")
        while not (value := value_of(condition)):
            if self._monotonic() > end:
                raise AssertionError(f"not within {timeout}: the condition is still {value!r}")
            time.sleep(POLL_SECONDS)
        return value

    def feed(
        self, what: Monitor | Stream | str, events: Iterable[Mapping[str, Any]], *, source: str | None = None
    ) -> None:
        """Give a monitor or a stream these events, instead of those of its source. The first call is before `running`.

        `source` names the source of a stream, where there are several; its weight, limits and eligibilities stay.
        """
        what = find_fed(self._app(None), what) if isinstance(what, str) else what
        if isinstance(what, Monitor):
            path = self._folder / f"{what.name}.jsonl"
            if not path.exists():
                self._refuse_while_running(f'feed("{what.name}", ...)')
                self._replace(what, "source", JsonlSource(path))
        else:
            old = find_declared("source", {each.name: each for each in what.sources}, source)
            path = self._folder / f"{what.name}-{old.name}.jsonl"
            if not path.exists():
                self._refuse_while_running(f'feed("{what.name}", ...)')
                shared = {name: getattr(old, name) for name in Source.__struct_fields__}
                fed = JsonlSource(path, **shared)
                self._replace(what, "sources", tuple(fed if each is old else each for each in what.sources))
        with path.open("ab") as file:
            file.writelines(msgspec.json.encode(event) + b"\n" for event in events)

    def _refuse_while_running(self, call: str) -> None:
        """Raise if the roles have read the declarations: what is replaced now would not count."""
        if self._running:
            raise ConfigError(f"{call}: call it before `with tidemill.running():`")

    def catch_notices(self, monitor: Monitor | str) -> list[Notice]:
        """Send the notices of a monitor to a list, and nowhere else. Call it before the roles run.

        The channels are replaced by fakes with the same names and options, so that digests and escalations stay as
        declared; `notice.channel` is the name of the channel that would have sent it.
        """
        monitor = self._app(None).monitors.require(monitor) if isinstance(monitor, str) else monitor
        if not monitor.notify:
            raise ConfigError(f"monitor {monitor.name} sends no notices: give it channels with notify=[...]")
        self._refuse_while_running(f'catch_notices("{monitor.name}")')
        caught: list[Notice] = []
        options = [
            {**{name: getattr(real, name) for name in Channel.__struct_fields__}, "name": channel_name(real)}
            for real in monitor.notify
        ]
        fakes = tuple(FakeChannel(**each, caught=caught) for each in options)
        self._replace(monitor, "notify", fakes)
        return caught

    # -- time -------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The time of the test."""
        return datetime.fromtimestamp(self._time.now(), UTC)

    def advance(self, duration: Duration) -> None:
        """Move the clock forward, and let everything happen that is due on the way, each at its time.

        Without roles that run, only the clock moves: what is due then happens when they run.
        """
        with contextlib.suppress(RuntimeError):
            self._time.control(asyncio.get_running_loop())
        left = parse_duration(duration, what="duration")
        while left > 0:
            hop = left
            for app in self._running:
                due = self._bridge.call(next_due(self._apps[app]))
                hop = hop if due is None else min(hop, max(due, 0.001))
            self._bridge.call(self._move(hop))
            left -= hop
            for app in self._running:
                self.run_until_idle(app)

    # -- what happened ----------------------------------------------------------------------------
    # `within` is how long (in real time) running roles have until the assertion must hold.

    def enqueued(
        self, task: Task[Any, Any, Any] | str, /, *, app: App | None = None, within: Duration = 0, **arguments: Any
    ) -> list[JobView]:
        """The jobs of a task with these arguments, others left open; fails if there is none."""
        chosen = self._app(app)
        name = task_name(chosen, task, arguments)
        return self._find(
            lambda: self._jobs(chosen, name), lambda job: job.args, f"no job of {name} was enqueued", arguments, within
        )

    def not_enqueued(self, task: Task[Any, Any, Any] | str, /, *, app: App | None = None, **arguments: Any) -> None:
        """Fail if there is a job of a task with these arguments."""
        chosen = self._app(app)
        name = task_name(chosen, task, arguments)
        if found := [job for job in self._bridge.call(self._jobs(chosen, name)) if includes(job.args, arguments)]:
            often = "once, with" if len(found) == 1 else f"{len(found)} times, the first with"
            raise AssertionError(f"{name} was enqueued {often} {found[0].args}")

    def started(
        self, what: Any, /, *, app: App | None = None, within: Duration = 0, state: str | None = None, **fields: Any
    ) -> list[Run]:
        """The runs of a workflow or dag with these fields in their start event or arguments; fails if there is none."""
        chosen = self._app(app)
        name = run_name(chosen, what)
        wanted = fields if state is None else {**fields, "state": state}
        return self._find(
            lambda: self._runs(chosen, name), fields_and_state, f"no run of {name} was started", wanted, within
        )

    def published(self, topic: str, /, *, app: App | None = None, within: Duration = 0, **fields: Any) -> list[Any]:
        """The messages of a topic of the log with these fields; fails if there is none."""
        database = self._apps[self._app(app)]
        problem = f"nothing was published to {topic}"
        return self._find(lambda: read_published(database, topic), lambda message: message, problem, fields, within)

    def alerts(self, trigger: str, /, *, app: App | None = None, within: Duration = 0, **fields: Any) -> list[Alert]:
        """The alerts that a trigger has opened, such as those with `entity="press-1"`; fails if there is none."""
        chosen = self._app(app)
        problem = f"{trigger_name(chosen, trigger)} has opened no alert"
        return self._find(
            lambda: _every(chosen, list_alerts, ListAlerts(trigger=trigger, limit=PAGE)),
            msgspec.structs.asdict,
            problem,
            fields,
            within,
        )

    def _find(
        self,
        read: Callable[[], Coroutine[Any, Any, list[T]]],
        show: Callable[[T], Any],
        problem: str,
        wanted: Mapping[str, Any],
        within: Duration,
    ) -> list[T]:
        """What is there and includes what is wanted; fails with everything that is there."""
        end = self._monotonic() + parse_duration(within, what="within")
        while True:
            there = self._bridge.call(read())
            if found := [one for one in there if includes(show(one), wanted)]:
                return found
            if self._monotonic() >= end:
                with_these = f" with {dict(wanted)}" if wanted else ""
                listed = "".join(f"\n  {show(one)}" for one in there[:20]) or " nothing"
                raise AssertionError(f"{problem}{with_these}; there is:{listed}")
            time.sleep(POLL_SECONDS)

    def _app(self, app: App | None) -> App:
        if app is not None:
            if app not in self._apps:
                raise ConfigError(f"the test does not use the application {app.name!r}: call tidemill.use(app) first")
            return app
        if len(self._apps) != 1:
            many = (
                "several applications: say which with app=" if self._apps else "no application: call tidemill.use(app)"
            )
            raise ConfigError(f"the test uses {many}")
        return next(iter(self._apps))

    def _replace(self, declared: Any, name: str, value: Any) -> None:
        """Set an attribute of something that is declared, until the test ends."""
        self._stack.callback(setattr, declared, name, getattr(declared, name))
        setattr(declared, name, value)

    def _monotonic(self) -> float:
        return self._time._monotonic()

    async def _prepare(self, app: App, database: Database) -> None:
        await database.open()
        await migrate(database)
        for chain in app.declarations.chains:
            await migrate(database, chain)

    async def _run(self, app: App, ready: asyncio.Event, stop: asyncio.Event) -> None:
        async with running_here(app.declarations, None, None):
            ready.set()
            await stop.wait()

    def _fork(self, app: App, statements: int) -> int:
        """Run the roles of an application in a fork of this process that kills itself; returns its id."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # The child of the fork uses none of its threads.
            process = os.fork()
        if process:
            return process
        try:
            asyncio.run(self._run_and_die(app, statements))
        finally:
            os._exit(1)

    async def _run_and_die(self, app: App, statements: int) -> None:
        self._time.control(asyncio.get_running_loop())
        async with running_here(app.declarations, None, None):
            die_after(statements)
            await asyncio.Event().wait()

    async def _take_over(self, app: App) -> None:
        """Do at once what others do when the leases of killed processes have lapsed."""
        await end_processes(self._apps[app])
        await free_runs(self._apps[app])

    async def _is_idle(self, app: App) -> bool:
        return not any(await count_work_left(self._apps[app])) and not await count_owned_runs(self._apps[app])

    async def _wait_idle(self, app: App, timeout: float) -> None:
        database, end = self._apps[app], self._monotonic() + timeout
        while True:
            left = await count_work_left(database)
            runner = app.runs.run_workers.get(self._bridge.loop)
            busy = [] if runner is None else [run for run in runner.runs.values() if not run.is_idle]
            entities = await count_due_entities(database) if app.monitors else 0
            if not busy and not entities and not any(left):
                return
            if self._monotonic() > end:
                raise AssertionError(
                    f"not idle within {timeout:g} s: {left.jobs} jobs, {left.runs + len(busy)} runs, {left.messages} "
                    f"messages to runs, {left.schedules} schedules and {entities} entities of monitors are left; "
                    "does a task or step wait for real time?"
                )
            # No notification tells of all of it, and the timers of this loop follow the clock of the test.
            await asyncio.to_thread(time.sleep, POLL_SECONDS)

    async def _move(self, seconds: float) -> None:
        for database in self._apps.values():
            await extend_leases(database, seconds)
        for database in list(self._apps.values())[:1]:
            await set_clock(database, self._time.shift + seconds)
        self._time.move(seconds)
        await wait_for_ticks(self._running, self._monotonic)
        for database in self._apps.values():  # A scheduler may have read the clock before, and sleep from now on.
            await database.fetch(NOTIFY_SCHEDULES)

    async def _jobs(self, app: App, task: str) -> list[JobView]:
        return [JobView.of(dict(row)) for row in await list_jobs_of_task(self._apps[app], task)]

    async def _runs(self, app: App, name: str) -> list[Run]:
        lines = await _every(app, list_runs, ListRuns(workflow=name, limit=PAGE))
        return [await app.do(get_run, RunRef(id=line.id)) for line in reversed(lines)]


async def _every(app: App, listing: Any, args: Any) -> list[Any]:
    """The items of all pages of a listing."""
    found: list[Any] = []
    while True:
        page = await app.do(listing, args)
        found += page.items
        if page.next is None:
            return found
        args = msgspec.structs.replace(args, cursor=page.next)


async def _first(event: Any, role: asyncio.Task[None]) -> None:
    """Wait for the roles to serve, or for their failure."""
    waiting = asyncio.ensure_future(event)
    await asyncio.wait([waiting, role], return_when=asyncio.FIRST_COMPLETED)
    if role.done():
        waiting.cancel()
        role.result()


async def _stop(stop: asyncio.Event, role: asyncio.Task[None]) -> None:
    stop.set()
    await role
