"""Workers on hosts that do not see a pipeline's files, and queues that no worker serves."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support import eventually
from tests.support.cli import TIDEMILL, environment
from tests.support.pipelines import put
from tidemill import App
from tidemill.core.clock import SYSTEM_CLOCK, SystemClock
from tidemill.engine.roles.role import Life
from tidemill.pipelines import Pipeline
from tidemill.pipelines.runner.runner import CHECK_FLIGHTS, WARN_AFTER, PipelineRunner
from tidemill.pipelines.stores.base import NotHereError
from tidemill.pipelines.stores.files import FileStates
from tidemill.store.database import Database

APP = """
from tidemill import App
from tidemill.pipelines import Pipeline

app = App("hosts")
p = Pipeline("p", root="states", scan_interval=1)

@p.stage(input="in/{id}.txt", output="out/{id}.txt", version="1")
def only(entity, text):
    return text.upper()

app.pipeline(p)
"""


class Hosts:
    """Folders that stand for hosts: one sees the states, the other has none."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.roles: list[subprocess.Popen[bytes]] = []
        for name in ("seeing", "blind"):
            put(folder / name, {"app.py": APP})
        put(folder / "seeing/states", {"in/a.txt": "apple"})

    def start(self, host: str, *command: str) -> None:
        with open(self.folder / f"{host}-{command[0]}.log", "ab") as log:
            command_line = [*TIDEMILL, *command, "--database-url", self.url]
            role = subprocess.Popen(command_line, cwd=self.folder / host, env=environment(), stdout=log, stderr=log)
            self.roles.append(role)

    def ask(self, *command: str) -> str:
        """What a command says on the host that sees the states, with any white space as one space."""
        done = subprocess.run(
            [*TIDEMILL, *command, "--database-url", self.url],
            cwd=self.folder / "seeing", env=environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        return " ".join(done.stdout.split())

    def said(self, host: str, command: str) -> str:
        return (self.folder / f"{host}-{command}.log").read_text()


@pytest.fixture
def hosts(tmp_path: Path, database: Database, database_url: str) -> Iterator[Hosts]:
    made = Hosts(tmp_path, database_url)
    yield made
    for role in made.roles:
        role.kill()
        role.wait()


async def waiting_job(database: Database) -> str | None:
    """The note of the build that waits."""
    rows = await database.fetch("SELECT note FROM tidemill.job WHERE task = 'p/only' AND state = 'ready'")
    return rows[0]["note"] if rows else None


async def test_a_queue_without_a_worker_is_the_reason_shown_for_what_waits(hosts: Hosts, database: Database) -> None:
    hosts.start("seeing", "pipeline", "run", "app.py")

    async def is_queued() -> bool:
        return bool(await database.fetch("SELECT FROM tidemill.job WHERE task = 'p/only'"))

    await eventually(is_queued)
    await eventually(lambda: "no worker serves the queue of builds" in hosts.said("seeing", "pipeline"))
    assert "No worker serves queue pipelines, where 1 build waits" in hosts.ask("pipeline", "status", "app.py")
    assert "No worker serves queue pipelines" in hosts.ask("explain", "out/a.txt", "--app", "app.py")


class Ahead(SystemClock):
    """The system's clock, moved on by hand."""

    by = 0.0

    def monotonic(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return SYSTEM_CLOCK.monotonic() + self.by


@pytest.mark.parametrize("served", [False, True])
async def test_workers_have_time_to_start_before_a_queue_is_said_to_have_none(
    app: App, database: Database, tmp_path: Path, served: bool
) -> None:
    pipeline, clock, life = Pipeline("p", root=tmp_path), Ahead(), Life()

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1")
    def only(entity, text):
        return text.upper()

    app.pipeline(pipeline)
    put(tmp_path, {"in/a.txt": "apple"})
    runner = PipelineRunner(database, [pipeline], app.pipelines.task_of, clock=clock)

    async def queued() -> int:
        return len(await database.fetch("SELECT FROM tidemill.job WHERE task = 'p/only'"))

    async def warnings(after: int) -> list[str]:
        """The warnings up to a round of the runner after this number of builds was enqueued."""
        put(tmp_path, {f"in/{after}.txt": "pear"})
        await eventually(lambda: queued_now(after))
        return [line["event"] for line in lines if line["event"].startswith("no worker serves")]

    async def queued_now(count: int) -> bool:
        return await queued() >= count

    with capture_logs() as lines:
        task = asyncio.create_task(runner.work(life))
        await eventually(lambda: queued_now(1))
        clock.by += CHECK_FLIGHTS  # Builds that wait are looked at, and workers may still be starting.
        assert await warnings(2) == []
        if served:
            await database.fetch(
                "INSERT INTO tidemill.worker (host, pid, queues, tasks, max_concurrency, versions, lease_until)"
                " VALUES ('h', 1, '{pipelines}', '{}', 1, '{}', now() + interval '1 hour')"
            )
        clock.by += WARN_AFTER
        await warnings(3)
        clock.by += CHECK_FLIGHTS
        assert len(await warnings(4)) == (0 if served else 1)
        life.stop()
        await task


async def test_a_folder_of_the_same_path_on_another_host_is_told_from_the_root(tmp_path: Path) -> None:
    states, other = FileStates(tmp_path / "root"), FileStates(tmp_path / "other")
    id = await states.identify()
    assert await states.identify() == id
    await states.check_identity(id)
    with pytest.raises(NotHereError, match=r"has no .tidemill-root: mount"):
        await other.check_identity(id)
    await other.identify()
    with pytest.raises(NotHereError, match="is another folder"):
        await other.check_identity(id)


async def test_a_host_that_does_not_see_the_root_refuses_its_jobs_and_is_routed_around(
    hosts: Hosts, database: Database
) -> None:
    host = "blind"
    hosts.start("seeing", "pipeline", "run", "app.py")
    hosts.start(host, "worker", "app.py", "--only=jobs")

    async def is_refused() -> bool:
        return "refuses it" in (await waiting_job(database) or "")

    await eventually(is_refused)
    note = await waiting_job(database) or ""
    assert "mount the pipeline's root there" in note
    assert str(hosts.folder / host / "states") in note
    assert not (hosts.folder / host / "states/out").exists()
    assert "mount the pipeline's root" in hosts.ask("explain", "out/a.txt", "--app", "app.py")
    hosts.start("seeing", "worker", "app.py", "--only=jobs")
    await eventually(lambda: (hosts.folder / "seeing/states/out/a.txt").exists())
    assert (hosts.folder / "seeing/states/out/a.txt").read_text() == "APPLE"
    assert hosts.said(host, "worker").count("job refused") == 1
