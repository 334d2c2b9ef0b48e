"""Whatever stage of a tick a monitor is killed in: no event is lost or counted twice, no alert dropped or repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import AppProcess, eventually, lapse, value
from tests.support.server import TestServer
from tests.support.watched import WATCHED, everything, lines, write_round
from tidemill.store.database import Database, DatabaseSettings

STAGES = ["reset:3", "roster:3", "ingest:2", "ingest:9", "sealed:1", "evaluate:2", "triggers:2", "commit:1", "commit:2",
          "sleep:3"]  # fmt: skip

#: Events, the time at which they are there, and a time up to which all must be judged then. The third brings only
#: timers, the last an event that is behind what was folded.
ROUNDS = [
    (lines(40, 1000.0), 1020.0, 1020.0),
    (lines(25, 1100.0), 1120.0, 1120.0),
    ([], 1500.0, 1420.0),
    (lines(60, 1700.0), 1800.0, 1800.0),
    (lines(10, 1650.0, who=["b"]), 1900.0, 1900.0),
]

JUDGED = """
SELECT count(*) FROM tidemill.monitor AS m WHERE m.events = $1 AND m.tick_at >= $2 AND NOT EXISTS (
    SELECT FROM tidemill.monitor_entity AS e WHERE e.monitor = m.name AND (e.head > e.folded OR e.due_at <= $2))
"""


async def live_through(url: str, folder: Path, kill_at: str = "") -> tuple[str, int]:
    """All rounds, with a process that is killed and started again; what is written then, and how often it died."""
    folder.mkdir()
    write_round(folder, [], 1000.0)
    deaths, count = 0, 0
    async with Database(DatabaseSettings(url=url)) as database:
        process = _start(url, folder, kill_at)

        async def judged(count: int, upto: float) -> bool:
            nonlocal process, deaths
            if process.exit_status is not None:
                assert process.exit_status == -9, process.said
                deaths += 1
                await lapse(database, process.pid)
                process.close()
                process = _start(url, folder)
            return bool(await value(database, JUDGED, count, upto))

        try:
            for events, now, upto in ROUNDS:
                count += len(events)
                write_round(folder, events, now)
                total = count
                await eventually(lambda: judged(total, upto), what=f"{total} events are judged")  # noqa: B023
            return await everything(database), deaths
        finally:
            process.close()


def _start(url: str, folder: Path, kill_at: str = "") -> AppProcess:
    return AppProcess("monitor", url, WATCHED, watched=str(folder), kill_at=kill_at, heartbeat_seconds=0.2)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, str]:
    """What an uninterrupted run has written, once it is known."""
    return {}


@pytest.fixture
async def calm(server: TestServer, tmp_path: Path, undisturbed: dict[str, str]) -> str:
    """What is written when nobody dies."""
    if "all" not in undisturbed:
        url = server.create()
        undisturbed["all"], deaths = await live_through(url, tmp_path / "calm")
        server.drop(url)
        assert deaths == 0
        for seen in ('"peak"', '"cleared"', '"silent"'):
            assert undisturbed["all"].count(seen) >= 3, seen
    return undisturbed["all"]


@pytest.mark.parametrize("moment", STAGES)
async def test_a_kill_at_any_stage_changes_nothing_that_is_written(
    moment: str, database_url: str, tmp_path: Path, calm: str
) -> None:
    written, deaths = await live_through(database_url, tmp_path / "killed", moment)
    assert deaths == 1
    assert written == calm


@pytest.mark.parametrize("victim", [0, 1])
async def test_of_two_processes_one_dies_and_the_other_goes_on_as_if_nothing_had_happened(
    victim: int, database_url: str, database: Database, tmp_path: Path, calm: str
) -> None:
    write_round(tmp_path, [], 1000.0)
    first = _start(database_url, tmp_path)
    processes = [first]
    try:
        await first.wait_ready()
        processes.append(_start(database_url, tmp_path))
        await eventually(lambda: value(database, SHARED), what="both follow a share")
        count = 0
        for number, (events, now, upto) in enumerate(ROUNDS):
            count += len(events)
            write_round(tmp_path, events, now)
            if number == 1:
                processes[victim].kill()
                await lapse(database, processes[victim].pid)
            total = count
            await eventually(
                lambda: value(database, JUDGED, total, upto),  # noqa: B023
                timeout=150,
                what=f"{total} events are judged",
            )
        assert await everything(database) == calm
        survivor = processes[1 - victim].worker_id or (await processes[1 - victim].wait_ready()).worker_id
        shards = "SELECT count(*) = 64 FROM tidemill.monitor_shard WHERE owner = $1"
        await eventually(lambda: value(database, shards, survivor), what="the survivor follows all")
    finally:
        for process in processes:
            process.close()


SHARED = """
SELECT count(*) = 2 FROM (SELECT owner FROM tidemill.monitor_shard WHERE owner IS NOT NULL
                          GROUP BY owner HAVING count(*) = 32) AS half
"""
