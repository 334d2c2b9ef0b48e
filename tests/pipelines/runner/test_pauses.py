"""Of a paused stage nothing more is built: what runs is finished, and what was planned or enqueued before waits."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually
from tests.support.operate import pause_pipeline
from tests.support.pipelines import held, put, tree, update
from tidemill import App
from tidemill.pipelines import Pipeline
from tidemill.pipelines.runner.driver import Driver
from tidemill.store.database import Database

COUNT = 12


class Slow:
    """A pipeline whose first stage builds one state at a time, and waits in each."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root, self.began, self.may_end = root, list[str](), asyncio.Event()
        self.pipeline = Pipeline("p", root=root, scan_interval=1)

        @self.pipeline.stage(
            input="in/{id}.txt", output="out/{id}.txt", version="1", max_concurrency=1, in_process=not options
        )
        async def slow(entity: Any, text: str) -> str:
            self.began.append(entity.id)
            await self.may_end.wait()
            return text

        put(root, {f"in/{n}.txt": "x" for n in range(COUNT)})

    @property
    def built(self) -> int:
        return sum(path.startswith("out/") for path in tree(self.root))


@pytest.mark.parametrize("stage", ["", "slow"])
async def test_a_process_builds_nothing_more_of_what_it_had_planned(
    stage: str, tmp_path: Path, database: Database
) -> None:
    slow = Slow(tmp_path)
    driver = Driver(database, slow.pipeline)
    await driver.act(await driver.begin())
    await eventually(lambda: slow.began)
    await pause_pipeline(database, "p", stage, paused=True, by="me")
    slow.may_end.set()
    await driver.finish()
    await driver.close()
    assert slow.built == 1
    assert held(driver.pipeline_view.plan()).keys() == {f"slow/{n}" for n in range(COUNT)} - {f"slow/{slow.began[0]}"}
    assert set(held(driver.pipeline_view.plan()).values()) == {"Paused"}
    await pause_pipeline(database, "p", stage, paused=False, by="me")
    assert (await update(database, slow.pipeline)).steps == []
    assert sorted(slow.began) == sorted(map(str, range(COUNT)))


async def ended(database: Database, count: int) -> bool:
    return len(await database.fetch("SELECT FROM tidemill.job_history WHERE state = 'succeeded'")) >= count


async def leases_nothing(database: Database) -> bool:
    return await database.fetch("SELECT FROM tidemill.state_building") == []


@pytest.mark.parametrize("by_workers", [True, False], ids=["workers", "in process"])
async def test_what_waits_is_built_when_its_stage_is_resumed(by_workers: bool, app: App, tmp_path: Path) -> None:
    slow = Slow(tmp_path, **({"workers": True} if by_workers else {}))
    app.pipeline(slow.pipeline)
    async with app.running(), app.database() as database:
        await eventually(lambda: slow.began)
        await pause_pipeline(database, "p", "slow", paused=True, by="me")
        slow.may_end.set()
        if by_workers:
            await eventually(partial(ended, database, COUNT))  # Each worker that takes such a job gives it back.
        else:
            await eventually(partial(leases_nothing, database))
        assert slow.built == 1
        await pause_pipeline(database, "p", "slow", paused=False, by="me")
        await eventually(lambda: slow.built == COUNT)
    assert sorted(slow.began) == sorted(map(str, range(COUNT)))
