"""`tidemill top`: hosts, workers, queues and runs on one screen, kept true while you look."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime

from rich.console import Console
from rich.live import Live

from tidemill.cli.admin.top_view import Scene, picture, to_json
from tidemill.cli.connection_options import HERE, ConnectionOptions, opened
from tidemill.cli.render import out, print_json
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.store.database import Database
from tidemill.store.jobs.read import count_queues
from tidemill.store.jobs.workers import list_workers
from tidemill.store.notify import Listener
from tidemill.store.runs.runs import list_runs
from tidemill.store.telemetry.hosts import HOSTS_CHANNEL, list_hosts

EVERY = 1.0
COST_RATIO = 20  # looking may take a twentieth of the time, however much there is to count
HOSTS_WITHIN = 300.0
MOST_RUNS = 8


def top(*, once: bool = False, json: bool = False, place: ConnectionOptions = HERE) -> None:
    """Watch hosts, workers, queues and runs live; q or Ctrl-C leaves.

    Parameters
    ----------
    once
        Print it once and leave.
    json
        Print one JSON document and leave.
    """
    if not (once or json) and not sys.stdout.isatty():
        raise ConfigError("`tidemill top` needs a terminal to draw on: use --once or --json here")
    asyncio.run(_show(place, json) if once or json else _watch(place))


async def look(database: Database) -> Scene:
    """Everything that `top` shows, as it is now."""
    return Scene(
        where=database.where,
        at=datetime.now(UTC),
        hosts=[dict(row) for row in await list_hosts(database, within=HOSTS_WITHIN)],
        workers=[dict(row) for row in await list_workers(database, ended_within=0.0)],
        queues=[dict(row) for row in await count_queues(database, within=60.0)],
        runs=[dict(row) for row in await list_runs(database, limit=MOST_RUNS)],
    )


async def _show(place: ConnectionOptions, json: bool) -> None:
    async with opened(place.settings()) as database:
        scene = await look(database)
    if json:
        print_json(to_json(scene))
    else:
        console = out()
        console.print(picture(scene, width=console.width))


async def _watch(place: ConnectionOptions) -> None:
    console = Console(file=sys.stdout, highlight=False, emoji=False, markup=False)
    leaving = asyncio.Event()
    async with opened(place.settings()) as database, _news_of_hosts(database) as news:
        live = Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False)
        with _keys(leaving.set), live:
            drawing = asyncio.create_task(_draw(database, live, news))
            quitting = asyncio.create_task(leaving.wait())
            await asyncio.wait([drawing, quitting], return_when=asyncio.FIRST_COMPLETED)
            for task in (drawing, quitting):
                task.cancel()
            await asyncio.wait([drawing, quitting])
        if not drawing.cancelled():
            drawing.result()


async def _draw(database: Database, live: Live, news: Callable[[float], Awaitable[None]]) -> None:
    """Redraw the screen when there is news, and at least every second."""
    loop = asyncio.get_running_loop()
    scene: Scene | None = None
    trouble: str | None = None
    while True:
        began = loop.time()
        try:
            scene, trouble = await look(database), None
        except TidemillError as error:
            trouble = str(error)
        if scene is not None:
            size = live.console.size
            live.update(picture(scene, width=size.width, height=size.height, trouble=trouble, live=True), refresh=True)
        elif trouble is not None:
            raise ConfigError(trouble)
        cost = (loop.time() - began) * COST_RATIO
        if cost > EVERY:
            await asyncio.sleep(cost)
        else:
            await news(EVERY)


@asynccontextmanager
async def _news_of_hosts(database: Database) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
    """Something to wait on: returns at a host's new sample, or after so many seconds."""
    heard = asyncio.Event()
    listener = Listener(database)
    listener.on(HOSTS_CHANNEL, lambda _: heard.set())

    async def wait(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await heard.wait()
        heard.clear()

    listening = asyncio.create_task(listener.run())
    try:
        yield wait
    finally:
        listening.cancel()
        await asyncio.wait([listening])


@contextmanager
def _keys(leave: Callable[[], None]) -> Iterator[None]:
    """Call `leave` at q, Escape or Ctrl-C; the terminal is given back as it was."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave)
    if not sys.stdin.isatty():
        yield
        return
    import termios  # not on every platform, and only needed with a keyboard
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def pressed() -> None:
        keys = sys.stdin.buffer.raw.read(32) or b"q"  # pyright: ignore[reportAttributeAccessIssue] - end of input leaves
        if keys == b"\x1b" or any(key in b"qQ\x03\x04" for key in keys):
            leave()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
