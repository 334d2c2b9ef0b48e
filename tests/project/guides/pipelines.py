"""What docs/pipelines.md takes for granted: notes of a day."""

from __future__ import annotations

from pathlib import Path
from typing import Any


async def prepare(names: dict[str, Any]) -> None:
    notes = Path("output/daily/2026-01-15/notes.txt")
    notes.parent.mkdir(parents=True)
    notes.write_text("09:00 high water\n" * 40)


async def after(names: dict[str, Any]) -> None:
    digest = Path("output/final/2026-01-15-daily-digest.md").read_text()
    assert digest.startswith("# 2026-01-15\n\n09:00 high water")
    assert names["left"].builds == []
