"""`tidemill worker --until-idle` runs what is due, jobs that jobs enqueue and runs included, and ends."""

from __future__ import annotations

from pathlib import Path

from tests.support import value
from tests.support.cli import Process, make_folder, ok, run
from tidemill.store.database import Database

APP = """
from tidemill import App
from tidemill.flows import StartEvent, StopEvent, Workflow, step

app = App("shop")


@app.task
async def first(n: int) -> None:
    if n:
        await app.enqueue(first.call(n - 1))
    else:
        await app.start("Last")


class Last(Workflow):
    @step
    async def end(self, ev: StartEvent) -> StopEvent:
        await app.enqueue(note.call())
        return StopEvent(result="ended")


@app.task
async def note() -> None: ...


app.workflow(Last)
"""


async def test_a_worker_runs_what_is_due_and_what_follows_from_it_and_ends(
    tmp_path: Path, database_url: str, database: Database
) -> None:
    folder = make_folder(tmp_path, APP, database_url)
    ok(folder, "enqueue", "app.py", "first", '{"n": 3}')
    ok(folder, "enqueue", "app.py", "note", "--delay", "1h")
    worker = Process(folder, "worker", "app.py", "--until-idle")
    try:
        assert worker.wait() == 0, worker.output
    finally:
        worker.close()
    assert await value(database, "SELECT count(*) FROM tidemill.job_history WHERE state = 'succeeded'") == 5
    assert await value(database, "SELECT count(*) FROM tidemill.run WHERE state = 'succeeded'") == 1
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 1, "what is due later waits for another worker"


def test_it_is_about_jobs_and_runs_together(tmp_path: Path) -> None:
    done = run(make_folder(tmp_path, APP), "worker", "app.py", "--until-idle", "--only", "jobs")
    assert (done.returncode != 0, "leave out --only" in done.stderr) == (True, True)
