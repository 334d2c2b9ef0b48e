"""Rows of a comparison: ours beside one peer's, as a table and as JSON lines."""

import sys

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.shared.goals import goal_of

WIDTH = 120


class Row(msgspec.Struct, frozen=True):
    """One figure of ours and the same figure of one peer; `ratio` above 1 means that ours is better."""

    name: str
    ours: float | None
    peer: str
    theirs: float | None
    ratio: float | None
    unit: str


def compare(
    name: str, unit: str, ours: float | None, peer: str, theirs: float | None, *, less_is_better: bool = False
) -> Row:
    """The row for two figures, either of which may be missing."""
    ratio = None
    if ours and theirs:
        ratio = round(theirs / ours if less_is_better else ours / theirs, 3)
    return Row(name, _rounded(ours), peer, _rounded(theirs), ratio, unit)


def emit(title: str, rows: list[Row], *, json_only: bool) -> None:
    """Print the table, unless only JSON is wanted, and one JSON line per row, to stdout."""
    if not json_only:
        # Without a terminal rich assumes 80 columns, which would cut the names.
        Console(width=None if sys.stdout.isatty() else WIDTH).print(_table(title, rows))
    for row in rows:
        sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
    sys.stdout.flush()


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title)
    for heading in ("measure", "peer"):
        table.add_column(heading)
    for heading in ("ours", "theirs", "ours is better by", "goal", "unit"):
        table.add_column(heading, justify="right")
    previous = None
    for row in rows:
        if previous not in (None, row.name):
            table.add_section()
        ratio = "–" if row.ratio is None else f"{row.ratio:,.2f}×"
        table.add_row(row.name, row.peer, _shown(row.ours), _shown(row.theirs), ratio, _goal(row), row.unit)
        previous = row.name
    return table


def _goal(row: Row) -> str:
    """What the ratio is to reach, and whether it does."""
    goal = goal_of(row.name, row.peer)
    if goal is None:
        return ""
    return f"{goal:.2f}× {'–' if row.ratio is None else '✓' if row.ratio >= goal else '✗'}"


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)


def _shown(figure: float | None) -> str:
    if figure is None:
        return "–"
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:,.2f}"
