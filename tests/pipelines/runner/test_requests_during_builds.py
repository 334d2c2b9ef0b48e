"""An operator's request that arrives at any moment of a build is never lost, and no earlier build counts for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually
from tests.support.operate import acting, invalidate_states
from tests.support.pipelines import put, tree
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.ops.operator.local import Local
from tidemill.ops.pipelines.change import (
    CleanPipeline,
    PausePipeline,
    StartBackfill,
    clean_pipeline,
    pause_pipeline,
    start_backfill as start,
)
from tidemill.ops.pipelines.waiting import wait_for_backfill
from tidemill.pipelines import Pipeline
from tidemill.pipelines.runner import runner
from tidemill.pipelines.runner.driver import Driver
from tidemill.store.database import Database, DatabaseSettings, Executor
from tidemill.store.states import backfills


class Interrupted(Database):
    """A database that something happens to before and after each transaction and each statement of its own."""

    moment: Callable[[], Awaitable[None]] | None = None

    @asynccontextmanager
    async def transaction(self, *, patience: float | None = None) -> AsyncIterator[Executor]:
        if self.moment is not None:
            await self.moment()
        async with super().transaction(patience=patience) as connection:
            yield connection
        if self.moment is not None:
            await self.moment()

    async def fetch(self, statement: str, *args: Any, patience: float | None = 30.0) -> list[Any]:
        if self.moment is not None:
            await self.moment()
        rows = await super().fetch(statement, *args, patience=patience)
        if self.moment is not None:
            await self.moment()
        return rows


class Scene:
    """Two states that are being built again, and a backfill of both that starts at one moment of that."""

    def __init__(self, root: Path, database: Database, at: int, *, fails: bool, hears: bool) -> None:
        self.at, self.fails, self.hears = at, fails, hears
        self.moments = 0
        self.calls: list[str] = []
        self.calls_before: int | None = None  # When the backfill started.
        self.root = root
        self.other = database
        self.pipeline = Pipeline(f"p{at}", root=root, approve_above=None)

        @self.pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", version="1")
        async def first(entity: Any, text: str) -> str:
            self.calls.append("first")
            number = len(self.calls)
            await self.moment()
            if self.fails and number == 1:
                raise ValueError("once")
            return text.upper()

        @self.pipeline.stage(input="mid/{id}.txt", output="out/{id}.txt", version="1")
        def second(entity: Any, text: str) -> str:
            self.calls.append("second")
            return text + "!"

    async def play(self, url: str) -> None:
        put(self.root, {"in/a.txt": "apple"})
        fails, self.fails = self.fails, False
        self.moments = -(10**6)
        database = Interrupted(DatabaseSettings(url=url))
        async with database:
            self.driver = Driver(database, self.pipeline)
            await self.driver.act(await self.driver.begin())
            await self.driver.finish()
            self.fails, self.moments = fails, 0
            self.calls.clear()
            for stage in ("first", "second"):
                await invalidate_states(self.other, self.pipeline.name, stage, ["a"], by="me")
            database.moment = self.moment
            await self.hear()
            await self.driver.finish()
            database.moment = None
            if not self.hears:
                await self.hear()
                await self.driver.finish()
            await self.driver.close()

    async def moment(self) -> None:
        self.moments += 1
        if self.moments == self.at:
            self.calls_before = len(self.calls)
            states = {"first": ["a"], "second": ["a"]}
            new = backfills.NewBackfill(self.pipeline.name, "first", None, None, True, states, {})
            await acting(self.other, "me", backfills.start_backfill, new, approved_for=60.0)
            if self.hears:
                await self.hear()

    async def hear(self) -> None:
        """What the process that keeps a pipeline does when it is notified of a request."""
        await self.driver.pipeline_view.reload()
        await self.driver.act(self.driver.pipeline_view.plan())


@pytest.mark.parametrize("hears", [True, False], ids=["heard at once", "heard later"])
@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails once"])
async def test_a_backfill_that_starts_at_any_moment_of_a_build_has_all_its_states_built(
    tmp_path: Path, database: Database, database_url: str, fails: bool, hears: bool
) -> None:
    for at in count(1):
        scene = Scene(tmp_path / str(at), database, at, fails=fails, hears=hears)
        await scene.play(database_url)
        if scene.calls_before is None:
            assert at > 6
            break
        (backfill,) = await backfills.list_backfills(database, scene.pipeline.name)
        told = f"at moment {at}, after {scene.calls_before} of the calls {scene.calls}"
        failed = backfill["failed"] == 1  # The build that failed may have been one of the backfill.
        assert not failed or (fails and scene.calls_before == 0), told
        assert backfill["left"] == (2 if failed else 0), told
        rows = await database.fetch("SELECT invalid_by FROM tidemill.state WHERE pipeline = $1", scene.pipeline.name)
        assert sum(row["invalid_by"] is not None for row in rows) == (2 if failed else 0), told
        assert await database.fetch("SELECT FROM tidemill.state_building") == [], told
        assert len(scene.calls) <= 5, told


@pytest.mark.parametrize("in_process", [True, False], ids=["in process", "on a queue"])
async def test_a_backfill_of_a_state_that_is_being_built_ends(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: bool
) -> None:
    monkeypatch.setattr(runner, "CHECK_FLIGHTS", 3600.0)  # The end of the build wakes the pipeline, not a check.
    pipeline, calls = Pipeline("p", root=tmp_path), list[str]()

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1", in_process=in_process)
    def only(entity: Any, text: str) -> str:
        calls.append(entity.id)
        while (tmp_path / "hold").exists():
            pass
        return text.upper()

    put(tmp_path, {"in/a.txt": "apple"})
    app.pipeline(pipeline)
    async with app.running(), app.database() as database:
        at = Local(database, Caller("me", "admin"), app.declarations)
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "APPLE")
        (tmp_path / "hold").touch()
        await eventually(lambda: invalidate_states(database, "p", "only", ["a"], by="me"))
        await eventually(lambda: len(calls) > 1)
        begun = await at.do(start, StartBackfill(name="p", stage="only"))
        (tmp_path / "hold").unlink()
        ended = await wait_for_backfill(at, "p", begun.id)
    assert (begun.total, ended.left) == (1, 0)
    assert len(calls) == 3


async def test_waiting_for_a_backfill_ends_when_nothing_of_it_can_be_built(app: App, tmp_path: Path) -> None:
    pipeline, bad = Pipeline("p", root=tmp_path), set[str]()

    @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", version="1", in_process=True)
    def first(entity: Any, text: str) -> str:
        if entity.id in bad:
            raise ValueError("bad")
        return text

    @pipeline.stage(input="mid/{id}.txt", output="out/{id}.txt", version="1", in_process=True)
    def second(entity: Any, text: str) -> str:
        return text

    put(tmp_path, {"in/a.txt": "a", "in/b.txt": "b", "in/c.txt": "c"})
    app.pipeline(pipeline)
    async with app.running(), app.database() as database:
        at = Local(database, Caller("me", "admin"), app.declarations)
        await eventually(lambda: len(tree(tmp_path)) == 9)
        bad.add("b")
        begun = await at.do(start, StartBackfill(name="p", stage="first", downstream=True))
        ended = await wait_for_backfill(at, "p", begun.id)
        assert (begun.total, ended.left, ended.failed, ended.waiting) == (6, 2, 1, 1)

        await at.do(pause_pipeline, PausePipeline(name="p", stage="second"))
        begun = await at.do(start, StartBackfill(name="p", stage="second", first="a", last="a"))
        ended = await wait_for_backfill(at, "p", begun.id)
        assert (ended.left, ended.failed, ended.waiting) == (1, 0, 1)

        (tmp_path / "in/c.txt").unlink()
        await eventually(lambda: _is_orphan(at))
        begun = await at.do(start, StartBackfill(name="p", stage="first", first="a"))
        assert begun.total == 2, "what has no inputs cannot be built again"


async def _is_orphan(at: Local) -> bool:
    from tidemill.ops.pipelines.states import ListOrphans, list_orphans

    return (await at.do(list_orphans, ListOrphans(name="p"))).total == 1


async def test_a_state_that_was_cleaned_up_and_came_back_is_built(tmp_path: Path, database: Database) -> None:
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1", on_orphan="delete")
    def only(entity: Any, text: str) -> str:
        return text.upper()

    app = App("clean")
    app.pipeline(pipeline)
    put(tmp_path, {"in/a.txt": "apple"})
    driver = Driver(database, pipeline)
    await driver.act(await driver.begin())
    await driver.finish()
    (tmp_path / "in/a.txt").unlink()
    at = Local(database, Caller("me", "admin"), app.declarations)
    assert (await at.do(clean_pipeline, CleanPipeline(name="p"))).deleted == 1
    put(tmp_path, {"in/a.txt": "pear"})
    await driver.pipeline_view.scan()  # The driver still has the version of the row that was deleted.
    await driver.pipeline_view.read_unknown()
    await driver.act(driver.pipeline_view.plan())
    await driver.finish()
    await driver.close()
    assert tree(tmp_path) == {"in/a.txt": "pear", "out/a.txt": "PEAR"}
