"""What the steps of runs logged, as the API returns it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tidemill.ops.logs import LogLine, read_lines
from tidemill.server.server_state import ServerState
from tidemill.store.runs.log import read_step_logs


class StepLog(msgspec.Struct, frozen=True):
    """The last lines of an attempt at a step; `work` tells apart what the step was at."""

    work: int
    step: str
    attempt: int
    began_at: datetime
    dropped: int
    lines: list[LogLine]


class RunLog(msgspec.Struct, frozen=True):
    """What the steps of a run logged that ran where the run was, the last attempt first; others are jobs."""

    items: list[StepLog]


async def find_run_log(server_state: ServerState, run_id: int, step: str | None, limit: int) -> RunLog:
    """What a run's steps logged, or one of them."""
    rows = await read_step_logs(server_state.database, run_id, step=step, limit=limit)
    return RunLog(
        [
            StepLog(row["work"], row["step"], row["attempt"], row["began_at"], row["dropped"], read_lines(row["lines"]))
            for row in rows
        ]
    )
