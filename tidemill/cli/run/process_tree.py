"""The processes that a command keeps running: what each of them runs, and the process that is their parent.

The parent is small, since each child begins as a copy of it and has what it has: commands are parsed, and the
application is loaded, in a copy that ends then.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec

from tidemill.cli.main import guarded, run as run_command
from tidemill.cli.open_database import database_environment, database_options
from tidemill.cli.run.role_process import handle_signals, opened_for_role
from tidemill.core.errors import StoreError
from tidemill.engine.containment.quarantine import announcer
from tidemill.engine.roles.forking import ask_copy, continue_from_copy
from tidemill.engine.roles.supervisor import PYTHON, ChildSpec, Supervisor
from tidemill.engine.settings import Settings
from tidemill.engine.telemetry.endpoint import serving_metrics
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.store.database import Database
from tidemill.store.maintenance.work_left import count_running, count_work
from tidemill.store.migrate import OWN_CHAIN, migrate

PROCESSES = "tidemill.cli.run.processes"
IDLE_POLL = 0.5  # seconds between checks for work that is left, with --until-idle


class TerminalView(msgspec.Struct, frozen=True):
    """What is shown below the output of the processes on a terminal."""

    name: str
    queues: tuple[str, ...]
    hint: str
    keys: str


class ProcessTree(msgspec.Struct, frozen=True):
    """The processes that a command keeps running, and their settings: what is known once the application is loaded."""

    settings: Settings
    specs: list[ChildSpec]
    label: str
    grace: float | None = None
    migrates: bool = False
    """Whether the schema is migrated first: where no maintenance process does it."""
    until_idle: bool = False
    """Whether they end when no job and no run is due or running."""
    queues: list[str] | None = None
    """The queues whose jobs count for that; None for all."""
    view: TerminalView | None = None


def child(
    name: str,
    given: Mapping[str, str],
    *arguments: str,
    grace: float | None = None,
    files: tuple[int, ...] = (),
    call: tuple[str, Mapping[str, Any]] | None = None,
) -> ChildSpec:
    """A command in a process of its own, on the same database; `files` are those of ours that it has too.

    `call` is the function of `processes` that the command ends in, and its arguments: a copy of its parent calls it.
    """
    command = (*PYTHON, *arguments, *database_options(given))
    function, values = call or ("", {})
    if function:
        values = {**values, "given": given}
    return ChildSpec(name, command, grace, database_environment(given), files, function, values)


def run_processes(load: Callable[[], ProcessTree]) -> int:
    """Be the parent of the processes that `load` returns until a signal; returns the exit status."""
    return _run_tree(ask_copy(load, ProcessTree))


def run_from_copy(words: Sequence[str]) -> int:
    """Run a command that keeps processes running: a copy of this process parses it, and this one is their parent."""
    return continue_from_copy(lambda: run_command(words), ProcessTree, _run_tree)


def run_child(spec: ChildSpec) -> int:
    """In a copy: the whole life of a child."""
    if not spec.function:
        return run_command(spec.command[len(PYTHON) :])
    return guarded(lambda: getattr(import_module(PROCESSES), spec.function)(**spec.values))


def _run_tree(tree: ProcessTree) -> int:
    if tree.view is not None and sys.stdout.isatty() and sys.stderr.isatty():
        return asyncio.run(_run_on_terminal(tree, tree.view))
    configure_logs(tree.settings.log_level, tree.settings.log_format, is_copied=True)
    return asyncio.run(_run(tree))


async def _run(tree: ProcessTree) -> int:
    """Hold the embedded server here, so that the end of a child is not the database's."""
    database = Database(tree.settings.database(), label=tree.label)
    supervisor = _supervisor(tree, database)
    is_open = False
    try:
        # Probes are answered while the database is away.
        async with serving_metrics(database, tree.settings.metrics, lambda: is_open and not supervisor.stopping):
            if not await opened_for_role(database):
                return 0
            if tree.migrates:
                await migrate(database, OWN_CHAIN)
            is_open = True
            handle_signals(supervisor.stop)
            ending = asyncio.ensure_future(_stop_when_idle(tree, database, supervisor)) if tree.until_idle else None
            try:
                return await supervisor.run()
            finally:
                if ending is not None:
                    ending.cancel()
    finally:
        await database.close()


async def _run_on_terminal(tree: ProcessTree, view: TerminalView) -> int:
    from tidemill.cli.run.live_footer import Footer, OwnLines  # with what draws on a terminal

    settings, wide = tree.settings, max(len(spec.name) for spec in tree.specs)
    database = Database(settings.database(), label=tree.label)
    try:
        if not await opened_for_role(database):
            return 0
        footer = Footer(view.name, database, view.queues, wide=wide, keys=view.keys, hint=view.hint)
        with footer, contextlib.redirect_stderr(OwnLines(footer)):
            configure_logs(settings.log_level, "human", colours=True, is_copied=True)
            supervisor = _supervisor(tree, database, footer.print_line)

            def stop() -> None:
                seconds = f"{settings.grace_seconds:g}s"
                footer.set_status(
                    "stopping at once"
                    if supervisor.stopping
                    else f"stopping: running jobs have {seconds} to finish; Ctrl-C again gives them back"
                )
                supervisor.stop()

            handle_signals(stop)
            showing = asyncio.create_task(footer.follow())
            try:
                async with serving_metrics(database, settings.metrics, lambda: not supervisor.stopping):
                    return await supervisor.run()
            finally:
                showing.cancel()
                await asyncio.wait([showing])
    finally:
        await database.close()


def _supervisor(tree: ProcessTree, database: Database, on_line: Callable[[str, str], None] | None = None) -> Supervisor:
    import_module(PROCESSES)  # imported once, before any copy is forked
    return Supervisor(
        tree.specs,
        grace=tree.settings.grace_seconds if tree.grace is None else tree.grace,
        on_line=on_line,
        on_death=announcer(database),
        silence=tree.settings.lease_seconds,
        run_child=run_child,
    )


async def _stop_when_idle(tree: ProcessTree, database: Database, supervisor: Supervisor) -> None:
    await wait_until_idle(database, queues=tree.queues, calm=2 * tree.settings.heartbeat_seconds)
    supervisor.stop()


async def wait_until_idle(database: Database, *, queues: list[str] | None, calm: float) -> None:
    """Return when nothing has been due for `calm` seconds, in which the children have reported that nothing runs."""
    import psutil  # slow to load, and rarely needed

    calm_since: float | None = None
    while True:
        await asyncio.sleep(IDLE_POLL)
        try:
            left = await count_work(database, queues)
            pids = [child.pid for child in psutil.Process().children()]
            running = await count_running(database, socket.gethostname(), pids)
        except StoreError:  # The database is away: what is due is unknown.
            calm_since = None
            continue
        if left.jobs or left.runs or left.messages or running:
            calm_since = None
        elif calm_since is None:
            calm_since = time.monotonic()
        elif time.monotonic() - calm_since >= calm:
            return
