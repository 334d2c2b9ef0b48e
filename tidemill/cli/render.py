"""What commands print: tables and relative times for people, one JSON document for programs."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from tidemill.core.printable import on_one_line, printable, printable_json

PIPE_WIDTH = 160
WIDEST = 32  # a cell of an ordinary column
SHORTEST = 12  # what is left of a text that is cut
KEPT = 24  # what is left of the text of a `wide` column while other texts can be cut
PADDING = 1  # behind each cell

STATE_STYLES = {
    "ready": "",
    "throttled": "yellow",
    "no_worker": "yellow",
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "dim",
    "expired": "dim yellow",
    "paused": "yellow",
    "draining": "yellow",
    "lost": "red",
    "silent": "red",
}

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


class SafeConsole(Console):
    """Escapes what a terminal would obey in the texts that it prints: names and errors come from anywhere."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class LineTable(Table):
    """A table whose texts take one line each: line breaks and control characters are escaped.

    Where it is wider than the terminal, empty columns are left out, then long texts are cut, then columns of zeros are
    left out, and then the last columns follow below, behind the first one. Heads and figures are never cut.
    """

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*map(_one_line, cells), **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Any]:
        for part in self._parts(console, options):
            yield from Table.__rich_console__(part, console, options)

    def _parts(self, console: Console, options: ConsoleOptions) -> Iterable[Table]:
        wanted = [self._measure_column(console, options, column).maximum for column in self.columns]
        if self._room(wanted) <= options.max_width:
            return [self]
        least = [width if number == 0 else _least(self.columns[number], width) for number, width in enumerate(wanted)]
        kept = self._columns_with_more_than("")
        if self._room(least[number] for number in kept) > options.max_width:
            kept = self._columns_with_more_than("", "0")
        groups = [[0]]
        for number in kept[1:]:
            if len(groups[-1]) > 1 and self._room(least[each] for each in (*groups[-1], number)) > options.max_width:
                groups.append([0])
            groups[-1].append(number)
        return [self._part(group, wanted, least, options.max_width) for group in groups]

    def _columns_with_more_than(self, *nothing: str) -> list[int]:
        """The first column, and those that have something else in a row."""
        others = range(1, len(self.columns))
        return [
            0,
            *(number for number in others if any(str(cell) not in nothing for cell in self.columns[number].cells)),
        ]

    def _part(self, group: Sequence[int], wanted: Sequence[int], least: Sequence[int], most: int) -> Table:
        """The table with only these columns, the longest texts cut as far as it takes."""
        widths = {number: wanted[number] for number in group}
        wide = [number for number in group if self.columns[number].ratio]
        while self._room(widths.values()) > most:
            longer = [number for number in group if widths[number] > least[number]]
            if not longer:
                break
            longest = max(longer, key=lambda number: (number in wide and widths[number] > KEPT, widths[number]))
            widths[longest] -= 1
        part = copy(self)
        part.columns = [replace(self.columns[number], _index=place) for place, number in enumerate(group)]
        part.expand = bool(wide)
        for column, number in zip(part.columns, group, strict=True):
            if not column.ratio and widths[number] < wanted[number]:
                column.width = widths[number] - PADDING
        return part

    def _room(self, widths: Iterable[int]) -> int:
        each = [*widths]
        return sum(each) + len(each) - 1


def _least(column: Column, width: int) -> int:
    """How narrow a column may become: figures stay whole, and so does what they are."""
    if column.justify == "right":
        return width
    return min(width, max(len(str(column.header)), SHORTEST) + PADDING)


def _one_line(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return on_one_line(cell)
    if isinstance(cell, Text) and not cell.plain.isprintable():
        return Text(on_one_line(cell.plain), style=cell.style)
    return cell


def out() -> Console:
    """Where results go; in a pipe, lines are as long as the tables want."""
    return terminal(None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH)


def terminal(width: int | None = None) -> Console:
    """A console on standard output, as wide as the terminal if no width is given."""
    return SafeConsole(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)


def facts_grid(facts: Iterable[tuple[str, str]], *, style: str = "dim") -> Padding:
    """Facts below a heading, one a line: what does not fit goes on below itself."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style=style, no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in facts:
        made.add_row(name, value)
    return Padding(made, (0, 0, 0, 2), expand=False)


def indented(sentence: str) -> str:
    """A sentence below a heading; its further lines cannot be taken for others."""
    return "  " + sentence.replace("\n", "\n    ")


def print_json(value: Any) -> None:
    """One JSON document."""
    text = printable_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show(
    rows: Sequence[Any],
    made: Callable[[Sequence[Any], datetime], RenderableType],
    *,
    none: str,
    json: bool = False,
    cursor: str | None = None,
) -> None:
    """Print a list: as JSON, as a table with the cursor of what follows, or `none` where it is empty."""
    if json:
        return print_json(rows)
    if not rows:
        return out().print(none, style="dim")
    out().print(made(rows, datetime.now(UTC)))
    if cursor is not None:
        out().print(f"\nmore: --cursor {cursor}", style="dim")
    return None


def table(*columns: str, numbers: Sequence[str] = (), wide: str | None = None) -> Table:
    """An open table whose cells are cut, never wrapped; `wide` gets what room is left."""
    made = LineTable(
        box=box.SIMPLE_HEAD,
        padding=(0, PADDING, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
        expand=wide is not None,
    )
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in numbers else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=None if name == wide else WIDEST,
            ratio=1 if name == wide else None,
        )
    return made


def state(name: str) -> Text:
    return Text(name, style=STATE_STYLES.get(name, ""))


def cut(text: str | None, most: int = 400) -> str:
    """The first line of a text, for a table cell."""
    line = (text or "").strip().split("\n", 1)[0]
    return line if len(line) <= most else f"{line[: most - 1]}…"


def names(values: Iterable[str] | None) -> str:
    return ", ".join(values or ())


def listed(names: Sequence[str]) -> str:
    """`is mail`, `are mail, news`, `are none`."""
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(names) or 'none'}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 message`, `2 messages`, `3 entities`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def count_cell(number: int, style: str = "") -> Text:
    """A count in a table of counts: a faint dot in place of 0."""
    return Text(f"{number:,}", style=style) if number else Text("·", style="dim")


def held_columns(throttled: Iterable[int], no_worker: Iterable[int]) -> list[str]:
    """The columns of a table of queues for jobs that are held back: those with jobs in them, at least one."""
    counts = {"throttled": sum(throttled), "no_worker": sum(no_worker)}
    return [name for name, count in counts.items() if count] or ["throttled"]


def short(seconds: float) -> str:
    """A length of time in its largest unit: 340ms, 12s, 3m, 5h, 2d."""
    if seconds < 0:
        return f"-{short(-seconds)}"
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "0s"


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """A moment as seen from now: `3m ago`, `in 2h`."""
    if moment is None:
        return ""
    passed = ((now or datetime.now(UTC)) - moment).total_seconds()
    if abs(passed) < 1:
        return "now"
    return f"{short(passed)} ago" if passed > 0 else f"in {short(math.ceil(-passed))}"


def local(moment: datetime) -> str:
    """A moment on this machine's clock, to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def rate(per_second: float | None) -> str:
    """A rate in the unit in which it reads best."""
    if per_second is None:
        return ""
    for unit, seconds in (("s", 1), ("m", 60), ("h", 3600), ("d", 86400)):
        if per_second * seconds >= 1:
            return f"{round(per_second * seconds, 2):g}/{unit}"
    return f"{per_second * 86400:g}/d"
