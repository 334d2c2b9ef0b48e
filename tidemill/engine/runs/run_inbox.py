"""The inbox of runs: reads what is due for the runs of a run worker, and delivers each row once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from tidemill.core.codec import decode
from tidemill.core.errors import UnknownClassError
from tidemill.core.ticks import CancelAsked, Completed, Elapsed, Tick
from tidemill.engine.runs.durable_run import DurableRun, WorkEnd
from tidemill.engine.runs.run_store import RunStore
from tidemill.store.jobs.history.archive import SEVERAL
from tidemill.store.runs.run_turn import RunTurn

if TYPE_CHECKING:
    from tidemill.engine.runs.run_worker import RunWorker

log = structlog.get_logger("tidemill.runs")

MOST_INBOX = 5000
WRITE_AFTER = 0.002
URGENT = (b"cancel_asked", b"completed")  # the kinds of ticks, as they are stored


class RunInbox:
    """The inbox rows of the runs that one run worker has in memory."""

    def __init__(self, worker: RunWorker, store: RunStore) -> None:
        self._worker = worker
        self._store = store
        self._taken: set[int] = set()  # rows that a run has taken and that a read may still return
        self._written: set[int] = set()  # those of them whose turn has been written

    def wrote(self, turn: RunTurn) -> None:
        """Note that a turn is written: its rows are gone."""
        self._written.update(turn.used, turn.postponed)

    def give_back(self, rows: Iterable[int]) -> None:
        """Note that rows were taken and not journaled: they are read again."""
        self._taken.difference_update(rows)

    async def deliver(self) -> int:
        """Deliver what is due to the runs in memory; returns how many rows were read."""
        count, mail = await self.read()
        loop, worker = asyncio.get_running_loop(), self._worker
        began = loop.time()
        for run, rows in mail.items():
            if worker.runs.get(run.number) is not run:  # It was forgotten while other runs were given theirs.
                self.give_back(row["id"] for row in rows)
                continue
            self.hand_over(run, rows)
            if loop.time() - began > WRITE_AFTER:  # The database writes the first turns while others are computed.
                await asyncio.sleep(0)
                began = loop.time()
        return count

    async def read(self) -> tuple[int, dict[DurableRun, list[Any]]]:
        """Read the rows that are due; returns how many, and by run those that it has not received before."""
        worker = self._worker
        if not worker.runs:
            return 0, {}
        written, self._written = self._written, set()
        rows = await self._store.due(worker.life.worker_id, list(self._taken), MOST_INBOX)
        self._taken -= written  # Their turn was written before this read, which returns only new rows.
        mail: dict[DurableRun, list[Any]] = {}
        for row in rows:
            run = worker.runs.get(row["run_id"])
            if run is None or not run.is_running or row["id"] in self._taken:
                continue
            self._taken.add(row["id"])
            mail.setdefault(run, []).append(row)
        if len(rows) == MOST_INBOX:
            worker.wake()
        return len(rows), mail

    def hand_over(self, run: DurableRun, mail: list[Any]) -> None:
        """Deliver all inbox rows of a run together."""
        if not mail:
            return
        taken: list[int] = []
        ticks: list[Tick] = []
        now = self._worker.clock.now()
        for row in mail:
            try:
                ticks += _ticks_of(run, row, now)
                taken.append(row["id"])
            except UnknownClassError as error:
                log.warning("what was sent to a run is for another version of it", run=run.number, error=str(error))
                run.postpone(row["id"], f"something that was sent to it is for another version: {error}")
            except Exception as error:  # noqa: BLE001 - an event that cannot be read stops neither the run nor its worker
                taken.append(row["id"])
                run.note_unread(error)
        try:
            run.take_in(taken, ticks)
        except Exception as error:  # noqa: BLE001 - a defect of one run must not affect the others
            run.give_up(error)


def is_urgent(run: DurableRun, row: Any) -> bool:
    """Whether an inbox row is a request to cancel the run, or the end of a piece of its work."""
    if row["timer"] is not None or row["work"] is not None or not any(kind in row["data"] for kind in URGENT):
        return False
    try:
        return isinstance(run.decode_tick(row["data"]), CancelAsked | Completed)
    except Exception:  # noqa: BLE001 - it is reported when it is delivered
        return False


def _ticks_of(run: DurableRun, row: Any, now: float) -> Sequence[Tick]:
    """Decode an inbox row."""
    if row["timer"] is not None:
        return [Elapsed(now, row["timer"])]
    if row["work"] == SEVERAL:
        return _ticks_of_ends(run, decode(row["data"], list[WorkEnd]))
    if row["work"] is not None:
        return run.work_ended(row["work"], decode(row["data"], WorkEnd))
    return [run.decode_tick(row["data"])]


def _ticks_of_ends(run: DurableRun, ends: Sequence[WorkEnd]) -> list[Tick]:
    """Decode the ends of several pieces of work; one that cannot be read stops none of the others."""
    ticks: list[Tick] = []
    for end in ends:
        try:
            ticks += run.work_ended(end.work, end)
        except UnknownClassError:
            raise
        except Exception as error:  # noqa: BLE001 - as in `hand_over`
            run.note_unread(error)
    return ticks
