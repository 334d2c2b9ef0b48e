"""The `server` suite: pages of a long history over HTTP, and how soon a change is heard by many pages.

A server process as `tidemill server` starts it, on a database with a month of finished jobs and many runs. Requests
come from a process of their own (`load.py`): 50 in flight, each of which asks again as soon as it is
answered. `deep_page` is beside `first_page`: a page far back costs what the first one costs.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import msgspec

from benchmarks.server import console
from benchmarks.shared import report
from benchmarks.shared.contenders import say
from benchmarks.shared.postgres import Server
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.jobs.history import partitions as history_partitions
from tidemill.store.migrate import migrate

DAYS = 30
LIST_P99_MS, SSE_P99_MS, BUNDLE_KB, INTERACTIVE_MS, GRAPH_FPS = 20.0, 150.0, 300.0, 1500.0, 30.0

APP = """
from tidemill import App
from tidemill.dags import Dag, node

app = App("bench")


@app.task(queue="mail")
async def task_1(n: int = 0) -> None: ...


# A thousand nodes: forty chains between a beginning and an end.
app.dag(
    Dag(
        "wide",
        nodes=[
            node("begin", "task_1"),
            *(node(f"n{i}", "task_1", deps=["begin"] if i < 40 else [f"n{i - 40}"]) for i in range(998)),
            node("end", "task_1", deps=[f"n{i}" for i in range(958, 998)]),
        ],
    )
)
"""

FILL_JOBS = """
INSERT INTO tidemill.job_history (
    id, finished_at, due_at, created_at, started_at, worker_id, attempt, failures, losses, priority, state, queue, task,
    args, origin, result, tags, unique_key, note)
SELECT nextval('tidemill.job_id_seq'), at, at, at, at, 0, 1, 0, 0, 5,
       CASE WHEN n % 50 = 0 THEN 'failed' WHEN n % 333 = 0 THEN 'cancelled' ELSE 'succeeded' END,
       (ARRAY['mail', 'mail', 'mail', 'fetch', 'fetch', 'gpu', 'web', 'web', 'web', 'web'])[n % 10 + 1],
       'task_' || n % 37, json_build_object('n', n), '{{"by":"app bench","host":"a-host","pid":4711}}', 'null',
       CASE WHEN n % 100 = 0 THEN ARRAY['tag' || n % 1000] END, CASE WHEN n % 200 = 0 THEN 'order-' || n END,
       CASE WHEN n % 50 = 0 THEN 'ValueError: it cannot be read' END
FROM (SELECT n, now() - make_interval(secs => ({jobs} - n) * {apart}) AS at
      FROM generate_series(1, {jobs}) AS n) AS jobs
"""

FILL_RUNS = """
INSERT INTO tidemill.run (workflow, kind, version, key, input, state, created_at, ended_at, awake, seq)
SELECT name, CASE WHEN name = 'Nightly' THEN ':dag' ELSE name END, 'v',
       CASE WHEN n % 100 = 0 THEN 'key-' || n ELSE '~' || n END, '{{}}',
       CASE WHEN n % 100 = 3 THEN 'failed' ELSE 'succeeded' END, now(), now(), false, 12
FROM (SELECT n, (ARRAY['Order', 'Order', 'Order', 'Mail', 'Nightly'])[n % 5 + 1] AS name
      FROM generate_series(1, {runs}) AS n) AS runs
