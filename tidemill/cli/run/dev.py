"""`tidemill dev`: everything in one terminal, started again whenever code changes.

The database stays open in this process. `tidemill up` runs as its child: when a file changes, the child ends as for any
deploy, gives back what it has not finished, and the next one goes on with the new code.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import termios
import tty
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import watchfiles
from cyclopts import Parameter

from tidemill.cli.arguments import Application
from tidemill.cli.connection_options import HERE, ConnectionOptions
from tidemill.cli.open_database import database_environment, database_options
from tidemill.cli.run.role_process import handle_signals, opened_for_role
from tidemill.core.accounts import Caller
from tidemill.engine.settings import load_settings
from tidemill.ops.admin.tokens import create_login_link
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Nothing
from tidemill.server.listening import listen
from tidemill.server.settings import LOOPBACK, PORT, ServerSettings
from tidemill.store.access.tokens import login_url
from tidemill.store.database import Database

WATCHED = (".py", ".yaml", ".yml", ".toml", ".sql")
GRACE_SECONDS = 5.0
KEYS = "press o to open the console, r to restart, q to quit"
_PR_SET_PDEATHSIG = 1


def dev(
    app: Application,
    /,
    *,
    watch: Annotated[
        list[Path] | None, Parameter(help="A folder to watch; may be repeated. The application's folder if not given.")
    ] = None,
    port: Annotated[
        int | None, Parameter(help="The port of the console; any free one if the usual one is taken.")
    ] = None,
    connection: ConnectionOptions = HERE,
) -> int:
    """Start everything, and start it again when code changes: jobs and runs go on with the new code.

    Press o to open the console in a browser, r to restart, q or Ctrl-C to quit.
    """
    folders = watch or [_folder_of(app)]
    # The socket outlives restarts: the console keeps its address, and requests wait for the new server.
    with listen(ServerSettings(port=PORT if port is None else port, or_any_port=port is None)) as listening:
        return asyncio.run(_run(app, [folder.resolve() for folder in folders], listening, connection))


async def _run(app: str, folders: list[Path], listening: socket.socket, connection: ConnectionOptions) -> int:
    database = Database(load_settings(**connection.arguments()).database(), label="tidemill dev")
    try:
        if not await opened_for_role(database):
            return 0
        return await _restart_on_change(app, folders, listening, connection, database)
    finally:
        await database.close()


async def _restart_on_change(
    app: str, folders: list[Path], listening: socket.socket, connection: ConnectionOptions, database: Database
) -> int:
    """Run `tidemill up` until a signal or key ends it; a change restarts it."""
    url = f"http://{LOOPBACK}:{listening.getsockname()[1]}"
    requests: asyncio.Queue[str] = asyncio.Queue()
    handle_signals(lambda: requests.put_nowait("quit"))
    watching = asyncio.create_task(_watch(folders, requests))
    opening: set[asyncio.Task[None]] = set()
    try:
        with _keys(requests):
            while True:
                up = await _start(app, listening, connection)
                while (reason := await _next_request(up, requests)) == "open":
                    task = asyncio.create_task(_open_console(database, url))
                    opening.add(task)
                    task.add_done_callback(opening.discard)
                if reason == "ended":
                    _say("all processes have ended, for the reason above; waiting for a change, or for r")
                    while (reason := await requests.get()) == "open":
                        pass
                await _end(up, requests)
                if reason == "quit":
                    return 0
                _say(f"{reason}: starting again")
    finally:
        for task in (watching, *opening):
            task.cancel()


async def _next_request(up: asyncio.subprocess.Process, requests: asyncio.Queue[str]) -> str:
    """The reason to start again, or "open", "quit", or "ended" if the processes ended by themselves."""
    ended, asked = asyncio.create_task(up.wait()), asyncio.create_task(requests.get())
    await asyncio.wait([ended, asked], return_when=asyncio.FIRST_COMPLETED)
    for waiting in (ended, asked):
        waiting.cancel()
    return asked.result() if asked.done() and not asked.cancelled() else "ended"


async def _start(app: str, listening: socket.socket, connection: ConnectionOptions) -> asyncio.subprocess.Process:
    keys = [f"--keys={KEYS}"] if sys.stdin.isatty() else []
    number = listening.fileno()
    given = connection.arguments()
    options = [f"--listening={number}", *keys, *database_options(given)]
    command = [sys.executable, "-m", "tidemill.cli.main", "up", app, *options]
    defaults = {"TIDEMILL_GRACE_SECONDS": f"{GRACE_SECONDS:g}", "TIDEMILL_LOG_FORMAT": "human"}
    environment = {**defaults, **os.environ, **database_environment(given)}
    return await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_end_with_parent,
        pass_fds=(number,),
    )


async def _end(up: asyncio.subprocess.Process, requests: asyncio.Queue[str]) -> None:
    """End the processes: running work has its grace; a second Ctrl-C gives it back at once."""
    while up.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            up.send_signal(signal.SIGTERM)
        ended, asked = asyncio.create_task(up.wait()), asyncio.create_task(_asked_to_quit(requests))
        await asyncio.wait([ended, asked], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        ended.cancel()


async def _asked_to_quit(requests: asyncio.Queue[str]) -> None:
    while await requests.get() != "quit":
        pass
    requests.put_nowait("quit")


async def _open_console(database: Database, url: str) -> None:
    """Open the console in a browser, with a link that logs it in."""
    made = await Local(database, Caller("tidemill dev", "admin")).do(create_login_link, Nothing())
    link = login_url(url, made.secret)
    if not await asyncio.to_thread(webbrowser.open, link):
        _say(f"no browser can be opened from here: open {link}")


async def _watch(folders: list[Path], requests: asyncio.Queue[str]) -> None:
    def is_code(_change: watchfiles.Change, path: str) -> bool:
        inside = next(Path(path).relative_to(folder) for folder in folders if Path(path).is_relative_to(folder))
        return path.endswith(WATCHED) and not any(part.startswith((".", "__pycache__")) for part in inside.parts)

    async for changes in watchfiles.awatch(*folders, watch_filter=is_code):
        names = sorted({Path(path).name for _, path in changes})
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        requests.put_nowait(f"{', '.join(names[:3])}{more} changed")


@contextlib.contextmanager
def _keys(requests: asyncio.Queue[str]) -> Iterator[None]:
    """Read single keys, where there is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, lambda: _press(os.read(terminal, 1), requests))
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _press(key: bytes, requests: asyncio.Queue[str]) -> None:
    known = {b"o": "open", b"r": "asked to restart", b"q": "quit"}
    if key in known:
        requests.put_nowait(known[key])


def _end_with_parent() -> None:
    """In the child: end when this process is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _folder_of(app: str) -> Path:
    """The folder of an application's file; the current one, if it is named as a module."""
    path = Path(app.partition(":")[0])
    return path.parent if path.suffix == ".py" else Path()


def _say(text: str) -> None:
    print(f"tidemill dev: {text}", flush=True)
