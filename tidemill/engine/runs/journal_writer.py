"""Writes turns: retried until stored, each once, and without the one that the database refuses.

    mine = await writer.write(turns)            # the runs that were still this owner's
    mine = await writer.write_within(turn)      # the same, of one run, with a step's own transaction

A turn has a number, by which an owner that got no response can check whether it was written. Several turns may be
written at the same time, as long as no run is in two of them.
"""

from __future__ import annotations

import asyncio

import structlog

from tidemill.core.codec import storable
from tidemill.engine.runs.run_store import RunStore
from tidemill.store.database_errors import CLASHES, is_full, is_unavailable
from tidemill.store.runs.run_turn import RunTurn

log = structlog.get_logger("tidemill.runs")

FULL_PAUSE = 1.0


class JournalWriter:
    """Writes the turns of one owner."""

    def __init__(self, store: RunStore) -> None:
        self.owner = 0
        self._store = store
        self._number = 0

    async def write(self, turns: list[RunTurn]) -> set[int]:
        """Write turns of different runs in one transaction; returns the runs that were still the owner's."""
        if not turns:
            return set()
        self._number += 1
        return await self._write_as(self._number, turns)

    async def write_within(self, turn: RunTurn) -> set[int]:
        """Write one run's turn together with what its step has written in a transaction of its own.

        Either both are written or neither; the journal shows which.
        """
        connection, self._number = turn.within, self._number + 1
        number = self._number
        try:
            return await self._store.commit_within(connection, self.owner, number, turn)
        except Exception as error:  # noqa: BLE001 - the journal shows whether it was written
            log.warning("a step's own transaction was not committed", run=turn.run_id, error=str(error))
            turn.refused = error
            return await self._store.written(self.owner, number, [turn])
        finally:
            connection.terminate()

    async def _write_as(self, number: int, turns: list[RunTurn]) -> set[int]:
        uncertain = False
        while True:
            try:
                mine = await self._store.commit(self.owner, number, turns)
                if uncertain and len(mine) < len(turns):
                    mine |= await self._store.written(self.owner, number, turns)
                return mine
            except CLASHES:
                continue
            except Exception as error:  # noqa: BLE001 - the run that causes a lasting error needs attention
                if is_unavailable(error) or is_full(error):
                    log.warning("the database is unavailable", error=str(error), runs=len(turns))
                    uncertain = True
                    if is_full(error):
                        await asyncio.sleep(FULL_PAUSE)
                    continue
                return await self._write_without_the_bad(number, turns, error)

    async def _write_without_the_bad(self, number: int, turns: list[RunTurn], error: Exception) -> set[int]:
        """Find the run whose turn the database refuses, and set only that one to needs_attention."""
        if len(turns) > 1:
            half = len(turns) // 2
            return await self._write_as(number, turns[:half]) | await self._write_as(number, turns[half:])
        (turn,) = turns
        if turn.state == "needs_attention":
            raise error
        log.error("run needs attention: the database refuses what it has to write", run=turn.run_id, error=str(error))
        note = storable(f"{type(error).__name__}: {error}; what the run had to write could not be written: cancel it")
        await self._write_as(
            number, [RunTurn(turn.run_id, turn.before, turn.before, state="needs_attention", note=note)]
        )
        return set()
