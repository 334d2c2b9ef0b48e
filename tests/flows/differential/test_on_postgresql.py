"""Random programs give the same in memory and on PostgreSQL, whatever happens to the processes that run them.

    TIDEMILL_DIFFERENTIAL_PROGRAMS=300 TIDEMILL_DIFFERENTIAL_SEED=$RANDOM python -m pytest -s tests/flows/differential

Run workers are killed, lose their connections and their leases, are frozen until others have taken their runs, and
release runs that only wait. Followers are interrupted and resume from the number of their last event.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.flows.differential.building import build
from tests.flows.differential.dialects import Dialect, ours
from tests.flows.differential.engines import Outcome, failed, once_each, reply, run_in_memory, succeeded
from tests.flows.differential.programs import Program, programs
from tests.flows.differential.programs_app import declare, write_programs
from tests.support import lapse, running_maintenance
from tests.support.processes import AppProcess
from tests.support.waiting import PATIENCE
from tidemill import App
from tidemill.flows.runner.restore import restore
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.store.database import Database
from tidemill.store.runs.runs import load_run

PROGRAMS = int(os.environ.get("TIDEMILL_DIFFERENTIAL_PROGRAMS", "8"))
SEED = int(os.environ.get("TIDEMILL_DIFFERENTIAL_SEED", "1"))
APP = Path(__file__).with_name("programs_app.py")
AT_ONCE = 12
IDLE = 0.1


async def test_programs_give_the_same_on_postgresql_whatever_happens_to_their_processes(
    app: App, database: Database, database_url: str, tmp_path: Path
) -> None:
    print(f"\n{PROGRAMS} programs on PostgreSQL, TIDEMILL_DIFFERENTIAL_SEED={SEED}")
    dialect, chosen = ours(), drawn(PROGRAMS)
    declare(app, chosen, dialect)
    write_programs(tmp_path / "programs", chosen)
    room = asyncio.Semaphore(AT_ONCE)

    async def compare(number: int, program: Program) -> None:
        async with room:
            expected = await run_in_memory(program, dialect)
            seen = await run_on_postgresql(app, database, program, dialect, number)
            assert once_each(seen) == once_each(expected), f"seed {SEED}, {program}"

    async with running_maintenance(app), Trouble(database, database_url, tmp_path / "programs") as trouble:
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(compare(*each)) for each in enumerate(chosen)]
            troubling = asyncio.create_task(trouble.make(runs))
        await troubling


def drawn(count: int) -> list[Program]:
    """Draw programs; the same for the same seed."""
    chosen: list[Program] = []

    @seed(SEED)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(programs(free=True))
    def draw(program: Program) -> None:
        chosen.append(program)

    draw()
    return chosen[:count]


async def run_on_postgresql(app: App, database: Database, program: Program, dialect: Dialect, number: int) -> Outcome:
    """Run a program on the run workers; its person answers after a while, so that some runs have left memory."""
    chance = random.Random(f"{SEED} {number}")
    run: RunHandle[Any] = await app.start(f"Program{number}", n=program.n, id="0")
    events: list[Any] = []
    async with asyncio.TaskGroup() as person:
        last, is_interrupted = 0, True
        while is_interrupted:
            is_interrupted = False
            async for number, event in run.stream_events(expose_internal=True, after=last, numbered=True):
                last = number
                events.append(event)
                if (answer := reply(dialect, event)) is not None:
                    person.create_task(send_later(run, answer, chance.random() * 6 * IDLE))
                if chance.random() < 0.1:
                    is_interrupted = True
                    break
    try:
        result = await run.result(timeout=PATIENCE)
    except Exception as error:  # noqa: BLE001 - the outcome of the program
        return failed(error, events)
    _, snapshot, ticks = await load_run(database, run.id)
    restored = restore(build(program, dialect)(timeout=None), snapshot, ticks)
    return succeeded(result, events, restored.state.store)


async def send_later(run: RunHandle[Any], answer: Any, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await run.send_event(answer)


class Trouble:
    """Two run workers, and what happens to them."""

    def __init__(self, database: Database, url: str, file: Path) -> None:
        self._database = database
        self._url = url
        self._file = file
        self._workers: list[AppProcess] = []
        self._chance = random.Random(f"{SEED} trouble")

    async def __aenter__(self) -> Trouble:
        for _ in range(2):
            await self._start_worker()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()

    async def make(self, runs: list[asyncio.Task[None]]) -> None:
        """Make trouble of every kind at least once, and go on until all runs have ended."""
        kinds: list[Callable[[AppProcess], Awaitable[None]]] = [self._kill, self._freeze, self._cut, self._take_lease]
        self._chance.shuffle(kinds)
        count = 0
        while count < len(kinds) or not all(run.done() for run in runs):
            kind = kinds[count] if count < len(kinds) else self._chance.choice(kinds)
            await kind(self._chance.choice(self._workers))
            count += 1
            await asyncio.wait(runs, timeout=self._chance.random() * 2)
        print(f"{count} times trouble")

    async def _kill(self, worker: AppProcess) -> None:
        worker.kill()
        await lapse(self._database, worker.pid)
        await self._replace(worker)

    async def _freeze(self, worker: AppProcess) -> None:
        worker.freeze()
        await lapse(self._database, worker.pid)
        await self._start_worker()
        worker.thaw()
        await worker.ends()
        self._forget(worker)

    async def _take_lease(self, worker: AppProcess) -> None:
        await self._database.fetch("UPDATE tidemill.worker SET ended_at = now() WHERE id = $1", worker.worker_id)
        await worker.ends()
        await self._replace(worker)

    async def _cut(self, worker: AppProcess) -> None:
        await self._database.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE '%run worker%' AND pid <> pg_backend_pid()"
        )

    async def _replace(self, worker: AppProcess) -> None:
        self._forget(worker)
        await self._start_worker()

    def _forget(self, worker: AppProcess) -> None:
        self._workers.remove(worker)
        worker.close()

    async def _start_worker(self) -> None:
        worker = AppProcess("runs", self._url, APP, programs=self._file, idle=IDLE)
        self._workers.append(worker)
        await worker.wait_ready()
