"""What the steps of a run logged, as `tidemill run` shows it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from tidemill.cli.render import out
from tidemill.ops.runs.journal import StepAttemptLog

_STYLES = {"warning": "yellow", "error": "red", "critical": "red", "exception": "red"}


def print_log(attempts: Sequence[StepAttemptLog]) -> None:
    """Print what each attempt logged."""
    console = out()
    if attempts:
        console.print("\nlog", style="bold")
    for attempt in attempts:
        console.print(f"  {attempt.step}  work {attempt.work}, attempt {attempt.attempt}", style="dim")
        if attempt.dropped:
            console.print(f"    {attempt.dropped:,} earlier lines were not kept", style="dim")
        for line in attempt.lines:
            fields = " ".join(f"{name}={value}" for name, value in line.fields.items())
            text = f"{line.at:%H:%M:%S}  {line.level:<8} {line.event} {fields}".rstrip()
            console.print(Text(f"    {text}", style=_STYLES.get(line.level, "")))
            for row in line.trace.splitlines():
                console.print(Text(f"      {row}", style="dim"))
