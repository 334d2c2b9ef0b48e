"""The application that the processes of tests run. Its tasks note every execution in the table `execution`.

`execution` has a row per time that a task was really entered, whatever Tidemill believes; `gate` lets a test
decide when a task may go on. Both are made by the fixture `executions`.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import psycopg

from tidemill import App, current_job

TABLES = """
CREATE TABLE execution (
    token uuid PRIMARY KEY, job_id bigint NOT NULL, attempt integer NOT NULL, pid integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(), ended_at timestamptz);
CREATE INDEX ON execution (job_id, attempt);
CREATE TABLE gate (name text PRIMARY KEY);
"""

NOTE_START = "INSERT INTO execution (token, job_id, attempt, pid) VALUES ({}) ON CONFLICT DO NOTHING"
NOTE_END = "UPDATE execution SET ended_at = clock_timestamp() WHERE token = {}"
IS_OPEN = "SELECT count(*) FROM gate WHERE name = {}"

BRIEF = 0.02

#: How many calls of an account may start a second, and at once.
RATE_OF_CALLS = 40.0, 4.0

_pools: dict[asyncio.AbstractEventLoop, asyncpg.Pool] = {}


def declare(app: App) -> None:
    """Put the tasks into an application."""

    @app.task(queue="work", retry=app.retry(max_attempts=30, backoff=0.05, cap=0.2, max_losses=100))
    async def work(seconds: float = 0.0, failing: float = 0.0) -> dict:
        """Take some time; fail in this share of the attempts."""
        job = current_job()
        token = await note_start()
        await asyncio.sleep(seconds)
        if random.Random(f"{job.id}/{job.attempt}").random() < failing:
            raise RuntimeError("out of luck")
        await note_end(token)
        return {"token": token, "attempt": job.attempt}

    rate, burst = RATE_OF_CALLS

    @app.task(queue="calls", rate_key="account {account}", rate=rate, burst=burst)
    async def call_account(account: str) -> None: ...

    @app.task(queue="throttled")
    async def until_open(gate: str) -> dict:
        """Run until the test opens the gate."""
        return await _until_open(gate)

    @app.task(queue="throttled", retry=app.retry(max_losses=2, backoff=0.01, cap=0.01))
    async def deadly(gate: str) -> dict:
        """The same, for a job that may lose only two workers."""
        return await _until_open(gate)

    @app.task(queue="throttled", concurrency_key="one", max_concurrency=2)
    async def two_at_a_time(seconds: float = BRIEF) -> dict:
        """At most two of these run at once."""
        token = await note_start()
        await asyncio.sleep(seconds)
        await note_end(token)
        return {"token": token}

    @app.task(queue="throttled", concurrency_key="held", max_concurrency=1)
    async def one_at_a_time(gate: str) -> dict:
        """Only one of these runs at once, until the test opens its gate."""
        return await _until_open(gate)

    @app.task(queue="plain")
    def plain_until_open(gate: str) -> dict:
        """A plain function that runs until the test opens the gate."""
        return _plain_until_open(gate)

    @app.task(queue="blocking")
    async def block_loop(gate: str, computing: bool = False) -> dict:
        """Bad manners: block the event loop until the test opens the gate, asleep or with a computation."""
        token = await note_start()
        _plain_wait(gate, computing=computing)
        return {"token": token}

    @app.task(queue="limits", budget=0.5)
    def plain_over_budget(gate: str = "never") -> dict:
        return _plain_until_open(gate)

    @app.task(queue="limits", budget=2, retry=app.retry(max_attempts=2, backoff=0.01))
    def plain_over_budget_retried(gate: str = "never") -> dict:
        """Over its budget at the first attempt only."""
        return _plain_until_open(gate) if current_job().attempt == 1 else {"attempt": current_job().attempt}

    @app.task(queue="limits", budget=0.5)
    async def over_budget(gate: str = "never") -> dict:
        return await _until_open(gate)

    @app.task(queue="limits", isolation="process")
    def isolated() -> int:
        """Where isolated tasks run: the child is kept for the next one."""
        return os.getpid()

    @app.task(queue="limits", budget=0.5, isolation="process")
    def isolated_over_budget(gate: str = "never") -> dict:
        return _plain_until_open(gate)

    @app.task(queue="limits", stall=0.5)
    def silent(gate: str, sign: bool) -> dict:
        """Wait for the gate without a sign of life, or after one."""
        token = _plain_start()
        if sign:
            current_job().report(0.5, "half way")
        _plain_wait(gate)
        return {"token": token}

    @app.task(queue="ticks", every=0.2, catchup="all")
    async def tick() -> None: ...


# -- noting ---------------------------------------------------------------------------------------


async def note_start() -> str:
    """Note that this attempt is being executed; returns the execution's token."""
    job, token = current_job(), str(uuid.uuid4())
    await _insist(lambda pool: pool.execute(_sql(NOTE_START, 4), token, job.id, job.attempt, os.getpid()))
    return token


async def note_end(token: str) -> None:
    """Note that it has come to its end."""
    await _insist(lambda pool: pool.execute(_sql(NOTE_END, 1), token))


async def _until_open(gate: str) -> dict:
    token = await note_start()
    while not await _insist(lambda pool: pool.fetchval(_sql(IS_OPEN, 1), gate)):
        await asyncio.sleep(BRIEF)
    await note_end(token)
    return {"token": token, "attempt": current_job().attempt}


async def _insist(work: Callable[[asyncpg.Pool], Awaitable[Any]]) -> Any:
    """Do it until the database has answered: it may be restarted under a task."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            if loop not in _pools:
                pool = await asyncpg.create_pool(os.environ["TIDEMILL_DATABASE_URL"], min_size=0, max_size=4)
                if loop in _pools:
                    await pool.close()
                _pools.setdefault(loop, pool)
            return await work(_pools[loop])
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await asyncio.sleep(0.1)


def _plain_until_open(gate: str) -> dict:
    token = _plain_start()
    _plain_wait(gate)
    return {"token": token, "attempt": current_job().attempt}


def _plain_start() -> str:
    job, token = current_job(), str(uuid.uuid4())
    with psycopg.connect(os.environ["TIDEMILL_DATABASE_URL"]) as connection:
        connection.execute(NOTE_START.format("%s, %s, %s, %s"), (token, job.id, job.attempt, os.getpid()))
    return token


def _plain_wait(gate: str, *, computing: bool = False) -> None:
    while True:
        with psycopg.connect(os.environ["TIDEMILL_DATABASE_URL"]) as connection:
            row = connection.execute(IS_OPEN.format("%s"), (gate,)).fetchone()
        if row and row[0]:
            return
        until = time.monotonic() + BRIEF
        while computing and time.monotonic() < until:
            pass
        time.sleep(0.0 if computing else BRIEF)


def _sql(statement: str, parameters: int) -> str:
    return statement.format(", ".join(f"${number}" for number in range(1, parameters + 1)))


app = App("test")
declare(app)
