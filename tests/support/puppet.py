"""A worker on strings: claims, finishes and gives back only when the test says so, with the real statements."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidemill.core.codec import encode
from tidemill.core.jobs.job import ClaimedJob, FinalState, Finish, Requeue
from tidemill.store.database import Database
from tidemill.store.jobs.claims.claims import Claims
from tidemill.store.jobs.workers import WorkerCard, register_worker


class Puppet:
    """One registered worker and the hot path's connection."""

    def __init__(self, database: Database, claims: Claims, queues: tuple[str, ...]) -> None:
        self.claims = claims
        self._database = database
        self._queues = queues

    @property
    def worker_id(self) -> int:
        return self.claims.worker_id

    async def claim(self, room: int = 1) -> list[ClaimedJob]:
        """Claim up to `room` jobs of each queue."""
        return await self.turn([], room)

    async def turn(self, finished: list[Finish], room: int = 0) -> list[ClaimedJob]:
        """The hot path: finish and claim in one statement."""
        wanted = dict.fromkeys(self._queues, room) if room else {}
        return (await self.claims.turn(finished, wanted, [], time.monotonic())).jobs

    async def finish(self, job: ClaimedJob, result: object = None, state: FinalState = "succeeded") -> list[int]:
        """Finish one job on the slow path; returns what was still ours."""
        return await self.claims.finish([ending(job, result, state)])

    async def give_back(self, job: ClaimedJob, note: str = "given back") -> list[int]:
        return await self.claims.requeue([Requeue(job.id, job.attempt, 0.0, note)])

    async def fall_silent(self) -> None:
        """Let the lease lapse, as if the process had been dead for a minute."""
        await self._database.fetch(
            "UPDATE tidemill.worker SET lease_until = now() - interval '1 minute', "
            "seen_at = now() - interval '1 minute' WHERE id = $1",
            self.worker_id,
        )


def ending(job: ClaimedJob, result: object = None, state: FinalState = "succeeded") -> Finish:
    """How a claimed job ends."""
    return Finish(job.id, job.attempt, state, encode(result), f"ended as {state}", keyed=job.keyed)


@asynccontextmanager
async def puppet(
    database: Database, *queues: str, lease: float = 60.0, pid: int = 1, parent_pid: int | None = None
) -> AsyncIterator[Puppet]:
    """A registered worker for these queues (default: `default`) without a life of its own."""
    served = queues or ("default",)
    card = WorkerCard("puppet", pid, served, ("anything",), 10, {}, parent_pid=parent_pid)
    worker_id = await register_worker(database, card, lease_seconds=lease)
    connection = await database.connect()
    try:
        yield Puppet(database, Claims(database, connection, worker_id, served), served)
    finally:
        connection.terminate()
