"""Real processes that are killed in the middle of things: nothing torn, nothing lost, nothing built by two at once."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import eventually, lapse
from tests.support.cli import TIDEMILL, environment
from tests.support.pipelines import put, tree
from tidemill.store.database import Database

pytestmark = pytest.mark.long

APP = '''
import hashlib, os, time
from pathlib import Path
from tidemill import App
from tidemill.pipelines import Pipeline

app = App("kills")
p = Pipeline("kills", root="states", scan_interval=1, approve_above=None)
LOCKS = Path("locks")

def sealed(text):
    return text + "\\n" + hashlib.sha256(text.encode()).hexdigest()

def alone(stage, entity, seconds):
    """Nobody else builds this state now. What a killed process leaves behind is told by its pid."""
    lock = LOCKS / f"{stage}-{entity}"
    LOCKS.mkdir(exist_ok=True)
    if lock.exists():
        pid = int(lock.read_text() or 0)
        if pid and pid != os.getpid() and Path(f"/proc/{pid}").exists():
            Path("TWICE").write_text(f"{stage}/{entity}")
    lock.write_text(str(os.getpid()))
    time.sleep(seconds)
    lock.unlink(missing_ok=True)

@p.stage(input="in/{id}.txt", output="mid/{id}.txt", in_process=IN_PROCESS)
def first(entity, text):
    alone("first", entity.id, SECONDS)
    return sealed(text * 200)

@p.stage(input="mid/{id}.txt", output="out/{id}.txt", in_process=IN_PROCESS)
def second(entity, text):
    alone("second", entity.id, SECONDS)
    return sealed(text.upper())

app.pipeline(p)
'''


def folder_with(tmp_path: Path, *, in_process: bool, seconds: float, count: int) -> Path:
    text = APP.replace("IN_PROCESS", str(in_process)).replace("SECONDS", str(seconds))
    (tmp_path / "app.py").write_text(text)
    put(tmp_path / "states", {f"in/{n}.txt": f"text {n} " for n in range(count)})
    return tmp_path


def start(folder: Path, url: str, *arguments: str) -> subprocess.Popen[bytes]:
    with open(folder / "said.txt", "ab") as said:
        return subprocess.Popen(
            [*TIDEMILL, *arguments, "--database-url", url], cwd=folder, env=environment(), stdout=said, stderr=said
        )


def check_whole(root: Path) -> None:
    """Every state that can be seen is whole, and every manifest names files that are there."""
    import hashlib

    for path, text in tree(root).items():
        if not path.startswith("in/"):
            body, _, seal = text.rpartition("\n")
            assert hashlib.sha256(body.encode()).hexdigest() == seal, path
    for manifest in root.rglob(".manifest.json"):
        for name in json.loads(manifest.read_text())["states"]:
            assert (manifest.parent / name).exists(), f"{manifest} names {name}"


async def test_killed_again_and_again_while_building_it_ends_up_whole(tmp_path: Path, database_url: str) -> None:
    folder = folder_with(tmp_path, in_process=True, seconds=0.001, count=150)
    chance = random.Random(7)
    for _ in range(6):
        before = len(tree(folder / "states"))
        process = start(folder, database_url, "pipeline", "run", "app.py", "--once")
        more = min(before + chance.randrange(1, 25), 3 * 150)  # It may have been quicker than the one who kills it.
        await eventually(lambda more=more: len(list((folder / "states").rglob("[0-9]*.txt"))) >= more)
        process.kill()
        process.wait()
        check_whole(folder / "states")
    last = start(folder, database_url, "pipeline", "run", "app.py", "--once")
    assert await asyncio.to_thread(last.wait, 120) == 0, (folder / "said.txt").read_text()
    check_whole(folder / "states")
    found = tree(folder / "states")
    assert {f"{kind}/{n}.txt" for kind in ("in", "mid", "out") for n in range(150)} == set(found)
    names = json.loads((folder / "states/out/.manifest.json").read_text())["states"]
    assert names
    assert not (folder / "TWICE").exists()


async def test_two_workers_on_one_root_and_one_of_them_killed(
    tmp_path: Path, database_url: str, database: Database
) -> None:
    folder = folder_with(tmp_path, in_process=False, seconds=0.05, count=40)
    roles = [
        start(folder, database_url, "maintenance", "app.py"),
        start(folder, database_url, "pipeline", "run", "app.py"),
        start(folder, database_url, "worker", "app.py", "--only=jobs", "--max-concurrency", "4"),
        start(folder, database_url, "worker", "app.py", "--only=jobs", "--max-concurrency", "4"),
    ]
    try:
        out = folder / "states/mid"
        await eventually(lambda: out.exists() and len(list(out.glob("*.txt"))) > 5, timeout=120)
        roles[2].kill()
        roles[2].wait()
        await lapse(database, roles[2].pid)
        await eventually(lambda: len(list((folder / "states/out").glob("*.txt"))) == 40, timeout=120)
    finally:
        for role in roles:
            if role.poll() is None:
                role.kill()
            role.wait()
    check_whole(folder / "states")
    assert not (folder / "TWICE").exists()


DYING = '''
import asyncio, os, signal, sys
from tidemill.pipelines import Pipeline
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.pipelines.stores.files import FileStates
from tidemill.store.database import Database, DatabaseSettings

def die(moment):
    if sys.argv[2] == moment:
        os.kill(os.getpid(), signal.SIGKILL)

class Dying(FileStates):
    """Dies at one moment of a commit."""
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

    async def keep_manifest(self, directory, entries):
        die("committed")
        await super().keep_manifest(directory, entries)
        die("manifest written")

class Store:
    def open(self, database):
        return Dying(p.root)

p = Pipeline("p", root="states", store=Store() if sys.argv[2] != "live" else None)

@p.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True, version="1")
def only(entity, text):
    open("calls.txt", "a").write(entity.id)
    die("leased")
    return text.upper()

@p.stage(input="out/{id}.txt", output="page/{id}/{n}.txt", scatter=True, in_process=True, version="1")
def pages(entity, text):
    return {"1": text, "2": text}

async def main():
    async with Database(DatabaseSettings(url=sys.argv[1])) as database:
        plan = await run_once(Driver(database, p))
        print(len(plan.steps))

asyncio.run(main())
'''


@pytest.mark.parametrize(
    "moment", ["leased", "called", "prepared", "intended", "published", "committed", "manifest written"]
)
async def test_a_builder_killed_at_any_moment_of_a_commit_costs_nothing_but_what_it_had_not_put_in_place(
    moment: str, tmp_path: Path, database_url: str, database: Database
) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    put(tmp_path / "states", {"in/a.txt": "apple"})

    def run(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "dying.py", database_url, how]
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)

    for _ in range(2):
        died = await asyncio.to_thread(run, moment)
        assert died.returncode == -signal.SIGKILL, died.stderr
        if moment not in ("leased", "called", "prepared", "intended"):
            assert (tmp_path / "states/out/a.txt").read_text() == "APPLE"
        if moment in ("committed", "manifest written"):
            break
    done = await asyncio.to_thread(run, "live")
    assert done.stdout.splitlines()[-1] == "0", done.stderr
    in_place = moment in ("published", "committed", "manifest written")
    assert (tmp_path / "calls.txt").read_text() == ("a" if in_place else "aaa")
    rows = await database.fetch("SELECT stage, entity, outcome, reason FROM tidemill.state_build ORDER BY at")
    assert [(row["stage"], row["entity"]) for row in rows] == [("only", "a"), ("pages", "a")]
    assert {row["outcome"] for row in rows} <= ({"finished", "built"} if moment == "published" else {"built"})
    assert {row["reason"] for row in rows} <= {None, "it is missing"}
    assert set(tree(tmp_path / "states")) == {"in/a.txt", "out/a.txt", "page/a/1.txt", "page/a/2.txt"}
    assert not list((tmp_path / "states").rglob(".tidemill-*"))
    assert not list((tmp_path / "states").rglob("*.tmp"))
    assert await database.fetch("SELECT FROM tidemill.state_building") == []


DYING_WORKERS = '''
import os, signal
from tidemill import App
from tidemill.pipelines import Pipeline
from tidemill.pipelines.stores.files import FileStates

app = App("kills")

def die(moment):
    if os.environ.get("DIES") == moment:
        os.kill(os.getpid(), signal.SIGKILL)

class Dying(FileStates):
    """Dies at one moment of a commit."""
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

@p.stage(input="in/{id}.txt", output="out/{id}.txt", version="1")
def only(entity, text):
    with open("calls.txt", "a") as calls:
        calls.write(entity.id + " ")
    die("leased")
    return text.upper()

app.pipeline(p)
'''


async def test_a_worker_killed_at_any_moment_of_a_commit_leaves_one_build_of_each_state(
    tmp_path: Path, database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(DYING_WORKERS)
    put(tmp_path / "states", {"in/first.txt": "first"})
    worker = ("worker", "app.py", "--only=jobs")
    roles = [
        start(tmp_path, database_url, "maintenance", "app.py"),
        start(tmp_path, database_url, "pipeline", "run", "app.py"),
    ]
    try:
        for moment in ("leased", "called", "prepared", "intended", "published", "committed"):
            monkeypatch.setenv("DIES", moment)
            dying = start(tmp_path, database_url, *worker)
            monkeypatch.delenv("DIES")
            roles.append(dying)
            put(tmp_path / "states", {f"in/{moment}.txt": moment})
            assert await asyncio.to_thread(dying.wait, 120) == -signal.SIGKILL, (tmp_path / "said.txt").read_text()
            await lapse(database, dying.pid)
            roles.append(start(tmp_path, database_url, *worker))

            async def is_recorded(moment: str = moment) -> bool:
                reading = "SELECT FROM tidemill.state WHERE entity = $1 AND content IS NOT NULL"
                jobs = "SELECT FROM tidemill.job WHERE task = 'p/only'"
                return bool(await database.fetch(reading, moment)) and not await database.fetch(jobs)

            await eventually(is_recorded, timeout=120)
            roles[-1].kill()
            roles[-1].wait()
    finally:
        for role in roles:
            if role.poll() is None:
                role.kill()
            role.wait()
    names = ("first", "leased", "called", "prepared", "intended", "published", "committed")
    rows = await database.fetch("SELECT entity, outcome FROM tidemill.state_build")
    assert sorted(row["entity"] for row in rows) == sorted(names)
    assert {row["entity"]: row["outcome"] for row in rows if row["outcome"] != "built"} in (
        {}, {"published": "finished"}, {"first": "finished"},
    )  # fmt: skip
    assert tree(tmp_path / "states") == {
        **{f"in/{name}.txt": name for name in names}, **{f"out/{name}.txt": name.upper() for name in names},
    }  # fmt: skip
    assert not list((tmp_path / "states").rglob("*.tmp"))
    assert await database.fetch("SELECT FROM tidemill.state_building") == []


async def test_what_dead_workers_were_building_is_built_by_once_without_maintenance(
    tmp_path: Path, database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(DYING_WORKERS)
    put(tmp_path / "states", {"in/first.txt": "first"})
    with monkeypatch.context() as dying:
        dying.setenv("DIES", "prepared")
        roles = [
            start(tmp_path, database_url, "worker", "app.py", "--only=jobs"),
            start(tmp_path, database_url, "pipeline", "run", "app.py"),
        ]
    try:
        assert await asyncio.to_thread(roles[0].wait, 120) == -signal.SIGKILL, (tmp_path / "said.txt").read_text()
    finally:
        for role in roles:
            role.kill()
            role.wait()
    await lapse(database, roles[0].pid)
    once = start(tmp_path, database_url, "pipeline", "run", "app.py", "--once")
    try:
        assert await asyncio.to_thread(once.wait, 60) == 0, (tmp_path / "said.txt").read_text()
    finally:
        once.kill()
        once.wait()
    rows = await database.fetch("SELECT entity, outcome FROM tidemill.state_build")
    assert [tuple(row) for row in rows] == [("first", "built")]
    assert not list((tmp_path / "states").rglob("*.tmp"))
