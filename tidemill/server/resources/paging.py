"""What lists in pages are asked for: how many, and where the page begins."""

from __future__ import annotations

from typing import Annotated

from litestar.params import QueryParameter

MOST = 200

Limit = Annotated[int, QueryParameter(ge=1, le=MOST, description="How many to show on a page.")]
BEGINS = "Where the page begins: `next` of the page before."
Cursor = Annotated[str | None, QueryParameter(max_length=64, description=BEGINS)]
NameCursor = Annotated[str | None, QueryParameter(max_length=6000, description=BEGINS)]
Word = Annotated[str | None, QueryParameter(max_length=400)]
