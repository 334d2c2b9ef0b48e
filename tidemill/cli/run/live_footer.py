"""The live foot of `tidemill up`: log lines scroll above it, queues and running jobs are shown in it."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tidemill.cli.render import count_cell, cut, held_columns, short, terminal
from tidemill.core.errors import TidemillError
from tidemill.store.database import Database
from tidemill.store.jobs.queues import list_queues
from tidemill.store.jobs.read import running_with_progress
from tidemill.store.migrate import wait_for_schema
from tidemill.version import VERSION

EVERY = 0.5
COST_RATIO = 20  # reading may take a twentieth of the time, however much there is to count
MOST_QUEUES, MOST_BARS = 12, 6
_INDENT = "  "
WIDE = 100  # columns of a terminal that has room for whole headings
SERVING, LINK = "serving ", "open "  # what the server prints once it answers
ROLE_STYLES = {"maintenance": "blue", "scheduler": "magenta", "up": "yellow"}

Row = Mapping[str, Any]


def child_line(name: str, line: str, *, wide: int, width: int) -> Text:
    """What a child printed, behind its name; it breaks between words, unless one has no room, such as a link."""
    style = ROLE_STYLES.get(name, "green")
    text, room = Text.from_ansi(line), width - wide - len(" │ ")
    shown = Text.assemble((f"{name:<{wide}} │ ", style))
    if text.cell_len <= room or any(cell_len(word) > room - len(_INDENT) for word in text.plain.split(" ")):
        return shown.append(text)
    first, rest = text.divide([_break_at(text.plain, room)])
    parts = [first, *rest.wrap(Console(), room - len(_INDENT))]
    for number, part in enumerate(parts):
        part.rstrip()
        if number:
            shown.append(f"\n{'':<{wide}} │ ", style).append(_INDENT)
        shown.append(part)
    return shown


def _break_at(line: str, room: int) -> int:
    """Behind the last space that the first line has room for."""
    return line.rindex(" ", 0, room + 1) + 1 if " " in line[: room + 1] else room


class Footer:
    """Owns the terminal while `up` runs. `print_line` puts a child's line above the footer."""

    def __init__(
        self, name: str, database: Database, queues: Sequence[str], *, wide: int, keys: str, hint: str
    ) -> None:
        self._console = terminal()
        self._database = database
        self._wide = wide
        self._keys = keys
        self._title = f"tidemill {VERSION} · {name} · {database.where}"
        self._status = "starting"
        self._console_at = ""
        self._hint = hint
        self._queues = {queue: empty_queue(queue) for queue in queues}
        self._rows: Sequence[Row] = []
        self._jobs: Sequence[Row] = []
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stderr=False)

    def __enter__(self) -> Footer:
        self._live.start()
        self._redraw()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()

    def set_status(self, status: str) -> None:
        """Tell what is going on as a whole."""
        self._status = status
        self._redraw()

    def print_line(self, name: str, line: str) -> None:
        """A line that a child printed."""
        if name == "server" and line.startswith(SERVING):
            self._console_at = line.removeprefix(SERVING).strip()
        elif name == "server" and line.startswith(LINK):
            self._console_at = line.removeprefix(LINK).split()[0]
        shown = child_line(name, line, wide=self._wide, width=self._console.width)
        with contextlib.suppress(OSError):  # A closed terminal must not prevent a clean stop.
            self._console.print(shown, soft_wrap=True)

    async def follow(self) -> None:
        """Refresh the footer until cancelled."""
        await wait_for_schema(self._database)
        if self._status == "starting":
            self._status = self._keys
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                self._rows = [dict(row) for row in await list_queues(self._database, ended_within=60.0)]
                self._jobs = [dict(row) for row in await running_with_progress(self._database, limit=MOST_BARS)]
            except TidemillError as error:
                self._status = cut(str(error))
            self._redraw()
            await asyncio.sleep(max(EVERY, (loop.time() - began) * COST_RATIO))

    def _redraw(self) -> None:
        found = {row["name"]: row for row in self._rows}
        rows = list({**self._queues, **found}.values())
        with contextlib.suppress(OSError):
            foot = draw_footer(
                self._title,
                self._status,
                rows,
                self._jobs,
                self._hint,
                console_at=self._console_at,
                width=self._console.width,
            )
            self._live.update(foot, refresh=True)


class OwnLines(io.TextIOBase):
    """A file whose lines go above the footer as our own."""

    def __init__(self, footer: Footer) -> None:
        self._footer = footer
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._footer.print_line("up", line)
        return len(text)


def draw_footer(
    title: str, status: str, queues: Sequence[Row], jobs: Sequence[Row], idle: str, *, console_at: str, width: int
) -> RenderableType:
    """The footer as a picture of these rows."""
    parts: list[RenderableType] = [Rule(Text(title, style="bold"), style="dim"), queue_table(queues, width)]
    if jobs:
        parts.append(progress_table(jobs))
    elif not any(row["waiting"] + row["scheduled"] + row["running"] + row["succeeded"] for row in queues):
        parts.append(Text(idle, style="dim", no_wrap=True, overflow="ellipsis"))
    if console_at:
        parts.append(Text(console_at, style="dim", overflow="fold"))  # a link that is cut logs no browser in
    parts.append(Text(status, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def queue_table(queues: Sequence[Row], width: int) -> Table:
    held = held_columns((row["throttled"] for row in queues), (row["no_worker"] for row in queues))
    heads = (
        ("waiting", "scheduled", *held, "running", "done/min", "failed/min", "oldest", "workers")
        if width >= WIDE
        else ("wait", "sched", *held, "run", "done/m", "fail/m", "oldest", "workers")
    )
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2 if width >= WIDE else 1, 0, 0))
    table.add_column("queue", no_wrap=True, max_width=30)
    for name in heads:
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    for row in queues[:MOST_QUEUES]:
        table.add_row(
            row["name"],
            count_cell(row["waiting"], "bold"),
            count_cell(row["scheduled"]),
            *(count_cell(row[name], "yellow") for name in held),
            count_cell(row["running"], "cyan"),
            count_cell(row["succeeded"], "green"),
            count_cell(row["unsuccessful"], "bold red"),
            Text("" if row["oldest"] is None else short(row["oldest"])),
            count_cell(row["workers"]) if row["workers"] else Text("none", style="yellow"),
        )
    if len(queues) > MOST_QUEUES:
        table.add_row(Text(f"and {len(queues) - MOST_QUEUES} more", style="dim"))
    return table


def progress_table(jobs: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True, max_width=24)
    table.add_column(width=24)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for job in jobs:
        bar = ProgressBar(total=1.0, completed=job["progress"], width=24)
        story = Text(f"{short(job['running_for'])}  {cut(job['note'], 60)}", style="dim")
        table.add_row(f"#{job['id']}", job["task"], bar, f"{job['progress']:.0%}", story)
    return table


def empty_queue(name: str) -> Row:
    """A queue of which nothing is known yet."""
    counts = dict.fromkeys(
        ("waiting", "scheduled", "throttled", "no_worker", "running", "succeeded", "unsuccessful", "workers"), 0
    )
    return {"name": name, **counts, "oldest": None}
