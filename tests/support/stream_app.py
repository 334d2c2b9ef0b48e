"""The application whose streams the processes of tests run. Its plan notes every message in the table `work`.

STREAM_SOURCE   where messages come from, as a line of configuration; the PostgreSQL log if not given
STREAM_LEASE    how long a dispatcher that has died keeps what it has taken from the log
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import asyncpg
import structlog
import yaml

from tidemill import App
from tidemill.core.retry import retry
from tidemill.sources import LogSource
from tidemill.streams import Plan, Stream, task
from tidemill.streams.definition.config import _source

log = structlog.get_logger("test")

TABLES = """
CREATE TABLE work (number integer NOT NULL, pid integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE loaded (pid integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE waiting (number integer NOT NULL);
CREATE TABLE gate (name text PRIMARY KEY);
"""


class Noting(Plan, eligibility="note"):
    """Notes messages; "deadly" ones end the engine, slow ones take their time, those with a gate wait at it."""

    async def start(self) -> None:
        self._pool = await asyncpg.create_pool(os.environ["TIDEMILL_DATABASE_URL"], min_size=0, max_size=3)
        await asyncio.sleep(float(os.environ.get("STREAM_LOADS_FOR", "0")))
        await self._insist("INSERT INTO loaded (pid) VALUES ($1)", os.getpid())

    @task
    async def note(self, ctx: Any) -> None:
        said = ctx.value
        if said.get("deadly"):
            os._exit(13)
        if said.get("bad"):
            log.warning("this will not end well", colour="red")
            raise ValueError("bad news")
        if said.get("seconds"):
            await asyncio.sleep(said["seconds"])
        if said.get("gate"):
            await self._pass(said)
        await self._insist("INSERT INTO work (number, pid) VALUES ($1, $2)", said["number"], os.getpid())

    async def _pass(self, said: Any) -> None:
        """Go on when the test opens the gate."""
        await self._insist("INSERT INTO waiting (number) VALUES ($1)", said["number"])
        while not await self._insist("SELECT name FROM gate WHERE name = $1", said["gate"]):
            await asyncio.sleep(0.05)

    async def _insist(self, statement: str, *args: Any) -> list[Any]:
        """Do it until the database has answered: it may be restarted under us."""
        while True:
            try:
                return await self._pool.fetch(statement, *args)
            except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.AdminShutdownError):
                await asyncio.sleep(0.05)


def sources() -> list[Any]:
    given = os.environ.get("STREAM_SOURCE")
    if given:
        return [_source({"eligibilities": ["note"], **options}, "STREAM_SOURCE") for options in yaml.safe_load(given)]
    return [LogSource("posts", eligibilities=frozenset({"note"}), lease=float(os.environ.get("STREAM_LEASE", "30")))]


app = App("test")
app.stream(
    Stream(
        "posts",
        plans=[Noting],
        sources=sources(),
        engines=2,
        max_concurrency=64,
        retry=retry(3, backoff=0.05, jitter=0.0),
        max_losses=100 if os.environ.get("STREAM_CHAOS") else 3,
        silence=float(os.environ.get("STREAM_SILENCE", "60")),
        drain="60s",
        grpc=os.environ.get("STREAM_GRPC"),
        http=os.environ.get("STREAM_HTTP"),
    )
)
