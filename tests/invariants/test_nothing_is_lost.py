"""Workers are killed at random under load and the database crashes once: every job ends once, no result counts twice.

TIDEMILL_CHAOS_SECONDS   how long the chaos lasts (default 20)
TIDEMILL_CHAOS_SEED      the dice; printed, so that a run can be repeated with the same ones
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from typing import Any

import pytest

from tests.support import eventually, running_maintenance, value
from tests.support.processes import AppProcess, start_worker
from tests.support.server import private_server
from tests.support.task_app import TABLES, declare
from tidemill import App
from tidemill.core.errors import StoreError
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import migrate

pytestmark = pytest.mark.long

SECONDS = float(os.environ.get("TIDEMILL_CHAOS_SECONDS") or 20)
SEED = int(os.environ.get("TIDEMILL_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
WORKERS = 3
AT_FIRST, PER_SECOND = 1000, 150
SETTINGS: dict[str, Any] = {"lease_seconds": 1.5, "heartbeat_seconds": 0.3}


class Chaos:
    """A supervisor that restarts workers, and the one who kills them."""

    def __init__(self, url: str, dice: random.Random) -> None:
        self.killed = 0
        self._url = url
        self._dice = dice
        self._workers: list[AppProcess] = []

    async def rage(self, seconds: float) -> None:
        """Kill a random worker every now and then; whatever ended is started again."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            self.supervise()
            await asyncio.sleep(self._dice.uniform(0.4, 1.6))
            victim = self._dice.choice(self._workers)
            victim.kill()
            self.killed += 1

    def supervise(self) -> bool:
        """Start workers in place of those that have ended; returns False, so that it can be asked for ever."""
        for dead in [worker for worker in self._workers if worker.exit_status is not None]:
            self._workers.remove(dead)
            dead.close()
        while len(self._workers) < WORKERS:
            self._workers.append(start_worker(self._url, ["work"], max_concurrency=10, **SETTINGS))
        return False

    def last_words(self) -> str:
        """The end of what each worker has said."""
        return "\n".join(f"worker {worker.pid}: {worker.said[-600:]}" for worker in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


@pytest.mark.timeout(240 + 3 * SECONDS)
async def test_nothing_is_lost_and_nothing_counts_twice() -> None:
    print(f"TIDEMILL_CHAOS_SEED={SEED} TIDEMILL_CHAOS_SECONDS={SECONDS:g}")
    dice = random.Random(SEED)
    with private_server() as server:
        app = App("test", database_url=server.dsn, **SETTINGS)
        declare(app)
        chaos = Chaos(server.dsn, dice)
        async with Database(DatabaseSettings(url=server.dsn)) as database:
            try:
                await migrate(database)
                await database.run(lambda connection: connection.execute(TABLES))
                async with running_maintenance(app, sweep_seconds=0.2, lease_seconds=SETTINGS["lease_seconds"]):
                    enqueued = await feed(app, dice, AT_FIRST)
                    raging = asyncio.create_task(chaos.rage(SECONDS))
                    restarting = asyncio.create_task(restart(server, SECONDS / 2))
                    while not raging.done():
                        enqueued += await feed(app, dice, PER_SECOND)
                        await asyncio.wait([raging], timeout=1.0)
                    await asyncio.gather(raging, restarting)
                    try:
                        await eventually(
                            lambda: chaos.supervise() or is_done(database), timeout=120 + SECONDS, interval=0.1
                        )
                    except AssertionError:
                        pytest.fail(f"{await describe_rest(database)}\n{chaos.last_words()}")
            finally:
                chaos.close()
                await app.close()
            print(f"{len(enqueued)} jobs, {chaos.killed} workers killed, 1 crash of the database")
            await assert_nothing_lost(database, enqueued)
            await assert_nothing_doubled(database)


async def feed(app: App, dice: random.Random, count: int) -> list[int]:
    """Enqueue jobs of random length, some of them unlucky; returns those that were acknowledged."""
    calls = [{"seconds": round(dice.expovariate(20), 3), "failing": dice.choice([0.0, 0.0, 0.2])} for _ in range(count)]
    try:
        return [ref.id for ref in await app.enqueue_many("work", calls)]
    except StoreError:
        return []  # The database went away in the middle: they may or may not be there, but count if they are.


async def restart(server: Any, after: float) -> None:
    """Crash the database without a word of warning, and bring it back."""
    await asyncio.sleep(after)
    os.kill(server.pid, signal.SIGQUIT)
    await asyncio.to_thread(server.ensure)


async def is_done(database: Database) -> bool:
    return await value(database, "SELECT count(*) FROM tidemill.job") == 0


async def describe_rest(database: Database) -> str:
    """What has not ended, and who holds it."""
    rows = await database.fetch(
        "SELECT j.state, j.attempt, j.losses, j.note, j.worker_id, w.pid, w.status, w.end_reason, "
        "max(j.due_at) - now() AS due_in, w.lease_until - now() AS lease, count(*) "
        "FROM tidemill.job AS j LEFT JOIN tidemill.worker AS w ON w.id = j.worker_id "
        "GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 10 LIMIT 20"
    )
    return "\n".join(["jobs that have not ended:", *(str(dict(row)) for row in rows)])


async def assert_nothing_lost(database: Database, enqueued: list[int]) -> None:
    rows = await database.fetch("SELECT id, state, note FROM tidemill.job_history")
    ended = [row["id"] for row in rows]
    assert len(ended) == len(set(ended)), "a job has ended twice"
    assert set(enqueued) <= set(ended), f"lost: {sorted(set(enqueued) - set(ended))[:10]}"
    assert [dict(row) for row in rows if row["state"] != "succeeded"] == []


async def assert_nothing_doubled(database: Database) -> None:
    """Each attempt was executed at most once, and what counts is the result of the attempt that is recorded."""
    twice = await database.fetch(
        "SELECT job_id, attempt, count(*) FROM execution GROUP BY job_id, attempt HAVING count(*) > 1"
    )
    assert twice == []
    executed = {
        (row["job_id"], row["attempt"]): str(row["token"]) for row in await database.fetch("SELECT * FROM execution")
    }
    for row in await database.fetch("SELECT id, attempt, failures, losses, result FROM tidemill.job_history"):
        result = json.loads(row["result"])
        assert result == {"token": executed[row["id"], row["attempt"]], "attempt": row["attempt"]}
        assert row["failures"] + row["losses"] < row["attempt"]
