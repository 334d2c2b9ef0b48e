"""Every role waits for a database that is away when it starts, says so, and serves once it is there; probes tell."""

from __future__ import annotations

import asyncio
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support import eventually
from tests.support.cli import Process, make_folder
from tests.support.ports import free_port
from tests.support.wire import Wire
from tidemill.engine.application.load_app import load_app
from tidemill.store.database import Database

APP = """
from pathlib import Path

from tidemill import App
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor, absent
from tidemill.pipelines import Pipeline
from tidemill.sources import JsonlSource, LogSource
from tidemill.streams import Plan, Stream, task

app = App("shop")
here = Path(__file__).parent


@app.task
async def work() -> None: ...


@app.workflow
class Flow(Workflow):
    @step
    async def only(self, ev: StartEvent) -> StopEvent:
        return StopEvent()


class Count:
    def on_event(self, state, event):
        state.count = (state.count or 0) + 1


app.monitor(
    Monitor(
        "silence", source=JsonlSource(here / "events.jsonl"), entity=lambda event: event["who"], fold=Count,
        triggers=[absent("silent", after="5m")],
    )
)
site = Pipeline("site", root=here / "site")


@site.stage(input="in/{name}.txt", output="out/{name}.txt")
def copy(entity, text):
    return text


app.pipeline(site)


class Look(Plan, eligibility="look"):
    @task
    async def look(self, ctx):
        return 1


app.stream(Stream("news", plans=[Look], engines=0, sources=[LogSource("news", eligibilities={"look"})]))
"""

#: Each role, and the names under which its processes are connected.
ROLES = {
    "maintenance app.py": {"tidemill maintenance"},
    "worker app.py": {"tidemill worker shop", "tidemill run worker shop"},
    "server app.py --port=0": {"tidemill server shop"},
    "monitor run app.py": {"tidemill monitor shop"},
    "pipeline run app.py": {"tidemill pipeline"},
    "stream run app.py news": {"tidemill stream", "tidemill stream news"},
}


async def test_each_role_waits_for_a_database_that_comes_later(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "shop", APP)
    (folder / "events.jsonl").touch()
    (folder / "site" / "in").mkdir(parents=True)
    async with Wire(database_url).open() as wire:
        wire.shut()
        started = [Process(folder, *role.split(), "--database-url", wire.url) for role in ROLES]
        try:
            for process in started:
                await asyncio.to_thread(process.line, "waiting for the database")
            wire.mend()

            async def missing() -> set[str]:
                rows = await database.fetch("SELECT application_name AS name FROM pg_stat_activity")
                return {name for names in ROLES.values() for name in names} - {row["name"] for row in rows}

            async def all_serve() -> bool:
                assert all(process._process.poll() is None for process in started), [each.output for each in started]
                return not await missing()

            await eventually(all_serve, what="each role is connected")
            for process in started:
                process.signal(signal.SIGTERM)
            statuses = [await asyncio.to_thread(process.wait) for process in started]
            assert dict(zip(ROLES, statuses, strict=True)) == dict.fromkeys(ROLES, 0), [each.output for each in started]
        finally:
            for process in started:
                await asyncio.to_thread(process.close)


async def test_the_probes_of_each_role_tell_the_start_an_outage_of_the_database_and_its_end(
    database_url: str, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "shop", APP)
    (folder / "events.jsonl").touch()
    (folder / "site" / "in").mkdir(parents=True)
    async with Wire(database_url).open() as wire:
        wire.shut()
        ports = {role: free_port() for role in ROLES}
        started = {
            role: Process(
                folder, *role.split(), "--database-url", wire.url, TIDEMILL_METRICS=f"127.0.0.1:{port}"
            )
            for role, port in ports.items()
        }  # fmt: skip
        try:
            await _answer(ports, "/livez", 200)  # Else they would be killed while they wait.
            await _answer(ports, "/readyz", 503)
            wire.mend()
            await _answer(ports, "/readyz", 200)
            wire.shut()
            await _answer(ports, "/readyz", 503)
            await _answer(ports, "/livez", 200)
            wire.mend()
            await _answer(ports, "/readyz", 200)
            for process in started.values():
                process.signal(signal.SIGTERM)
            statuses = {role: await asyncio.to_thread(process.wait) for role, process in started.items()}
            assert statuses == dict.fromkeys(ROLES, 0), [each.output for each in started.values()]
        finally:
            for process in started.values():
                await asyncio.to_thread(process.close)


HOLDING = """
import time
from pathlib import Path

from tidemill import App

app = App("shop")
here = Path(__file__).parent


@app.task
def hold() -> str:
    (here / "begun").touch()
    while not (here / "go").exists():
        time.sleep(0.02)
    return "held"
"""


@pytest.mark.parametrize("command", ["worker app.py --only jobs", "worker app.py"])
async def test_a_worker_that_drains_is_alive_but_not_ready_and_its_job_ends(
    database: Database, database_url: str, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "shop", HOLDING, database_url)
    monkeypatch.chdir(folder)
    ports = {command: free_port()}
    worker = Process(folder, *command.split(), TIDEMILL_METRICS=f"127.0.0.1:{ports[command]}")
    try:
        app = load_app(str(folder / "app.py"))
        async with app:
            job = await app.enqueue("hold")
            await eventually((folder / "begun").exists)
            await _answer(ports, "/readyz", 200)
            worker.signal(signal.SIGTERM)
            await _answer(ports, "/readyz", 503)
            await _answer(ports, "/livez", 200)
            (folder / "go").touch()
            assert await job.result() == "held"
        assert await asyncio.to_thread(worker.wait) == 0
    finally:
        (folder / "go").touch()
        await asyncio.to_thread(worker.close)


async def _answer(ports: dict[str, int], path: str, expected: int) -> None:
    """Return when all roles answer a probe so."""
    found: dict[str, int | None] = {}

    async def all_answer() -> bool:
        for role, port in ports.items():
            found[role] = await asyncio.to_thread(_status, f"http://127.0.0.1:{port}{path}")
        return set(found.values()) == {expected}

    try:
        await eventually(all_answer, what=f"{path} answers {expected} for all roles")
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None


def _status(url: str) -> int | None:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:  # It does not listen yet.
        return None
