"""The life of a process that plays a role, such as a worker: from its first line to its exit status.

SIGTERM or Ctrl-C lets the role end in its own time, a second one makes it end at once. Exit status: 0 when it
was stopped, 70 when its lease was lost, 75 and 76 when a watchdog ended it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidemill.app import App
from tidemill.cli.open_database import open_or_fail
from tidemill.core.errors import ConfigError, LeaseLostError
from tidemill.engine.application.load_app import load_app
from tidemill.engine.application.workflow_access import grant_access
from tidemill.engine.containment.crash_record import crash_record
from tidemill.engine.containment.exit_status import EXIT_FENCED, EXIT_MISCONFIGURED, exit_now
from tidemill.engine.roles.role import Runnable
from tidemill.engine.roles.supervisor import end_with_supervisor
from tidemill.engine.settings import Settings
from tidemill.engine.telemetry.endpoint import serving_metrics
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.engine.telemetry.sampler import sampling
from tidemill.engine.telemetry.tracing import configure_tracing
from tidemill.store.database import Database

try:
    from uvloop import run as run_loop
except ImportError:
    from asyncio import run as run_loop

STOP_PATIENCE = 5.0  # for what a role does last, unless it has jobs to wait for
LAST_CALL = 10.0  # after a second signal
STRAGGLERS = 0.5  # for threads to end, before the process ends without them


class Part(NamedTuple):
    """A role, ready to be played; `patience` is how long it may take to stop, None for as long as it needs."""

    role: Runnable
    database: Database
    settings: Settings
    patience: float | None = STOP_PATIENCE
    others: tuple[Database, ...] = ()
    """What it uses besides its database: closed with it."""


def application(target: str, given: Mapping[str, str], **settings: Any) -> App:
    """The application that a command names, with the command's options on top of its own settings."""
    known: App = load_app(target)
    if given.get("application") not in (None, known.name):
        raise ConfigError(f"{target} is the application {known.name!r}, and not {given['application']!r}")
    known.declarations.configure(**given, **settings)
    return known


def run_role(make: Callable[[], Part]) -> int:
    """A role's whole life, alone or as a supervisor's child; returns the exit status."""
    supervised = end_with_supervisor()
    status = 0
    end_tracing: Callable[[], None] | None = None
    try:
        part = make()
        if supervised is not None and supervised.piped:
            sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
            form = "human" if part.settings.log_format == "auto" else part.settings.log_format
            configure_logs(part.settings.log_level, form, colours=True)
        else:
            configure_logs(part.settings.log_level, part.settings.log_format)
        grant_access(part.settings, part.database)
        end_tracing = configure_tracing(part.role.name)
        run_loop(_run_role(part, supervised=supervised is not None))
    except LeaseLostError as error:
        sys.stderr.write(f"error: {error}\n")
        status = EXIT_FENCED
    except ConfigError as error:
        if supervised is None:
            raise
        sys.stderr.write(f"error: {error}\n")
        status = EXIT_MISCONFIGURED
    finally:
        if (error := sys.exception()) is None or isinstance(error, Exception):
            crash_record().forget_running()  # What ran was cancelled, and has not ended the process.
        if end_tracing is not None:
            end_tracing()
    exit_despite_threads(status)
    return status


def handle_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on each SIGTERM, Ctrl-C and hang-up, where those are not ignored."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop)


def exit_despite_threads(status: int) -> None:
    """End the process now if threads of abandoned jobs would keep it from ending."""
    give_up = time.monotonic() + STRAGGLERS
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.daemon:
            continue
        thread.join(max(0.0, give_up - time.monotonic()))
        if thread.is_alive():
            exit_now(status)


async def _run_role(part: Part, *, supervised: bool) -> None:
    """Run a role until a signal stops it."""
    loop = asyncio.get_running_loop()
    role = part.role
    ready = asyncio.ensure_future(role.wait_ready())
    signals = 0
    life = asyncio.ensure_future(_live(part, supervised=supervised, is_ready=lambda: ready.done() and not signals))

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        role.stop()
        if not ready.done():
            life.cancel()  # The role still waits for a database or a schema, and has nothing to finish.
        elif signals == 2:
            loop.call_later(LAST_CALL, exit_now, 1)
        elif part.patience is not None:
            loop.call_later(part.patience, life.cancel)

    handle_signals(on_signal)
    try:
        await life
    except asyncio.CancelledError:
        if not signals:
            raise
    finally:
        ready.cancel()
        for database in (*part.others, part.database):
            await database.close()


async def _live(part: Part, *, supervised: bool, is_ready: Callable[[], bool]) -> None:
    # Probes are answered while it waits for the database: else it would be taken for dead, and be killed.
    async with serving_metrics(part.database, None if supervised else part.settings.metrics, is_ready):
        await open_or_fail(part.database, patience=None)
        async with sampling(part.database, every=part.settings.sample_every, when=part.role.wait_ready):
            await part.role.run()


async def opened_for_role(database: Database) -> bool:
    """Wait for the database, however long it is away; False if a signal ended the wait."""
    opening = asyncio.ensure_future(open_or_fail(database, patience=None))

    def give_up() -> None:
        opening.cancel()

    handle_signals(give_up)
    try:
        await opening
    except asyncio.CancelledError:
        if not opening.cancelled():
            raise
        return False
    return True
