"""The culprits of the `chaos` suite: what work that misbehaves costs the work beside it, and how soon it is named.

Innocent work of the same kind is fed without a pause to real processes. After some seconds the culprits join it. The
rows are the throughput of the innocent work from ten seconds after that on, compared with before; the seconds until a
culprit is named, in the list of workers or by what is stored about it; and how much innocent work did not succeed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from benchmarks.chaos import culprits_app as work
from benchmarks.shared import report
from benchmarks.shared.contenders import say
from benchmarks.shared.venv import ROOT
from tidemill.store.migrate import wait_for_schema

TARGET = Path(work.__file__)
TIDEMILL = (sys.executable, "-m", "tidemill.cli.main")
AT_ONCE = 40
NAMED_LIMIT_S = 10.0
KEPT_SHARE = 0.8

COUNT_JOBS = "SELECT count(*) FROM tidemill.job_history WHERE task = 'innocent' AND state = 'succeeded'"
COUNT_RUNS = "SELECT count(*) FROM tidemill.run WHERE workflow = 'Innocent' AND state = 'succeeded'"
TROUBLE = "SELECT count(*) FROM tidemill.worker WHERE trouble IS NOT NULL AND ended_at IS NULL"


class Fault(msgspec.Struct, frozen=True):
    """A kind of misbehaviour, and how it is measured."""

    name: str
    command: tuple[str, ...]
    feed: Callable[[int], Awaitable[None]]
    strike: Callable[[], Awaitable[None]]
    count: str | None
    """How many pieces of innocent work have succeeded; None for messages, which note it in a file."""
    named: str
    """More than none once a culprit is named."""
    harmed: str
    """How many pieces of innocent work have ended otherwise."""


async def _feed_jobs(count: int) -> None:
    await work.app.enqueue_many(work.innocent.call() for _ in range(count))


async def _feed_runs(count: int) -> None:
    for _ in range(count):
        await work.app.start(work.Innocent)


async def _feed_messages(count: int) -> None:
    await work.app.streams.publish_many("messages", ["innocent"] * count)


async def _poison_jobs() -> None:
    await work.app.enqueue_many(work.poison.call() for _ in range(3))


async def _poison_messages() -> None:
    await work.app.streams.publish_many("messages", ["poison"] * 3)


def _start(kind: Any, count: int) -> Callable[[], Awaitable[None]]:
    async def strike() -> None:
        for _ in range(count):
            await work.app.start(kind)

    return strike


_JOBS_HARMED = "SELECT count(*) FROM tidemill.job_history WHERE task = 'innocent' AND state <> 'succeeded'"
_RUNS_HARMED = "SELECT count(*) FROM tidemill.run WHERE workflow = 'Innocent' AND state NOT IN ('running', 'succeeded')"
_MESSAGES = "SELECT count(*) FROM tidemill.dead_letter WHERE payload {} '\"poison\"'::bytea"
_RUN_NAMED = "SELECT count(*) FROM tidemill.run WHERE workflow = '{}' AND (suspicions > 0 OR state <> 'running')"

_WORKER = ("worker", str(TARGET))

FAULTS = (
    Fault("poison_job", _WORKER, _feed_jobs, _poison_jobs, COUNT_JOBS,
          "SELECT (SELECT count(*) FROM tidemill.job_history WHERE task = 'poison')"
          " + (SELECT count(*) FROM tidemill.job WHERE task = 'poison' AND suspicions > 0)", _JOBS_HARMED),
    Fault("poison_step", _WORKER, _feed_runs, _start(work.PoisonStep, 2), COUNT_RUNS,
          _RUN_NAMED.format("PoisonStep"), _RUNS_HARMED),
    Fault("blocking_step", _WORKER, _feed_runs, _start(work.BlockingStep, 1), COUNT_RUNS,
          TROUBLE, _RUNS_HARMED),
    Fault("hung_threads", _WORKER, _feed_runs, _start(work.HungThread, 8), COUNT_RUNS,
          TROUBLE, _RUNS_HARMED),
    Fault("poison_message", ("stream", "run", str(TARGET)), _feed_messages, _poison_messages, None,
          f"SELECT ({TROUBLE}) + ({_MESSAGES.format('=')})", _MESSAGES.format("<>")),
)  # fmt: skip


async def _measure(fault: Fault, dsn: str, folder: Path, seconds: float, adjust_s: float) -> list[report.Row]:
    done = folder / "done"
    done.touch()
    work.app.declarations.configure(database_url=dsn)
    async with work.app.database() as database:
        await wait_for_schema(database)
    connection = await asyncpg.connect(dsn)

    async def count() -> int:
        return done.stat().st_size if fault.count is None else await connection.fetchval(fault.count)

    fed, start = 0, await count()

    async def feed_for(duration: float, until: str | None = None) -> tuple[float, float | None]:
        """Feed innocent work; returns its throughput, and after how long `until` found something.

        After the strike there is twice as much of it: what was beside a culprit is suspected and waits its turn.
        """
        nonlocal fed
        began, before, found = time.monotonic(), await count(), None
        while (passed := time.monotonic() - began) < duration:
            waiting = fed - (await count() - start)
            if waiting < (AT_ONCE if until is None else 2 * AT_ONCE):
                await fault.feed(AT_ONCE)
                fed += AT_ONCE
            if until is not None and found is None and await connection.fetchval(until):
                found = passed
            await asyncio.sleep(0.05)
        return (await count() - before) / (time.monotonic() - began), found

    try:
        await fault.feed(AT_ONCE)
        fed += AT_ONCE
        while await count() == start:
            await asyncio.sleep(0.1)
        before, _ = await feed_for(seconds)
        await fault.strike()
        _, named = await feed_for(adjust_s, fault.named)
        during, later = await feed_for(seconds, fault.named)
        if named is None and later is not None:
            named = adjust_s + later
        harmed = await connection.fetchval(fault.harmed)
    finally:
        await connection.close()
        await work.app.close()
    return [
        report.compare(f"{fault.name}_kept", "of the throughput before", during / before, "limit", KEPT_SHARE),
        report.compare(f"{fault.name}_named_s", "s", named, "limit", NAMED_LIMIT_S, less_is_better=True),
        report.compare(f"{fault.name}_harmed", "pieces of innocent work", harmed, "limit", 0),
    ]


def run(fault: Fault, dsn: str, folder: Path, *, seconds: float, adjust_s: float) -> list[report.Row]:
    """Measure one culprit, on a fresh database with maintenance beside it; it is given `adjust_s` to be named."""
    say(f"chaos: {fault.name.replace('_', ' ')}")
    environment = {**os.environ, "TIDEMILL_DATABASE_URL": dsn, "TIDEMILL_CULPRITS_DONE": str(folder / "done")}
    environment |= {"PYTHONPATH": str(ROOT), "TIDEMILL_LOG_LEVEL": "error", "TIDEMILL_LEASE_SECONDS": "3"}
    environment["TIDEMILL_HEARTBEAT_SECONDS"] = "1"
    commands = (("maintenance", str(TARGET)), fault.command)
    with (folder / "log").open("wb") as log:
        processes = [
            subprocess.Popen([*TIDEMILL, *words], env=environment, stderr=log, stdout=log) for words in commands
        ]
        try:
            return asyncio.run(_measure(fault, dsn, folder, seconds, adjust_s))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(timeout=15.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
