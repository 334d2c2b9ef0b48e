"""What docs/pages.md takes for granted: the files of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any


async def prepare(names: dict[str, Any]) -> None:
    Path("page").mkdir()
    Path("page", "index.html").write_text("<h1>Parcels</h1>")
