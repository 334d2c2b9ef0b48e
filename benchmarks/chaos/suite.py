"""The `chaos` suite: what is lost, what is doubled, and how long recovery takes, when everything is killed.

On a private server run maintenance, three workers and a feeder that always keeps some thousand jobs waiting,
each a process of its own. Jobs take 20 ms, so throughput is limited by the hands of the workers: one worker less
is a third less throughput. Every few seconds a worker is SIGKILLed and another one started in its place, as a
supervisor would do; once the backend of a busy worker is terminated, and once the server is restarted.

Whether a job is lost is told by the ids that the feeder got acknowledged; throughput is read afterwards from the
times at which the database says that jobs finished. A killed worker's own jobs wait for its lease: they count
for `lost` and `finished_percent`, and the time until they are back is `stragglers_s`.

After that come the culprits (`benchmarks.chaos.culprits`): work that misbehaves beside work that does not.
"""

import asyncio
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from benchmarks.chaos import culprits
from benchmarks.chaos.recovery import Event, Throughput
from benchmarks.shared import actors, report
from benchmarks.shared.contenders import say
from benchmarks.shared.venv import ROOT
from tidemill.store.embedded.server import EmbeddedServer

WORKERS = 3
RECOVER_LIMIT_S = 5.0

# The connection on which a worker claims and finishes.
TERMINATE_A_BUSY_BACKEND = """
SELECT pg_terminate_backend(pid, 1000) AS gone FROM pg_stat_activity
WHERE application_name LIKE 'tidemill worker%' AND query LIKE '%WITH owned AS%' AND pid <> pg_backend_pid() LIMIT 1
"""

#: Seconds in which a worker has claimed something, also on a busy machine.
CLAIM_WITHIN = 20.0

COUNT_UNFINISHED = "SELECT count(*) FROM tidemill.job"
FINISHED = "SELECT id, attempt, state, extract(epoch FROM finished_at)::float8 AS at FROM tidemill.job_history"


class Plan(msgspec.Struct, frozen=True):
    """Seconds: of work at first, between two blows, to wait for the last job at most, and to name a culprit."""

    quiet_s: float
    pause_s: float
    blows: tuple[str, ...]
    patience_s: float
    adjust_s: float = 10.0


WORKER, BACKEND, RESTART = "worker_killed", "backend_killed", "database_restart"

TOY = Plan(quiet_s=1.0, pause_s=1.0, blows=(BACKEND, WORKER), patience_s=30.0, adjust_s=1.0)
QUICK = Plan(
    quiet_s=3.0,
    pause_s=3.0,
    blows=(WORKER, RESTART, WORKER, BACKEND, WORKER),
    patience_s=24.0,
)
FULL = Plan(
    quiet_s=5.0,
    pause_s=5.0,
    blows=(WORKER, WORKER, BACKEND, WORKER, RESTART, WORKER, WORKER, BACKEND, WORKER, RESTART, WORKER, WORKER),
    patience_s=60.0,
)


