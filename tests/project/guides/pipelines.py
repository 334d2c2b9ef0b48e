"""What docs/pipelines.md takes for granted: notes of a day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidemill.pipelines import update_pipeline


async def prepare(names: dict[str, Any]) -> None:
    notes = Path("output/daily/2026-01-15/notes.txt")
    notes.parent.mkdir(parents=True)
    notes.write_text("09:00 high water\n" * 40)


async def after(names: dict[str, Any]) -> None:
    assert names["left"].builds == []
    # The application may end before it has built from the state that the page writes.
    assert (await update_pipeline(names["blog"])).builds == []
    digest = Path("output/final/2026-01-15-daily-digest.md").read_text()
    assert digest.startswith("# 2026-01-15\n\n10:02 all is well\n09:00 high water")
