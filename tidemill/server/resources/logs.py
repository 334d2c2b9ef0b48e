"""What jobs and steps logged, as the API tells it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from tidemill.core.codec import decode
from tidemill.server.server_state import Desk
from tidemill.store.jobs.log import read_logs
from tidemill.store.runs.log import read_step_logs


class LogLine(msgspec.Struct, frozen=True):
    """One line that was logged: when, how grave, its words, the fields beside them and the traceback, if any."""

    at: datetime
    level: str
    event: str
    fields: dict[str, Any] = {}
    trace: str = ""


class AttemptLog(msgspec.Struct, frozen=True):
    """The last lines of an attempt; `dropped` came before them and were not kept."""

    attempt: int
    began_at: datetime
    dropped: int
    lines: list[LogLine]


class JobLog(msgspec.Struct, frozen=True):
    """What the attempts at a job logged, the last attempt first."""

    items: list[AttemptLog]


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


async def find_log(desk: Desk, job_id: int) -> JobLog:
    """What a job's attempts logged; empty if they logged nothing, or nothing is kept of it any more."""
    rows = await read_logs(desk.database, job_id) if 0 < job_id < 2**63 else []
    return JobLog([AttemptLog(row["attempt"], row["began_at"], row["dropped"], _lines(row)) for row in rows])


async def find_run_log(desk: Desk, run_id: int, step: str | None, limit: int) -> RunLog:
    """What a run's steps logged, or one of them."""
    rows = await read_step_logs(desk.database, run_id, step=step, limit=limit)
    return RunLog(
        [
            StepLog(row["work"], row["step"], row["attempt"], row["began_at"], row["dropped"], _lines(row))
            for row in rows
        ]
    )


def _lines(row: Any) -> list[LogLine]:
    return [
        LogLine(
            datetime.fromtimestamp(line["at"], UTC),
            line["level"],
            line["event"],
            line.get("fields", {}),
            line.get("trace", ""),
        )
        for line in decode(row["lines"])
    ]
