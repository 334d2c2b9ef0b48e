"""A running pipeline: changes by anybody are seen, builds go through queues, several processes get along."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support import eventually
from tests.support.operate import invalidate_states, retry_failures
from tests.support.pipelines import books, put, tree
from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.core.clock import SYSTEM_CLOCK
from tidemill.pipelines import Pipeline
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.store.database import Database
from tidemill.store.states.history import list_builds


def copies(root: Path, *, in_process: bool, **options: object) -> Pipeline:
    pipeline = Pipeline("copies", root=root, **options)  # pyright: ignore[reportArgumentType]

    @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", in_process=in_process)
    async def first(entity, text):
        if text == "bad":
            raise ValueError("bad text")
        return text.upper()

    @pipeline.stage(input="mid/{id}.txt", output="out/{id}.txt", in_process=in_process)
    def second(entity, text: str):
        return text + "!"

    return pipeline


@pytest.mark.parametrize("in_process", [True, False], ids=["in process", "on a queue"])
async def test_a_file_that_a_user_writes_is_built_from_at_once(app: App, tmp_path: Path, in_process: bool) -> None:
    app.pipeline(copies(tmp_path, in_process=in_process))
    put(tmp_path, {"in/a.txt": "apple"})
    async with app.running():
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "APPLE!")
        put(tmp_path, {"in/b.txt": "pear"})
        await eventually(lambda: tree(tmp_path).get("out/b.txt") == "PEAR!")
        put(tmp_path, {"in/a.txt": "plum"})
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "PLUM!")
        (tmp_path / "out/b.txt").unlink()
        await eventually(lambda: tree(tmp_path).get("out/b.txt") == "PEAR!")
        with open(tmp_path / "out/a.txt", "w") as opened:
            opened.write("tampered")
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "PLUM!")


async def test_what_nobody_announces_is_found_by_the_scan(app: App, tmp_path: Path) -> None:
    app.pipeline(copies(tmp_path, in_process=True, watch=False, scan_interval=0.2))
    put(tmp_path, {"in/a.txt": "apple"})
    async with app.running():
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "APPLE!")
        put(tmp_path, {"in/a.txt": "plum", "in/b.txt": "pear"})
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "PLUM!")
        await eventually(lambda: tree(tmp_path).get("out/b.txt") == "PEAR!")


async def test_a_rolling_scan_finds_new_files_and_edits_in_place(tmp_path: Path, database: Database) -> None:
    driver = Driver(database, copies(tmp_path, in_process=True))
    put(tmp_path, {f"in/{n}.txt": "x" for n in range(10)})
    await driver.act(await driver.begin())
    await driver.idle.wait()
    put(tmp_path, {"in/new.txt": "new"})
    assert "in/new.txt" in await driver.pipeline_view.quick_scan(5)
    put(tmp_path, {"in/3.txt": "edited"})
    seen: list[str] = []
    for _ in range(5):
        seen += await driver.pipeline_view.quick_scan(5)
    assert "in/3.txt" in seen
    (tmp_path / "mid/4.txt").unlink()
    assert "mid/4.txt" in await driver.pipeline_view.quick_scan(5)
    await driver.close()


async def test_a_state_that_one_pipeline_makes_is_taken_by_another(app: App, tmp_path: Path) -> None:
    blog = Pipeline("blog", root=tmp_path, scan_interval=3600, watch=False)
    podcast = Pipeline("podcast", root=tmp_path, scan_interval=3600, watch=False)

    @blog.stage(input="logs/{date}.txt", output="blog/{date}.md", in_process=True)
    def write(entity, text):
        return f"# {text}"

    @podcast.stage(input="blog/{date}.md", output="podcast/{date}.txt", in_process=True)
    def speak(entity, text):
        return text.removeprefix("# ")

    app.pipeline(podcast)
    app.pipeline(blog)
    put(tmp_path, {"logs/2026-01-15.txt": "tides"})
    async with app.running():
        await eventually(lambda: tree(tmp_path).get("podcast/2026-01-15.txt") == "tides")
        put(tmp_path, {"logs/2026-01-15.txt": "mills"})
        async with app.database() as database:
            assert await invalidate_states(database, "blog", "write", ["2026-01-15"], by="me") == 1
        await eventually(lambda: tree(tmp_path).get("podcast/2026-01-15.txt") == "mills")


async def test_a_failure_on_a_queue_is_the_states_own_and_is_retried_by_hand(app: App, tmp_path: Path) -> None:
    app.pipeline(copies(tmp_path, in_process=False))
    put(tmp_path, {"in/a.txt": "bad", "in/b.txt": "good"})
    async with app.running(), app.database() as database:
        await eventually(lambda: tree(tmp_path).get("out/b.txt") == "GOOD!")

        async def failures() -> list[tuple[str, int]]:
            rows = await database.fetch("SELECT entity, attempts FROM tidemill.state_failure")
            return [tuple(row) for row in rows]

        assert await eventually(failures) == [("a", 1)]
        assert await retry_failures(database, "copies", "first", ["a", "b"], by="me") == 1
        await eventually(failures)
        builds = await eventually(
            lambda: _when(list_builds(database, "copies", "first", "a"), lambda found: len(found) == 2)
        )
        assert [build["outcome"] for build in builds] == ["failed", "failed"]
        put(tmp_path, {"in/a.txt": "fine"})
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "FINE!")
        await eventually(lambda: none_fails(database))


async def none_fails(database: Database) -> bool:
    return not await database.fetch("SELECT FROM tidemill.state_failure")


async def _when(found, condition):
    rows = await found
    return rows if condition(rows) else None


async def test_a_failure_is_tried_again_when_its_time_has_come(app: App, tmp_path: Path) -> None:
    pipeline, tries = Pipeline("p", root=tmp_path, backoff=(0.2, 0.2)), []

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True)
    def only(entity, text):
        tries.append(entity.id)
        if len(tries) < 3:
            raise ValueError("not yet")
        return text

    app.pipeline(pipeline)
    put(tmp_path, {"in/a.txt": "x"})
    async with app.running():
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "x")
    assert tries == ["a", "a", "a"]


@pytest.mark.parametrize("in_process", [True, False], ids=["in process", "on a queue"])
async def test_a_result_is_dropped_when_its_inputs_changed_meanwhile(
    app: App, tmp_path: Path, in_process: bool
) -> None:
    pipeline = Pipeline("p", root=tmp_path)
    began, go_on, seen = asyncio.Event(), asyncio.Event(), []

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=in_process, version="1")
    async def only(entity, text):
        seen.append(text)
        began.set()
        await go_on.wait()
        return text

    app.pipeline(pipeline)
    put(tmp_path, {"in/a.txt": "old"})
    async with app.running(), app.database() as database:
        await asyncio.wait_for(began.wait(), 150)
        put(tmp_path, {"in/a.txt": "new"})
        go_on.set()
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "new")
        builds = await eventually(lambda: list_builds(database, "p"))
    assert seen == ["old", "new"]
    assert [build["outcome"] for build in builds] == ["built"]
    assert {path.name for path in tmp_path.rglob(".tidemill-*")} <= {".tidemill-root"}


async def test_a_state_that_was_invalidated_while_it_was_built_is_built_again(app: App, tmp_path: Path) -> None:
    pipeline = Pipeline("p", root=tmp_path)
    began, go_on, calls = asyncio.Event(), asyncio.Event(), []

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True, version="1")
    async def only(entity, text):
        calls.append(entity.id)
        if len(calls) == 2:
            began.set()
            await go_on.wait()
        return f"{text}{len(calls)}"

    app.pipeline(pipeline)
    put(tmp_path, {"in/a.txt": "x"})
    async with app.running(), app.database() as database:
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "x1")
        await eventually(lambda: list_builds(database, "p"))
        assert await invalidate_states(database, "p", "only", ["a"], by="me") == 1
        await asyncio.wait_for(began.wait(), 150)
        assert await invalidate_states(database, "p", "only", ["a"], by="me") == 1
        go_on.set()
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "x3")


async def test_at_most_so_many_builds_of_a_stage_run_at_once(app: App, tmp_path: Path) -> None:
    pipeline, running, most = Pipeline("p", root=tmp_path), [0], [0]

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", max_concurrency=3)
    async def only(entity, text):
        running[0] += 1
        most[0] = max(most[0], running[0])
        while most[0] < 3:  # The first ones meet.
            await asyncio.sleep(0.01)
        running[0] -= 1
        return text

    app.pipeline(pipeline)
    put(tmp_path, {f"in/{n}.txt": "x" for n in range(20)})
    async with app.running():
        await eventually(lambda: len([path for path in tree(tmp_path) if path.startswith("out/")]) == 20)
    assert most[0] == 3


async def test_of_two_that_drive_a_pipeline_one_stands_by_and_takes_over(tmp_path: Path, database_url: str) -> None:
    calls: list[str] = []

    def make(name: str) -> App:
        app = App("test", database_url=database_url, **PATIENT)
        pipeline = Pipeline("p", root=tmp_path)

        @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True, version="1")
        def only(entity, text):
            calls.append(name)
            return text

        app.pipeline(pipeline)
        return app

    put(tmp_path, {"in/a.txt": "1"})
    one, two = make("one"), make("two")
    async with one.database() as database:
        runner = one.pipelines.runner(database)
        first = asyncio.create_task(runner.run())
        await runner.wait_ready()
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "1")
        async with two.running():
            put(tmp_path, {"in/a.txt": "2"})
            await eventually(lambda: tree(tmp_path).get("out/a.txt") == "2")
            assert set(calls) == {"one"}
            runner.stop()
            await first
            put(tmp_path, {"in/a.txt": "3"})
            await eventually(lambda: tree(tmp_path).get("out/a.txt") == "3")
            assert calls[-1] == "two"


class Skewed:
    """A host whose clock is wrong by hours."""

    def __init__(self, hours: float) -> None:
        self._by = hours * 3600

    def now(self) -> float:
        return SYSTEM_CLOCK.now() + self._by

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()


@pytest.mark.parametrize("hours", [-5, 5])
async def test_hosts_whose_clocks_differ_agree_on_when_to_try_again(
    tmp_path: Path, database: Database, hours: float
) -> None:
    pipeline = copies(tmp_path, in_process=True, backoff=(60,))
    put(tmp_path, {"in/a.txt": "bad"})
    await run_once(Driver(database, pipeline))
    driver = Driver(database, pipeline, clock=Skewed(hours))
    plan = await driver.begin()
    assert [type(step.reason).__name__ for step in plan.holds] == ["BackingOff", "Blocked"]
    await database.fetch("UPDATE tidemill.state_failure SET retry_at = now() - interval '1 second'")
    driver = Driver(database, pipeline, clock=Skewed(hours))
    plan = await driver.begin()
    assert [type(step.reason).__name__ for step in plan.builds] == ["RetryDue"]


async def test_one_state_may_become_many_and_many_one(tmp_path: Path, database: Database) -> None:
    pipeline = books(tmp_path)
    put(tmp_path, {"book/a.txt": "x|y", "book/b.txt": "z"})
    assert (await run_once(Driver(database, pipeline))).steps == []
    assert tree(tmp_path)["page/a/2.txt"] == "y"
    assert tree(tmp_path)["count/a.txt"] == "2"
    assert (await run_once(Driver(database, pipeline))).steps == []
    put(tmp_path, {"book/a.txt": "x|y|z"})
    (tmp_path / "page/b/1.txt").unlink()
    driver = Driver(database, pipeline)
    assert sorted(step.entity for step in (await driver.begin()).builds) == ["a", "b"]
    assert (await run_once(Driver(database, pipeline))).steps == []
    assert tree(tmp_path)["count/a.txt"] == "3"
    assert tree(tmp_path)["page/b/1.txt"] == "z"


async def test_files_edited_renamed_and_deleted_while_they_are_built_from_end_up_right(
    app: App, tmp_path: Path
) -> None:
    app.pipeline(copies(tmp_path, in_process=True))
    put(tmp_path, {f"in/{n}.txt": "start" for n in range(50)})
    async with app.running():
        for turn in range(5):
            for n in range(0, 50, 7):
                put(tmp_path, {f"in/{n}.txt": f"turn {turn}"})
            (tmp_path / f"in/{turn + 1}.txt").rename(tmp_path / f"in/moved-{turn}.txt")
            (tmp_path / f"in/{turn + 8}.txt").unlink()
            await asyncio.sleep(0)
        expected = {
            path.replace("in/", "out/"): f"{text.upper()}!" for path, text in tree(tmp_path).items() if "in/" in path
        }
        await eventually(lambda: expected.items() <= tree(tmp_path).items())
        async with app.database() as database:
            assert await database.fetch("SELECT entity, error FROM tidemill.state_failure") == []


async def test_a_folder_that_is_moved_into_place_is_built_from_at_once(app: App, tmp_path: Path) -> None:
    pipeline = Pipeline("p", root=tmp_path / "root", scan_interval=3600)

    @pipeline.stage(input="daily/{date}/*.txt", output="summary/{date}.txt", in_process=True)
    def summary(entity, files):
        return " ".join(file.text() for file in files)

    app.pipeline(pipeline)
    put(tmp_path, {"root/daily/1/a.txt": "one", "root/summary/.keep": "", "new/a.txt": "two", "new/b.txt": "three"})
    async with app.running():
        await eventually(lambda: tree(tmp_path / "root").get("summary/1.txt") == "one")
        (tmp_path / "new").rename(tmp_path / "root/daily/2")
        await eventually(lambda: tree(tmp_path / "root").get("summary/2.txt") == "two three")


async def test_a_stage_that_makes_many_is_tried_again_when_its_time_has_come(app: App, tmp_path: Path) -> None:
    pipeline, tries = Pipeline("p", root=tmp_path, backoff=(0.2,), scan_interval=3600, watch=False), []

    @pipeline.stage(input="in/{id}.txt", output="out/{id}/{n:int}.txt", scatter=True, in_process=True)
    def only(entity, text):
        tries.append(entity.id)
        if len(tries) == 1:
            raise ValueError("not yet")
        return {1: text}

    app.pipeline(pipeline)
    put(tmp_path, {"in/a.txt": "x"})
    async with app.running():
        await eventually(lambda: tree(tmp_path).get("out/a/1.txt") == "x")


async def test_builds_go_on_after_the_connections_of_their_process_are_cut(app: App, tmp_path: Path) -> None:
    app.pipeline(copies(tmp_path, in_process=True))
    put(tmp_path, {"in/a.txt": "apple"})
    async with app.running():
        await eventually(lambda: tree(tmp_path).get("out/a.txt") == "APPLE!")
        for turn in range(3):
            async with app.database() as database:
                await database.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            put(tmp_path, {f"in/{turn}-{n}.txt": "pear" for n in range(20)})
            await eventually(lambda turn=turn: len(list(tmp_path.glob(f"out/{turn}-*.txt"))) == 20)
