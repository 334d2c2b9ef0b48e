"""Connections belong to the process that has opened them, and not to the children that it forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.support import eventually
from tests.support.cli import environment
from tidemill.store.database import Database

HOLDS = """
import multiprocessing, os, sys, time
from tidemill.store.database import Database, DatabaseSettings

async def main():
    async with Database(DatabaseSettings(url=sys.argv[1])) as database:
        lock = await database.connect_to_listen()
        await lock.execute("SELECT pg_advisory_lock(77)")
        async with database.transaction() as connection:
            await connection.execute("CREATE TABLE claimed (id int)")
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
            child.start()
            await connection.execute("INSERT INTO claimed VALUES (1)")
            await lock.execute("SELECT pg_notify('x', '')")
            print(child.pid, flush=True)
            time.sleep(600)

if sys.argv[2] == "uvloop":
    from uvloop import run
else:
    from asyncio import run
run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_what_a_killed_process_has_locked_is_free_though_a_child_of_it_lives(
    database: Database, database_url: str, loop: str
) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, database_url, loop], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        assert not await is_free(database), "a fork does not end the connections of its parent"
        holder.kill()
        holder.wait()
        os.kill(child, 0)
        await eventually(lambda: is_free(database), timeout=20)
    finally:
        os.kill(child, signal.SIGKILL)
        holder.kill()
        holder.stdout.close()


async def is_free(database: Database) -> Any:
    """Whether nobody has the lock, nor the table that the transaction has made."""
    return await database.run(
        lambda connection: connection.fetchval(
            "SELECT pg_try_advisory_xact_lock(77) AND NOT EXISTS ("
            "SELECT FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database())"
        )
    )
