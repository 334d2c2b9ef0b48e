"""`tidemill value`: a value of which other commands show the beginning, whole."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.ops.operator.operation import Operator


def value(
    where: Annotated[str, Parameter(help="Where it is, as the command that cut it says: job/result/7.")],
    /,
    *,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Write a large value whole to the standard output, as it is stored."""

    async def work(at: Operator) -> None:
        async for piece in at.read_value(where):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()

    connection.run(work)
