"""What tasks log is kept with each attempt: bounded, there while a job runs and when it has ended, and gone with it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support import eventually
from tests.support.processes import ROOT, run_worker_process, worker_process
from tests.support.web import web_server
from tidemill.core.codec import decode
from tidemill.engine.application.load_app import load_app
from tidemill.engine.worker.log_capture import MOST_LINES
from tidemill.store.database import Database
from tidemill.store.jobs.log import AttemptLog, keep_job_log, read_logs, write_logs
from tidemill.store.runs.log import NewStepLog, keep_run_log, read_step_logs, write_step_logs

TALKATIVE = ROOT / "tests" / "support" / "logging_app.py"


async def logs_of(database: Database, job: int) -> dict[int, Any]:
    return {row["attempt"]: (row["dropped"], decode(row["lines"])) for row in await read_logs(database, job)}


async def test_each_attempt_keeps_what_it_logged(database_url: str, database: Database, tmp_path: Path) -> None:
    app = load_app(f"{TALKATIVE}:app")
    app.declarations.configure(database_url=database_url)
    async with worker_process(database_url, app=TALKATIVE) as worker, web_server(database_url) as web:
        failing = await app.enqueue("stumble", name="a.txt")
        many = await app.enqueue("plain", count=MOST_LINES + 5)
        apart = await app.enqueue("apart")
        quiet = await app.enqueue("silent")
        for job in (failing, many, apart, quiet):
            await app.wait(job, timeout=120)
        # Written before the end of the job: a client that sees the one sees the other.
        found = await logs_of(database, failing.id)
        assert set(found) == {1, 2}
        dropped, (first, second) = found[1]
        assert (dropped, first["event"], first["level"]) == (0, "reads", "info")
        assert first["fields"] == {"name": "a.txt", "size": 3}
        assert "KeyError: 'a.txt'" in second["trace"]
        dropped, lines = (await logs_of(database, many.id))[1]
        assert (dropped, len(lines)) == (5, MOST_LINES)
        assert (lines[0]["event"], lines[-1]["event"]) == ("line 5", f"line {MOST_LINES + 4}")
        _, (line,) = (await logs_of(database, apart.id))[1]
        assert (line["event"], line["fields"]) == ("from another process", {"answer": 42})
        assert await logs_of(database, quiet.id) == {}
        # The lines of a job that still runs are there too, and survive the death of its worker.
        running = await app.enqueue("long", file=str(tmp_path / "never"))
        _, (line,) = (await eventually(lambda: logs_of(database, running.id)))[1]
        assert line["event"] == "begun"
        async with web.client() as api:
            told = (await api.get(f"/jobs/{failing.id}/log")).json()["items"]
            assert [each["attempt"] for each in told] == [2, 1]
            assert told[0]["lines"][0]["event"] == "reads"
            worker.kill()
            told = (await api.get(f"/jobs/{running.id}/log")).json()["items"]
            assert [line["event"] for line in told[0]["lines"]] == ["begun"]
    await app.close()


async def test_each_attempt_at_a_step_keeps_what_it_logged_where_its_run_is(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    app = load_app(f"{TALKATIVE}:app")
    app.declarations.configure(database_url=database_url)
    async with run_worker_process(database_url, app=TALKATIVE) as run_worker, web_server(database_url) as web:
        run = await app.start("Chatter", name=str(tmp_path / "hush"))

        async def told(count: int) -> list[Any]:
            rows = await read_step_logs(database, run.id)
            return rows if len(rows) == count else []

        # Those of a step that still runs are there too, and the death of its process takes nothing of them.
        rows = await eventually(lambda: told(4))
        run_worker.kill()
        assert [(row["step"], row["attempt"]) for row in rows[::-1]] == [
            ("listen", 1), ("listen", 2), ("repeat", 1), ("hum", 1),
        ]  # fmt: skip
        first = decode(rows[-1]["lines"])
        assert [(line["level"], line["event"]) for line in first] == [("info", "listens"), ("warning", "heard nothing")]
        assert decode(rows[1]["lines"])[0]["event"] == f"says {tmp_path / 'hush'}"
        async with web.client() as api:
            items = (await api.get(f"/runs/{run.id}/log", params={"step": "listen"})).json()["items"]
            assert [item["attempt"] for item in items] == [2, 1]
            assert items[1]["lines"][1]["event"] == "heard nothing"
        command = ["run", f"r{run.id}", f"--database-url={database_url}"]
        page = subprocess.run(
            [sys.executable, "-m", "tidemill.cli.main", *command], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert "listen  work 1, attempt 1" in page.stdout
        assert "warning  heard nothing" in page.stdout
    await app.close()


async def test_logs_go_with_the_days_of_their_jobs(database: Database) -> None:
    now = datetime.now(UTC)
    old, new = now - timedelta(days=9), now
    for moment in (old, new):
        await keep_job_log(database, moment.date(), keep_days=30)
    logs = [AttemptLog(number, 1, at.timestamp(), 0, b"[]") for number, at in ((1, old), (2, new))]
    await database.run(lambda connection: write_logs(database, connection, logs))
    await keep_job_log(database, now.date(), keep_days=7)
    assert await read_logs(database, 1) == []
    assert len(await read_logs(database, 2)) == 1


async def test_logs_of_steps_go_with_the_days_of_runs(database: Database) -> None:
    now = datetime.now(UTC)
    old = now - timedelta(days=9)
    for moment in (old, now):
        await keep_run_log(database, moment.date(), keep_days=30)
    logs = [NewStepLog(number, 1, "s", 1, at.timestamp(), 0, b"[]") for number, at in ((1, old), (2, now))]
    await database.run(lambda connection: write_step_logs(database, connection, logs))
    await keep_run_log(database, now.date(), keep_days=7)
    assert await read_step_logs(database, 1) == []
    assert len(await read_step_logs(database, 2)) == 1
