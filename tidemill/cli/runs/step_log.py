"""What the steps of a run logged, as `tidemill run` shows it: from the database or from a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from tidemill.cli.render import out
from tidemill.core.codec import decode

_STYLES = {"warning": "yellow", "error": "red", "critical": "red", "exception": "red"}


def stored_log(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Attempts as the database has them, the first first."""
    found = [{**row, "lines": decode(row["lines"])} for row in rows]
    for attempt in found:
        for line in attempt["lines"]:
            line["at"] = datetime.fromtimestamp(line["at"], UTC)
    return found[::-1]


def served_log(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Attempts as a server tells them, the first first."""
    found = [{**item, "began_at": datetime.fromisoformat(item["began_at"])} for item in items]
    for attempt in found:
        for line in attempt["lines"]:
            line["at"] = datetime.fromisoformat(line["at"])
    return found[::-1]


def print_log(attempts: Iterable[Mapping[str, Any]]) -> None:
    """What each attempt logged."""
    console = out()
    for at, attempt in enumerate(attempts):
        if at == 0:
            console.print("\nlog", style="bold")
        console.print(f"  {attempt['step']}  work {attempt['work']}, attempt {attempt['attempt']}", style="dim")
        if attempt["dropped"]:
            console.print(f"    {attempt['dropped']:,} earlier lines were not kept", style="dim")
        for line in attempt["lines"]:
            fields = " ".join(f"{name}={value}" for name, value in line.get("fields", {}).items())
            told = f"{line['at']:%H:%M:%S}  {line['level']:<8} {line['event']} {fields}".rstrip()
            console.print(Text(f"    {told}", style=_STYLES.get(line["level"], "")))
            for row in line.get("trace", "").splitlines():
                console.print(Text(f"      {row}", style="dim"))
