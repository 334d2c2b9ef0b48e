"""`tidemill top`: hosts, workers, queues and runs on one screen, redrawn as they change."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter
from rich.live import Live

from tidemill.cli.admin.top_view import TopData, top_page
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import out, print_json, terminal
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.ops.admin.hosts import ListHosts, list_hosts
from tidemill.ops.jobs.queues import ListQueues, list_queues
from tidemill.ops.jobs.workers import ListWorkers, list_workers
from tidemill.ops.operator.operation import ChangeWatch, Operator
from tidemill.ops.runs.runs import ListRuns, list_runs

EVERY, AT_MOST = 1.0, 0.25
COST_RATIO = 20  # Reading may take a twentieth of the time, however much there is to count.
HOSTS_WITHIN = 300.0
MOST_RUNS = 8


def top(
    *,
    once: Annotated[bool, Parameter(help="Print it once and exit.")] = False,
    json: Annotated[bool, Parameter(help="Print one JSON document and exit.")] = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Watch hosts, workers, queues and runs live; q or Ctrl-C quits."""
    if not (once or json) and not sys.stdout.isatty():
        raise ConfigError("`tidemill top` needs a terminal to draw on: use --once or --json here")
    asyncio.run(_show(connection, json) if once or json else _watch(connection))


async def read_top_data(at: Operator) -> TopData:
    """Everything that `top` shows, as it is now."""
    return TopData(
        where=at.where,
        at=datetime.now(UTC),
        hosts=(await at.do(list_hosts, ListHosts(within=HOSTS_WITHIN))).items,
        workers=(await at.do(list_workers, ListWorkers(ended_within=0.0))).items,
        queues=(await at.do(list_queues, ListQueues(ended_within=60.0))).items,
        runs=(await at.do(list_runs, ListRuns(limit=MOST_RUNS))).items,
    )


async def _show(connection: ServerOptions, json: bool) -> None:
    async with connection.operator() as at:
        data = await read_top_data(at)
    if json:
        print_json(data)
    else:
        console = out()
        console.print(top_page(data, width=console.width))


async def _watch(connection: ServerOptions) -> None:
    console = terminal()
    leaving = asyncio.Event()
    async with connection.operator() as at, at.watch("hosts") as changes:
        live = Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False)
        with _keys(leaving.set), live:
            drawing = asyncio.create_task(_draw(at, live, changes))
            quitting = asyncio.create_task(leaving.wait())
            await asyncio.wait([drawing, quitting], return_when=asyncio.FIRST_COMPLETED)
            for task in (drawing, quitting):
                task.cancel()
            await asyncio.wait([drawing, quitting])
        if not drawing.cancelled():
            drawing.result()


async def _draw(at: Operator, live: Live, changes: ChangeWatch) -> None:
    """Redraw the screen at changes, at least every second and at most a few times a second."""
    loop = asyncio.get_running_loop()
    data: TopData | None = None
    trouble: str | None = None
    while True:
        began = loop.time()
        try:
            data, trouble = await read_top_data(at), None
        except TidemillError as error:
            trouble = str(error)
        if data is not None:
            size = live.console.size
            live.update(top_page(data, width=size.width, height=size.height, trouble=trouble, live=True), refresh=True)
        elif trouble is not None:
            raise ConfigError(trouble)
        await asyncio.sleep(max(AT_MOST, (loop.time() - began) * COST_RATIO))
        await changes.wait(EVERY)


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
