"""Steps whose own transaction cannot be committed: after some tries the attempt fails, and its retry policy decides.

A step may leave its transaction in a state in which nothing can be committed: it has swallowed the error of a
statement, has set a role or a time limit, or still runs a statement. A lost connection may be the database's doing or
the step's: it takes more of them.
"""

from __future__ import annotations

from collections import Counter

import asyncpg
import structlog

from tidemill.core.errors import NotFoundError, StoreError, words_of
from tidemill.engine.runs.durable_run import DurableRun
from tidemill.engine.runs.run_store import RunStore
from tidemill.store.database_errors import CLASHES, is_full, is_unavailable

log = structlog.get_logger("tidemill.runs")

MOST_REFUSALS, MOST_INTERRUPTIONS = 3, 10


class RefusedCommits:
    """How often in a row the transactions of steps could not be committed, in one run worker."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._counts: Counter[tuple[int, int]] = Counter()

    def committed(self, run: DurableRun) -> None:
        """Forget a run whose step has committed its transaction."""
        self._counts.pop((run.number, run.committing.id), None)

    async def count(self, run: DurableRun, error: Exception) -> bool:
        """Count a transaction that was not committed. The last time, send the run the failure of the attempt: True."""
        if is_full(error) and not isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            return False
        work, key = run.committing, (run.number, run.committing.id)
        is_lasting = not is_unavailable(error) and not isinstance(error, CLASHES)
        self._counts[key] += 1
        if self._counts[key] < (MOST_REFUSALS if is_lasting else MOST_INTERRUPTIONS):
            return False
        del self._counts[key]
        why = f"the transaction of step {work.step} cannot be committed: {type(error).__name__}: {words_of(error)}"
        try:
            await self._store.send(run.number, run.failed_tick(work, StoreError(why)))
        except NotFoundError:
            log.info("a run has ended whose transaction was not committed", run=run.number)
        return True
