"""`make demo`: the demo application at work in all its queues, within a minute."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import eventually
from tidemill.store.database import Database, DatabaseSettings

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"

DONE = """
SELECT queue FROM tidemill.job_history WHERE state = 'succeeded' GROUP BY queue ORDER BY queue
"""


async def test_the_demo_gets_work_done_in_every_queue(tmp_path: Path) -> None:
    directory = tmp_path / ".tidemill"
    demo = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli.main", "up", str(DEMO), "--directory", str(directory)],
        cwd=tmp_path,
        env={**os.environ, "TIDEMILL_LOG_LEVEL": "warning"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    database = Database(DatabaseSettings(directory=str(directory)))
    try:
        await eventually(lambda: (directory / "data" / "PG_VERSION").exists(), timeout=30)
        await database.open(patience=30)
        wanted = ["default", "mail", "orders", "parcels", "partners", "reports"]
        await eventually(lambda: _served(database, wanted), timeout=50)
    finally:
        demo.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(demo.wait, 45)
        await database.close()
    assert status == 0


async def _served(database: Database, wanted: list[str]) -> bool:
    try:
        return [row["queue"] for row in await database.fetch(DONE)] == wanted
    except Exception as error:  # the schema is made by the demo's orchestrator
        if "does not exist" not in str(error):
            raise
        return False
