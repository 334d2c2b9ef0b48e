"""A builder is killed at any moment of a commit, beside another builder or workers: each state has one build."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.support import eventually
from tests.support.cli import TIDEMILL, environment
from tests.support.pipelines import put, tree
from tidemill.store.database import Database

pytestmark = pytest.mark.long

COUNT = 30
MOMENTS = ["leased", "called", "prepared", "intended", "published", "committed"]

APP = '''
import asyncio, os, signal, sys, time
from tidemill import App
from tidemill.pipelines import Pipeline
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.pipelines.stores.files import FileStates
from tidemill.store.database import Database, DatabaseSettings

app = App("kills")
left = {os.environ.get("DIES"): int(os.environ.get("DIES_AT", "1"))}

def die(moment):
    """Die when the moment has come so many times."""
    if moment in left:
        left[moment] -= 1
        if not left[moment]:
            os.kill(os.getpid(), signal.SIGKILL)

class Dying(FileStates):
    async def prepare(self, drafts):
        die("called")
        done = await super().prepare(drafts)
        die("prepared")
        return done

    async def publish(self, prepared):
        die("intended")
        done = await super().publish(prepared)
        die("published")
        return done

    async def discard(self, prepared):
        die("committed")
        await super().discard(prepared)

class Store:
    def open(self, database):
        return Dying(p.root)

p = Pipeline("p", root="states", store=Store(), scan_interval=1, approve_above=None)

@p.stage(input="in/{id}.txt", output="one/{id}.txt", version="1")
def first(entity, text):
    die("leased")
    while "DIES" not in os.environ and os.path.exists("hold"):
        time.sleep(0.01)
    return text.upper()

@p.stage(input="one/{id}.txt", output="two/{id}/{n}.txt", scatter=True, version="1")
async def second(entity, text):
    die("leased")
    return {"1": text, "2": text}

@p.stage(input="two/{id}/{n}.txt", output="three/{id}.txt", collect="n", version="1")
def third(entity, files):
    die("leased")
    return "".join(each.text() for each in files)

app.pipeline(p)

async def main():
    async with Database(DatabaseSettings(url=sys.argv[1])) as database:
        plan = await run_once(Driver(database, p))
        print(len(plan.steps))

if __name__ == "__main__":
    asyncio.run(main())
'''


def builder(folder: Path, url: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "app.py", url], cwd=folder, env=environment() | variables, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def role(folder: Path, url: str, *arguments: str) -> subprocess.Popen[str]:
    with open(folder / "said.txt", "a") as said:
        return subprocess.Popen(
            [*TIDEMILL, *arguments, "--database-url", url], cwd=folder, env=environment(), stdout=said, stderr=said,
            text=True,
        )  # fmt: skip


def project(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "hold").touch()  # The builder that dies has enough to do until then.
    put(tmp_path / "states", {f"in/{n}.txt": f"text {n} " for n in range(COUNT)})
    return tmp_path


async def kill(folder: Path, url: str, moment: str, at: str) -> None:
    """Let a builder die when a moment of its commits has come so many times."""
    dying = builder(folder, url, DIES=moment, DIES_AT=at)
    said = await asyncio.to_thread(dying.communicate, timeout=120)
    assert dying.returncode == -signal.SIGKILL, said
    (folder / "hold").unlink()


async def check_nothing_is_left(folder: Path, url: str) -> None:
    last = builder(folder, url)
    told, _ = await asyncio.to_thread(last.communicate, timeout=120)
    assert told.splitlines()[-1] == "0", told


async def check_one_build_of_each(folder: Path, database: Database) -> None:
    rows = await database.fetch("SELECT stage, entity, outcome, reason FROM tidemill.state_build")
    assert [row for row in rows if row["reason"] not in (None, "it is missing")] == []
    wanted = Counter((stage, str(n)) for stage in ("first", "second", "third") for n in range(COUNT))
    assert Counter((row["stage"], row["entity"]) for row in rows) == wanted
    assert {row["outcome"] for row in rows} <= {"built", "finished"}
    found = tree(folder / "states")
    assert len(found) == 5 * COUNT
    assert all(found[f"three/{n}.txt"] == f"TEXT {n} TEXT {n} " for n in range(COUNT))
    assert not list((folder / "states").rglob("*.tmp"))
    assert await database.fetch("SELECT FROM tidemill.state_building") == []
    assert await database.fetch("SELECT FROM tidemill.state WHERE intent_by IS NOT NULL") == []


async def is_leased(database: Database) -> bool:
    return bool(await database.fetch("SELECT FROM tidemill.state_building"))


@pytest.mark.parametrize("at", ["1", "4"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_builder_killed_beside_another_leaves_one_build_of_each_state(
    moment: str, at: str, tmp_path: Path, database: Database, database_url: str
) -> None:
    folder = project(tmp_path)
    living = builder(folder, database_url)
    await eventually(partial(is_leased, database))
    await kill(folder, database_url, moment, at)
    said = await asyncio.to_thread(living.communicate, timeout=120)
    assert living.returncode == 0, said
    await check_nothing_is_left(folder, database_url)
    await check_one_build_of_each(folder, database)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_builder_killed_beside_workers_leaves_one_build_of_each_state(
    moment: str, tmp_path: Path, database: Database, database_url: str
) -> None:
    folder = project(tmp_path)
    roles = [
        role(folder, database_url, "maintenance", "app.py"),
        role(folder, database_url, "pipeline", "run", "app.py"),
        role(folder, database_url, "worker", "app.py", "--only=jobs"),
    ]
    try:
        await eventually(partial(is_leased, database), timeout=60)
        await kill(folder, database_url, moment, "2")
        await check_nothing_is_left(folder, database_url)
    finally:
        for each in roles:
            each.terminate()
        for each in roles:
            await asyncio.to_thread(each.wait, 60)
    await check_one_build_of_each(folder, database)
