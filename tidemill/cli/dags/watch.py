"""Shows a run of a dag: once, as it was after a tick, or until it has ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime

from rich.live import Live

from tidemill.cli.dags.page import DagPage, live, page, page_json
from tidemill.cli.jobs.page import json_text
from tidemill.cli.render import out, print_json, short, terminal
from tidemill.core.errors import ConfigError
from tidemill.core.printable import printable
from tidemill.dags.view.view import NodeLine
from tidemill.ops.operator.operation import Operator
from tidemill.ops.runs.dags import GetTree, get_dag_tree
from tidemill.ops.runs.runs import RunRef, get_run
from tidemill.ops.waiting import SAFETY_POLL

REDRAW = 1.0  # times and progress on a terminal are never older than this
COST_RATIO = 10  # reading takes at most a tenth of the time, however large the run is
LEAST_ROOM = 40  # lines of the tree at the end, when it has been followed


async def show_dag_run(at_: Operator, number: int, *, at: int | None, follow: bool, json: bool) -> int:
    """Show a run of a dag once, as it was after a tick, or until it ends; returns the exit status."""
    if at is not None and follow:
        raise ConfigError("--at shows the past and --follow the present: give one of them")
    if follow:
        return await follow_run(at_, number, json=json)
    shown = await read_page(at_, number, tick=at)
    if json:
        print_json(page_json(shown))
    else:
        console = out()
        console.print(page(shown, console.width))
    return 0


async def read_page(at: Operator, number: int, *, tick: int | None = None) -> DagPage:
    """A run as it is now, or as it was after a tick."""
    tree = await at.do(get_dag_tree, GetTree(id=number, at=tick))
    # Read after the tree, so that an ended run has its result.
    return DagPage(await at.do(get_run, RunRef(id=number)), tree)


async def follow_run(at: Operator, number: int, *, json: bool) -> int:
    """Show a run until it has ended; returns the exit status."""
    if json:
        shown = await _until_end(at, number, lambda shown: None)
        print_json(page_json(shown))
    elif sys.stdout.isatty():
        shown = await _draw(at, number)
    else:
        shown = await _until_end(at, number, Changes().print)
        _print_end(shown)
    return 0 if shown.tree.state == "succeeded" else 1


async def _draw(at: Operator, number: int) -> DagPage:
    console = terminal()
    with Live(console=console, auto_refresh=False, redirect_stderr=False, transient=True) as drawing:

        def draw(shown: DagPage) -> None:
            drawing.update(live(shown, console.width, console.height), refresh=True)

        shown = await _until_end(at, number, draw, every=REDRAW)
    console.print(page(shown, console.width, room=max(LEAST_ROOM, console.height)))
    return shown


async def _until_end(
    at: Operator, number: int, show: Callable[[DagPage], None], *, every: float = SAFETY_POLL
) -> DagPage:
    """Read and show a run whenever it or one of its jobs changes, until it has ended."""
    loop = asyncio.get_running_loop()
    async with at.watch(f"run:{number}", "queues") as changes:
        while True:
            began = loop.time()
            shown = await read_page(at, number)
            show(shown)
            if shown.tree.state != "running":
                return shown
            await asyncio.sleep((loop.time() - began) * COST_RATIO)
            await changes.wait(every)


class Changes:
    """Prints what has changed since the last time, one line each: for pipes and logs."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._warned: list[str] = []

    def print(self, shown: DagPage) -> None:
        path: list[str] = []
        for line in shown.lines:
            depth = len(line.branch) // 3 - 1
            path = [*path[:depth], line.label]
            if line.branch.endswith("· "):
                continue
            name = "/".join(path)
            if self._before.get(name, "pending") != line.state:
                print(f"{datetime.now(UTC):%H:%M:%S}  {name:<24} {_describe(line)}".rstrip(), flush=True)
            self._before[name] = line.state
        why = [] if shown.ended else shown.tree.why
        if not shown.tree.run_workers and not shown.ended and why != self._warned:
            sys.stderr.write(printable(" ".join(why)) + "\n")
        self._warned = why


def _describe(line: NodeLine) -> str:
    took = "" if line.took is None or line.state in ("queued", "running", "waiting") else f"  {short(line.took)}"
    return f"{line.state:<10}{took}{f'  {line.why}' if line.why else ''}"


def _print_end(shown: DagPage) -> None:
    run = shown.run
    if shown.tree.state == "succeeded":
        print(json_text(run.result))
    else:
        sys.stderr.write(f"error: run r{run.id} {shown.tree.state}: {printable(run.note or 'no reason was given')}\n")
