"""A file that has changed ends the pause of its readers."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from tests.support import eventually
from tests.support.watched import heat_monitor
from tidemill.monitors.reducer import poll_pace
from tidemill.monitors.runner.runner import monitor_role
from tidemill.sources import JsonlSource
from tidemill.sources.file_changes import FileChanges
from tidemill.store.database import Database
from tidemill.store.monitors.monitors import read_monitor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of changed files")


async def test_every_way_to_change_a_file_ends_the_wait_and_other_files_do_not(tmp_path: Path) -> None:
    file, other = tmp_path / "events.jsonl", tmp_path / "other.jsonl"
    changes = FileChanges(file)
    await changes.wait()  # It may have changed before.
    other.write_text("1\n")
    waiting = asyncio.create_task(changes.wait())
    other.write_text("2\n")
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    file.write_text("1\n")
    await waiting
    with file.open("a") as out:
        out.write("2\n")
    await changes.wait()
    other.replace(file)
    await changes.wait()
    changes.close()


async def test_a_quiet_monitor_reads_a_file_as_soon_as_it_changes(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its first quiet poll it would not look again for an hour."""
    monkeypatch.setattr(poll_pace, "GROWTH", 1e6)
    file = tmp_path / "events.jsonl"
    file.touch()
    role = monitor_role(database, {"heat": heat_monitor(JsonlSource(file), idle_max=3600)})
    life = asyncio.create_task(role.run())
    await role.wait_ready()
    (driver,) = role.work.drivers.values()
    await eventually(lambda: driver.ticks > 1)
    for number in range(3):
        with file.open("a") as out:
            out.write(json.dumps({"id": number, "at": time.time(), "who": "a", "heat": 1}) + "\n")

        async def is_read(count: int = number + 1) -> bool:
            return (await read_monitor(database, driver.monitor.name))["events"] == count

        await eventually(is_read)
    role.stop()
    await life
