"""A state that is made from many is built once: when all that it is made from is there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually
from tests.support.pipelines import put, tree, update
from tidemill import App
from tidemill.pipelines import SKIP, Pipeline
from tidemill.pipelines.runner.driver import Driver
from tidemill.store.database import Database

COUNT = 40


def days(root: Path, *, scatter: bool, built: Counter[str]) -> Pipeline:
    """Days in two steps, of which each month is made."""
    pipeline = Pipeline("p", root=root, scan_interval=1)

    @pipeline.stage(input="in/{month}/{day}.txt", output="one/{month}/{day}.txt", version="1")
    def one(entity: Any, text: str) -> Any:
        time.sleep(0.002)  # So that they are committed in several batches.
        return text

    @pipeline.stage(
        input="one/{month}/{day}.txt", output="two/{month}/{day}/{n}.txt" if scatter else "two/{month}/{day}/0.txt",
        scatter=scatter, version="1",
    )  # fmt: skip
    async def two(entity: Any, text: str) -> Any:
        return SKIP if text == "nothing" else {"0": text} if scatter else text

    @pipeline.stage(input="two/{month}/{day}/{n}.txt", output="three/{month}.txt", collect=["day", "n"], version="1")
    def three(entity: Any, files: list[Any]) -> str:
        built[entity.month] += 1
        return f"{len(files)} days"

    put(root, {f"in/{month}/{day}.txt": "x" for month in "ab" for day in range(COUNT)})
    return pipeline


@pytest.mark.parametrize("scatter", [False, True], ids=["chain", "scatter"])
async def test_a_state_of_many_is_built_once_when_all_of_them_are(
    scatter: bool, tmp_path: Path, database: Database
) -> None:
    built = Counter[str]()
    assert (await update(database, days(tmp_path, scatter=scatter, built=built))).steps == []
    assert (tmp_path / "three/a.txt").read_text() == f"{COUNT} days"
    assert built == {"a": 1, "b": 1}


async def has_builds(database: Database, count: int) -> bool:
    return len(await database.fetch("SELECT FROM tidemill.state_build")) >= count


@pytest.mark.parametrize("scatter", [False, True], ids=["chain", "scatter"])
async def test_a_state_of_many_is_built_once_by_workers(scatter: bool, app: App, tmp_path: Path) -> None:
    built = Counter[str]()
    app.pipeline(days(tmp_path, scatter=scatter, built=built))
    async with app.running(), app.database() as database:
        await eventually(partial(has_builds, database, 4 * COUNT + 2), timeout=60)
    assert (tmp_path / "three/a.txt").read_text() == f"{COUNT} days"
    assert built == {"a": 1, "b": 1}


async def test_a_state_of_many_does_not_wait_for_what_turns_out_to_be_nothing(
    tmp_path: Path, database: Database
) -> None:
    built = Counter[str]()
    pipeline = days(tmp_path, scatter=True, built=built)
    put(tmp_path, {f"in/a/{day}.txt": "nothing" for day in range(6, COUNT)})
    await update(database, pipeline)
    assert (tmp_path / "three/a.txt").read_text() == "6 days"
    assert built == {"a": 1, "b": 1}


async def test_a_change_that_comes_by_two_ways_builds_what_joins_them_once(tmp_path: Path, database: Database) -> None:
    pipeline, built = Pipeline("p", root=tmp_path), list[str]()

    @pipeline.stage(input="in/{id}.txt", output="short/{id}.txt", version="1")
    def short(entity: Any, text: str) -> str:
        return text

    @pipeline.stage(input="in/{id}.txt", output="middle/{id}.txt", version="1")
    async def middle(entity: Any, text: str) -> str:
        await asyncio.sleep(0.05)
        return text

    @pipeline.stage(input="middle/{id}.txt", output="long/{id}.txt", version="1")
    async def long(entity: Any, text: str) -> Any:
        return SKIP if text == "-" else text

    @pipeline.stage(input={"one": "short/{id}.txt", "two": "long/{id}.txt"}, output="end/{id}.txt", version="1")
    def end(entity: Any, one: str, two: str) -> str:
        built.append(one + two)
        return one + two

    for text in ("a", "b"):
        put(tmp_path, {"in/x.txt": text})
        await update(database, pipeline)
    assert built == ["aa", "bb"]


async def test_what_is_ready_does_not_wait_for_slow_builds_of_others(tmp_path: Path, database: Database) -> None:
    pipeline, may_end = Pipeline("p", root=tmp_path), asyncio.Event()

    @pipeline.stage(input="in/{month}/{day}.txt", output="one/{month}/{day}.txt", version="1")
    async def one(entity: Any, text: str) -> str:
        if entity.month == "slow":
            await may_end.wait()
        return text

    @pipeline.stage(input="one/{month}/{day}.txt", output="two/{month}.txt", collect="day", version="1")
    def two(entity: Any, files: list[Any]) -> str:
        return "x" * len(files)

    put(tmp_path, {f"in/{month}/{day}.txt": "x" for month in ("quick", "slow") for day in "ab"})
    driver = Driver(database, pipeline)
    await driver.act(await driver.begin())
    await eventually(lambda: "two/quick.txt" in tree(tmp_path))
    may_end.set()
    await driver.finish()
    await driver.close()
    assert tree(tmp_path)["two/slow.txt"] == "xx"
