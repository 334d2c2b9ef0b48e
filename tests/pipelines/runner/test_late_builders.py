"""A builder that lists the files before another one commits, and reads the rows after that, builds nothing again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import put, update
from tidemill.pipelines import Pipeline
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.definition.pipeline import Stage
from tidemill.pipelines.reducer.plan import BuildStep
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.pipelines.stores.base import Scan
from tidemill.pipelines.stores.files import FileStates
from tidemill.store.database import Database

ENTITIES = ("a", "b", "c")


class Shared:
    """What happens in the functions and in the store of a pipeline, and the stage whose builds wait."""

    def __init__(self, root: Path, gate: str = "") -> None:
        self.root, self.gate = root, gate
        self.builds = Counter[str]()
        self.has_started, self.may_go_on, self.is_listed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def open(self, database: Database) -> FileStates:
        return ListedStates(self)

    async def start(self, stage: str, entity: str) -> None:
        self.builds[f"{stage}/{entity}"] += 1
        if stage == self.gate:
            self.has_started.set()
            await self.may_go_on.wait()


class ListedStates(FileStates):
    """Files that tell when they were listed during a build."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.root)
        self._shared = shared

    async def scan(self, patterns: Sequence[Pattern]) -> Scan:
        found = await super().scan(patterns)
        if self._shared.has_started.is_set():
            self._shared.is_listed.set()
        return found


def three_stages(shared: Shared) -> Pipeline:
    pipeline = Pipeline("p", root=shared.root, store=shared)

    @pipeline.stage(input="in/{id}.txt", output="one/{id}.txt", version="1")
    async def first(entity: Any, text: str) -> str:
        await shared.start("first", entity.id)
        return text.upper()

    @pipeline.stage(input="one/{id}.txt", output="two/{id}/{n}.txt", scatter=True, version="1")
    async def second(entity: Any, text: str) -> dict[str, str]:
        await shared.start("second", entity.id)
        return {"1": text, "2": text}

    @pipeline.stage(input="two/{id}/{n}.txt", output="three/{id}.txt", collect="n", version="1")
    async def third(entity: Any, files: list[Any]) -> str:
        await shared.start("third", entity.id)
        return "".join(each.text() for each in files)

    return pipeline


@pytest.mark.parametrize("by_workers", [False, True])
@pytest.mark.parametrize("gate", ["first", "second", "third"])
async def test_what_is_built_between_the_listing_of_files_and_the_reading_of_rows_is_not_built_again(
    gate: str, by_workers: bool, tmp_path: Path, database: Database
) -> None:
    put(tmp_path, {f"in/{entity}.txt": f"text {entity} " for entity in ENTITIES})
    shared, dispatched = Shared(tmp_path, gate), list[str]()
    pipeline = three_stages(shared)

    async def dispatch(stage: Stage, steps: Sequence[BuildStep]) -> list[int]:
        dispatched.extend(f"{stage.name}/{step.entity}: {step.reason}" for step in steps)
        return [1 for _ in steps]

    late = Driver(database, pipeline, dispatch=dispatch if by_workers else None)
    building = asyncio.create_task(update(database, pipeline))
    await shared.has_started.wait()
    async with database.transaction() as connection:
        # The first rows that a builder reads when it starts; one that is building does not need them.
        await connection.execute("LOCK TABLE tidemill.state_file IN ACCESS EXCLUSIVE MODE")
        starting = asyncio.create_task(run_once(late))
        await shared.is_listed.wait()
        shared.may_go_on.set()
        assert (await building).steps == []
    assert (await starting).steps == []
    assert dispatched == []
    assert shared.builds == Counter(f"{stage}/{each}" for stage in ("first", "second", "third") for each in ENTITIES)


async def test_rows_that_are_read_again_without_the_files_cause_no_builds(tmp_path: Path, database: Database) -> None:
    put(tmp_path, {f"in/{entity}.txt": f"text {entity} " for entity in ENTITIES})
    shared = Shared(tmp_path)
    pipeline, again = three_stages(shared), Driver(database, three_stages(shared))
    assert (await update(database, pipeline)).steps == []
    await again.begin()
    put(tmp_path, {"in/a.txt": "other text", "in/d.txt": "text d "})
    assert (await update(database, pipeline)).steps == []
    before = await database.fetch("SELECT entity FROM tidemill.state_build")
    try:
        # A notification that is too long names no states: a driver reads all rows.
        await again.pipeline_view.reload()
        await again.act(again.pipeline_view.plan())
        await again.finish()
    finally:
        await again.close()
    assert await database.fetch("SELECT entity FROM tidemill.state_build") == before
    assert again.pipeline_view.plan().steps == []