"""


class Plan(msgspec.Struct, frozen=True):
    """How much there is, and how long is measured."""

    jobs: int
    runs: int
    seconds: float
    clients: int
    changes_per_s: int
    crowd: int = 0
    """As many pages once more, to see how delay grows with them."""


#: To see that the suite runs.
TOY = Plan(jobs=200, runs=50, seconds=0.5, clients=5, changes_per_s=20, crowd=10)
QUICK = Plan(jobs=200_000, runs=20_000, seconds=4.0, clients=100, changes_per_s=1000, crowd=1000)
FULL = Plan(jobs=1_000_000, runs=100_000, seconds=20.0, clients=200, changes_per_s=1000, crowd=1000)


def run(server: Server, plan: Plan) -> list[report.Row]:
    """Every row of the suite."""
    with server.database("server") as dsn:
        say(f"{plan.jobs:,} finished jobs and {plan.runs:,} runs")
        asyncio.run(_fill(dsn, plan))
        with _serving(dsn) as url:
            figures: dict[str, float | None] = {**_load("lists", url, dsn, plan), **_load("changes", url, dsn, plan)}
            if plan.crowd:
                many = msgspec.structs.replace(plan, clients=plan.crowd)
                figures["crowd_p99"] = _load("changes", url, dsn, many)["sse_p99"]
            figures |= console.measure(url)
    return [
        report.compare("list_p99_ms", "ms", figures["p99"], "wanted", LIST_P99_MS, less_is_better=True),
        report.compare("list_rate", "requests/s", figures["rate"], "", None),
        report.compare("deep_page", "ms", figures["deep"], "first_page", figures["first"], less_is_better=True),
        report.compare("sse_p99_ms", "ms", figures["sse_p99"], "wanted", SSE_P99_MS, less_is_better=True),
        report.compare("sse_changes", "changes/s", figures["changes"], "wanted", float(plan.changes_per_s)),
        report.compare("sse_1000_p99_ms", "ms", figures.get("crowd_p99"), "wanted", SSE_P99_MS, less_is_better=True),
        report.compare("bundle_kb", "kB", figures.get("bundle_kb"), "wanted", BUNDLE_KB, less_is_better=True),
        report.compare(
            "interactive_ms", "ms", figures.get("interactive_ms"), "wanted", INTERACTIVE_MS, less_is_better=True
        ),
        report.compare("graph_fps", "frames/s", figures.get("graph_fps"), "wanted", GRAPH_FPS),
    ]


def _load(what: str, url: str, dsn: str, plan: Plan) -> dict[str, float]:
    wish = {"what": what, "url": url, "dsn": dsn, **msgspec.structs.asdict(plan)}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.server.load", json.dumps(wish)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


async def _fill(dsn: str, plan: Plan) -> None:
    async with Database(DatabaseSettings(url=dsn)) as database:
        await migrate(database)
        today = datetime.now(UTC).date()
        for back in range(DAYS + 1):
            await history_partitions.make_partitions(database, today - timedelta(days=back), days_ahead=0)
        await history_partitions.make_partitions(database, today)
    connection = await asyncpg.connect(dsn)
    apart = DAYS * 86_000 / plan.jobs
    await connection.execute(FILL_JOBS.format(jobs=plan.jobs, apart=apart), timeout=600)
    await connection.execute(FILL_RUNS.format(runs=plan.runs), timeout=600)
    await connection.execute("VACUUM (ANALYZE) tidemill.job_history", timeout=600)
    await connection.execute("VACUUM (ANALYZE) tidemill.run", timeout=600)
    await connection.execute("CHECKPOINT")
    await connection.close()


@contextmanager
def _serving(dsn: str) -> Iterator[str]:
    """A server process, once it answers: its URL."""
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        app, output = Path(folder) / "app.py", Path(folder) / "output"
        app.write_text(APP)
        command = (
            sys.executable,
            "-m",
            "tidemill.cli.main",
            "server",
            str(app),
            "--port=0",
            "--trust-local",
            f"--database-url={dsn}",
        )
        environment = {name: text for name, text in os.environ.items() if not name.startswith("TIDEMILL_")}
        with output.open("wb") as writing:
            process = subprocess.Popen(command, stdout=writing, stderr=writing, env=environment)
        try:
            while "serving http" not in (said := output.read_text()):
                if process.poll() is not None:
                    raise RuntimeError(f"the server ended:\n{said}")
                time.sleep(0.05)
            yield next(line.split()[1] for line in said.splitlines() if line.startswith("serving http"))
        finally:
            process.terminate()
            process.wait(20)