class Cast:
    """The processes on stage: started ready to work, killed without a warning, all gone at the end."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn = dsn
        self._folder = folder
        self._living: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        self._workers: list[subprocess.Popen[bytes]] = []

    def start(self, role: str, *, wait: bool = True) -> subprocess.Popen[bytes]:
        log = self._folder / f"{role}-{len(self._living)}"
        command = [sys.executable, "-m", "benchmarks.shared.actors", role, "--dsn", self._dsn, "--log", str(log)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        self._living.append(process)
        if role == "worker":
            self._workers.append(process)
            self._logs.append(log)
        if wait:
            self.wait_ready(process)
        return process

    def wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"a process did not start (exit status {process.wait()}): {process.args}")

    def replace_a_worker(self) -> None:
        victim = self._workers.pop(random.randrange(len(self._workers)))
        self.kill(victim)
        self.start("worker", wait=False)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def check(self) -> None:
        """Raise if a process ended that was not killed."""
        for process in self._workers:
            if process.poll() is not None:
                raise RuntimeError(f"a worker ended that was not killed (exit status {process.returncode})")

    def executions(self) -> Counter[int]:
        """How often each job was started, by its number."""
        return Counter(number for log in self._logs if log.exists() for number in actors.read_log(str(log)))

    def end(self) -> None:
        for process in self._living:
            if process.poll() is None:
                process.kill()
            process.wait()


class Outcome(msgspec.Struct, frozen=True):
    """What the database and the logs say at the end."""

    acknowledged: int
    lost: int
    doubled: int
    unsuccessful: int
    claimed_again: int
    run_again: int
    left_over: int
    stragglers_s: float
    recoveries: dict[str, float]
    jobs_per_s: float


def run(plan: Plan) -> list[report.Row]:
    """Play the whole thing and report."""
    with _stage() as (server, folder):
        cast = Cast(server.dsn, folder)
        try:
            outcome = _play(plan, server, cast, folder)
        finally:
            cast.end()
    rows = _rows(outcome)
    for fault in culprits.FAULTS:  # Each on a server of its own: what is left of a culprit would trouble the next one.
        with _stage() as (server, folder):
            rows += culprits.run(fault, server.dsn, folder, seconds=plan.pause_s, adjust_s=plan.adjust_s)
    return rows


def _play(plan: Plan, server: EmbeddedServer, cast: Cast, folder: Path) -> Outcome:
    cast.start("maintenance")
    workers = [cast.start("worker", wait=False) for _ in range(WORKERS)]
    feeder = cast.start("feeder")
    for worker in workers:
        cast.wait_ready(worker)
    time.sleep(1.0)  # Python has warmed up
    quiet_from = time.time()
    time.sleep(plan.quiet_s)
    blows: dict[str, Callable[[], None]] = {
        WORKER: cast.replace_a_worker,
        BACKEND: lambda: _terminate_a_backend(server.dsn),
        RESTART: lambda: _restart(server),
    }
    events = []
    for blow in plan.blows:
        events.append(Event(blow, time.time()))
        say(f"chaos: {blow.replace('_', ' ')}")
        blows[blow]()
        time.sleep(max(0.0, events[-1].at + plan.pause_s - time.time()))
    cast.check()
    cast.kill(feeder)
    fed_until = time.time()
    say("chaos: waiting for the last jobs, up to the lease of the workers that were killed")
    left_over = _wait_until_empty(server.dsn, plan.patience_s)
    acknowledged = actors.read_log(str(folder / f"feeder-{WORKERS + 1}"))
    finished = asyncio.run(_fetch(server.dsn, FINISHED))
    throughput = Throughput([row["at"] for row in finished], quiet_from, events[0].at)
    return _judge(cast, acknowledged, finished, left_over, events, fed_until, throughput)


def _judge(
    cast: Cast,
    acknowledged: list[int],
    finished: list[asyncpg.Record],
    left_over: int,
    events: list[Event],
    fed_until: float,
    throughput: Throughput,
) -> Outcome:
    results = Counter(row["id"] for row in finished)
    executions = cast.executions()
    return Outcome(
        acknowledged=len(acknowledged),
        lost=sum(1 for job_id in acknowledged if job_id not in results),
        doubled=sum(count - 1 for count in results.values()),
        unsuccessful=sum(1 for row in finished if row["state"] != "succeeded"),
        claimed_again=sum(row["attempt"] - 1 for row in finished),
        run_again=sum(count - 1 for count in executions.values()),
        left_over=left_over,
        stragglers_s=max(row["at"] for row in finished) - fed_until,
        recoveries=throughput.recoveries(events, fed_until),
        jobs_per_s=throughput.before,
    )


def _rows(outcome: Outcome) -> list[report.Row]:
    finished_percent = 100 * (1 - outcome.lost / max(1, outcome.acknowledged))
    rows = [
        report.compare("lost", "jobs", outcome.lost, "limit", 0),
        report.compare("doubled", "results", outcome.doubled, "limit", 0),
        report.compare("finished_percent", f"% of {outcome.acknowledged:,}", finished_percent, "limit", 100),
        report.compare(
            "recover_s", "s", max(outcome.recoveries.values()), "limit", RECOVER_LIMIT_S, less_is_better=True
        ),
    ]
    for kind, seconds in outcome.recoveries.items():
        rows.append(report.compare(f"recover_s_{kind}", "s", seconds, "limit", RECOVER_LIMIT_S, less_is_better=True))
    for name, figure, unit in (
        ("throughput_before", outcome.jobs_per_s, "jobs/s"),
        ("unsuccessful", outcome.unsuccessful, "jobs"),
        ("left_over", outcome.left_over, "jobs"),
        ("claimed_again", outcome.claimed_again, "claims, because of the kills"),
        ("run_again", outcome.run_again, "executions, because of the kills"),
        ("stragglers_s", outcome.stragglers_s, "s after the last feeding"),
    ):
        rows.append(report.compare(name, unit, figure, "–", None))
    return rows


# -- the stage --------------------------------------------------------------------------------


@contextlib.contextmanager
def _stage() -> Iterator[tuple[EmbeddedServer, Path]]:
    """A server of this run's own, and a folder for the logs; nothing remains."""
    bench = ROOT / ".bench"
    bench.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=bench))
    server = EmbeddedServer(folder / "pg")
    try:
        server.ensure()
        yield server, folder
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _restart(server: EmbeddedServer) -> None:
    server.stop()
    server.ensure()


def _terminate_a_backend(dsn: str) -> None:
    give_up = time.monotonic() + CLAIM_WITHIN
    while [row["gone"] for row in asyncio.run(_fetch(dsn, TERMINATE_A_BUSY_BACKEND))] != [True]:
        if time.monotonic() > give_up:
            raise RuntimeError("no busy worker backend could be terminated")
        time.sleep(0.05)


def _wait_until_empty(dsn: str, patience_s: float) -> int:
    """Wait until no job is unfinished; returns how many are left when patience ends."""
    give_up = time.monotonic() + patience_s
    while left := asyncio.run(_fetch(dsn, COUNT_UNFINISHED))[0][0]:
        if time.monotonic() > give_up:
            break
        time.sleep(0.2)
    return left


async def _fetch(dsn: str, statement: str) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()
