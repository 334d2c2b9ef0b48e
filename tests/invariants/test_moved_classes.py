"""The file of an application gets another name: runs that wait in it find their classes by their bare names."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import eventually, run_worker_process, running_maintenance, value
from tests.support.cli import run as command
from tidemill import App
from tidemill.engine.application.load_app import load_app
from tidemill.store.database import Database
from tidemill.store.runs.runs import show_run

CODE = """
import asyncio
import stamps
from pydantic import BaseModel
from tidemill import App
from tidemill.flows import CompensationEvent, Context, Event, HumanResponseEvent, StartEvent, StopEvent, Workflow, step

app = App("test")

class Signed(HumanResponseEvent):
    ok: bool

class Noted(Event):
    word: str

class Undo(CompensationEvent):
    word: str

class Refused(Exception):
    pass

class Ledger(BaseModel):
    total: int = 0

class Leaf(Workflow):
    @step
    async def only(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result="leaf")

async def note_later(ctx: Context, word: str) -> None:
    ctx.send_event(Noted(word=word))

def refuse() -> None:
    raise Refused("not twice")

class Contract(Workflow):
    @step
    async def ask(self, ctx: Context[Ledger], ev: StartEvent) -> Noted | StopEvent:
        async with ctx.store.edit_state() as state:
            state.total += 1
        await ctx.compensate("undo", Undo(word="paper"))
        try:
            await ctx.once("pay", refuse)
        except Refused:
            ctx.write_event_to_stream(Noted(word="refused"))
        leaf = await ctx.child(Leaf)
        ctx.send_event(Noted(word="one"))
        ctx.write_event_to_stream(Noted(word="shown"))
        await asyncio.gather(note_later(ctx, "two"), note_later(ctx, "three"))
        signed = await ctx.wait_for_event(Signed)
        again = await ctx.wait_for_event(Signed)
        last = await ctx.wait_for_event(Signed, requirements={"ok": True})
        return StopEvent(result=[leaf, signed.ok, again.ok, last.ok, (await ctx.store.get_state()).total])

    @step
    async def hear(self, ev: Noted) -> None:
        pass

    @step
    async def undo(self, ev: Undo) -> None:
        pass

for each in (Contract, Leaf):
    app.workflow(each, timeout=None)
"""

RENAMED = CODE.replace("@step\n    async def ask", '@step(renamed_from="ask")\n    async def request')
RENAMED = RENAMED.replace("@step\n    async def undo", '@step(renamed_from="undo")\n    async def revert')
RENAMED = RENAMED.replace('compensate("undo"', 'compensate("revert"')


@pytest.fixture
def folder(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMILL_DATABASE_URL", database_url)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    # Another class of the same name, which is no event, makes no difference.
    (tmp_path / "stamps.py").write_text("class Signed:\n    pass\n")
    (tmp_path / "earlier_contracts.py").write_text(CODE)
    return tmp_path


def load(path: Path) -> tuple[App, ModuleType]:
    return load_app(str(path)), sys.modules[path.stem]


@pytest.mark.parametrize("code", [CODE, RENAMED], ids=["as it was", "with renamed steps"])
async def test_a_run_that_waits_goes_on_in_a_module_of_another_name(
    database: Database, database_url: str, folder: Path, code: str
) -> None:
    earlier, later = folder / "earlier_contracts.py", folder / "later_contracts.py"
    later.write_text(code)
    app, module = load(earlier)
    async with app, running_maintenance(app):
        async with run_worker_process(database_url, earlier) as old:
            run = await app.start("Contract")
            await eventually(lambda: _waits(database, run.id))
            old.terminate()
            assert await old.ends() == 0
        for event in (module.Signed(ok=True), module.Signed(ok=False), module.Signed(ok=True)):
            await run.send_event(event)
        said = command(folder, "deploy", "check", str(later), "--database-url", database_url)
        assert said.returncode == 0, said.stdout + said.stderr
        async with run_worker_process(database_url, later):
            await eventually(lambda: _stopped(database, run.id))
            row = await show_run(database, run.id)
            assert row["state"] == "succeeded", (row["note"], row["error"])
            assert await run.result(timeout=60) == ["leaf", True, False, True, 1]


async def _waits(database: Database, run: int) -> bool:
    asked = "SELECT count(*) FROM tidemill.run_input WHERE run_id = $1"
    return await value(database, asked, run) == 1


async def _stopped(database: Database, run: int) -> Any:
    return await value(database, "SELECT state FROM tidemill.run WHERE id = $1", run) not in ("running", "waiting")
