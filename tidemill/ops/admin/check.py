"""Check that the rows of the database fit together."""

from __future__ import annotations

import msgspec

from tidemill.ops.operator.operation import Nothing, operation
from tidemill.store.maintenance.check import Finding, find_misfits
from tidemill.store.transaction import Reader


class DatabaseCheck(msgspec.Struct, frozen=True):
    """What does not fit together; empty if everything does."""

    findings: list[Finding]


@operation("GET /database/check", role="viewer")
async def check_database(at: Reader, args: Nothing) -> DatabaseCheck:
    """Find rows that do not fit together, and say what to do. Without an application, those of all applications."""
    return DatabaseCheck(await find_misfits(at.database))
