"""Lists that come in pages, for commands that show as many items as `--limit` says."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.ops.operator.operation import MOST_ON_A_PAGE, Operation, Operator


async def read_pages(
    at: Operator, operation: Operation[Any, Any], args: Any, limit: int
) -> tuple[list[Any], str | None]:
    """The first `limit` items from the arguments' cursor on, and the cursor of what follows."""
    if limit < 1:
        raise ConfigError(f"--limit {limit} would show nothing")
    found: list[Any] = []
    cursor = args.cursor
    while len(found) < limit:
        size = min(MOST_ON_A_PAGE, limit - len(found))
        page = await at.do(operation, msgspec.structs.replace(args, limit=size, cursor=cursor))
        found += page.items
        cursor = page.next
        if cursor is None:
            break
    return found, cursor
