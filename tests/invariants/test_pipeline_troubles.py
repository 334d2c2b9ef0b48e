"""What a pipeline promises about orphans, failures, mass rebuilds and inputs that change under it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.operate import accept_code, invalidate_states, pause_pipeline, retry_failures, set_approved
from tests.support.pipelines import books, held, look, put, tree, update, wanted
from tests.support.projects import Project
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.ops.operator.local import Local
from tidemill.ops.pipelines.states import GetState, get_state
from tidemill.pipelines import SKIP, File, Pipeline
from tidemill.pipelines.reducer import reasons
from tidemill.pipelines.runner.clean import clean_orphans
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.pipelines.view.lineage import consumers
from tidemill.store.database import Database


async def test_outputs_whose_inputs_are_gone_are_listed_and_dealt_with(project: Project, database: Database) -> None:
    await update(database, project.start())
    (project.root / "in/b.txt").unlink()
    driver = Driver(database, project.start())
    await driver.begin()
    plan = driver.pipeline_view.plan()
    assert [(stage.name, entity) for stage, entity in plan.orphans] == [("first", "b")]
    await clean_orphans(driver.pipeline_view, plan.orphans)
    assert "mid/b.txt" in tree(project.root)
    await clean_orphans(driver.pipeline_view, plan.orphans, how="archive")
    assert "mid/b.txt" not in tree(project.root)
    archived = list(project.root.glob(".archive/*/mid/b.txt"))
    assert [path.read_text() for path in archived] == ["pear"]
    plan = await look(database, project.start())
    assert [(stage.name, entity) for stage, entity in plan.orphans] == [("second", "b")]
    driver = Driver(database, project.start())
    await driver.begin()
    await clean_orphans(driver.pipeline_view, driver.pipeline_view.plan().orphans, how="delete")
    assert set(tree(project.root)) == {"in/a.txt", "mid/a.txt", "out/a.txt"}
    assert (await look(database, project.start())).orphans == []


async def test_a_failure_is_forgotten_when_its_input_is_gone(tmp_path: Path, database: Database) -> None:
    pipeline = Pipeline("p", root=tmp_path, backoff=(60, 300))

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True, version="1")
    def only(entity, text):
        if text == "bad":
            raise ValueError("no good")
        return text

    put(tmp_path, {"in/a.txt": "bad", "in/b.txt": "bad", "in/c.txt": "fine"})
    await update(database, pipeline)
    put(tmp_path, {"in/c.txt": "bad"})
    await update(database, pipeline)
    assert await failed(database) == ["a", "b", "c"]
    for gone in ("a", "c"):
        (tmp_path / f"in/{gone}.txt").unlink()
    plan = await update(database, pipeline)
    assert await failed(database) == ["b"]
    assert held(plan) == {"only/b": "BackingOff"}
    driver = Driver(database, pipeline)
    await driver.begin()
    (tmp_path / "in/b.txt").unlink()
    await driver.act(driver.pipeline_view.plan(await driver.pipeline_view.refresh(["in/b.txt"])))
    await driver.close()
    assert await failed(database) == []


async def failed(database: Database) -> list[str]:
    return [row["entity"] for row in await database.fetch("SELECT entity FROM tidemill.state_failure ORDER BY entity")]


async def test_a_failure_waits_for_its_time_and_its_consumers_wait_without_failing(
    tmp_path: Path, database: Database
) -> None:
    pipeline, broken = Pipeline("p", root=tmp_path, backoff=(60, 300)), [True]

    @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", in_process=True, version="1")
    def first(entity, text):
        if entity.id == "a" and broken[0]:
            raise ValueError("no good")
        return text

    @pipeline.stage(input="mid/{id}.txt", output="out/{id}.txt", in_process=True)
    def second(entity, text):
        return text

    put(tmp_path, {"in/a.txt": "a", "in/b.txt": "b"})
    plan = await update(database, pipeline)
    assert held(plan) == {"first/a": "BackingOff", "second/a": "Blocked"}
    assert tree(tmp_path)["out/b.txt"] == "b"
    reason = plan.holds[0].reason
    assert isinstance(reason, reasons.BackingOff)
    assert reason.error == "ValueError: no good"
    assert held(await update(database, pipeline)) == held(plan)

    for attempts in (2, 3):
        await database.fetch("UPDATE tidemill.state_failure SET retry_at = now() - interval '1 second'")
        assert wanted(await look(database, pipeline)) == {"first/a": "RetryDue"}
        plan = await update(database, pipeline)
        assert plan.holds[0].reason.attempts == attempts  # pyright: ignore[reportAttributeAccessIssue]
    assert held(plan)["first/a"] == "NeedsAttention"

    await retry_failures(database, "p", "first", ["a"], by="me")
    broken[0] = False
    assert (await update(database, pipeline)).steps == []
    assert tree(tmp_path)["out/a.txt"] == "a"


@pytest.mark.parametrize("mended", ["input", "code"])
async def test_a_new_input_or_new_code_is_tried_at_once(tmp_path: Path, database: Database, mended: str) -> None:
    def make(version: str) -> Pipeline:
        pipeline = Pipeline("p", root=tmp_path)

        @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True, version=version)
        def only(entity, text):
            if text == "bad" and version == "1":
                raise ValueError(text)
            return text

        return pipeline

    put(tmp_path, {"in/a.txt": "bad"})
    assert held(await update(database, make("1"))) == {"only/a": "BackingOff"}
    if mended == "input":
        put(tmp_path, {"in/a.txt": "good"})
    plan = await update(database, make("1" if mended == "input" else "2"))
    assert plan.steps == []
    assert (tmp_path / "out/a.txt").exists()


async def test_a_thousand_failures_keep_no_healthy_state_waiting(tmp_path: Path, database: Database) -> None:
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True)
    def only(entity, text):
        if text == "bad":
            raise ValueError(entity.id)
        return text

    put(tmp_path, {f"in/{n:04}.txt": "bad" for n in range(1000)} | {"in/z.txt": "good"})
    plan = await update(database, pipeline)
    assert len(plan.holds) == 1000
    assert tree(tmp_path)["out/z.txt"] == "good"
    put(tmp_path, {"in/z.txt": "better"})
    assert wanted(await look(database, pipeline)) == {"only/z": "InputChanged"}


async def test_a_mass_rebuild_waits_for_approval_and_shows_its_plan(tmp_path: Path, database: Database) -> None:
    def make(version: str) -> Pipeline:
        pipeline = Pipeline("p", root=tmp_path, approve_above=3)

        @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True, version=version)
        def only(entity, text):
            return text + version

        return pipeline

    put(tmp_path, {f"in/{n}.txt": "x" for n in range(5)})
    assert (await update(database, make("1"))).steps == []
    plan = await update(database, make("2"))
    assert set(held(plan).values()) == {"NeedsApproval"}
    assert len(plan.holds) == 5
    assert "code" in str(plan.holds[0].reason.because)  # pyright: ignore[reportAttributeAccessIssue]
    assert tree(tmp_path)["out/0.txt"] == "x1"
    await set_approved(database, "p", "only", make("2").stages["only"].code.total, by="me", seconds=60)
    assert (await update(database, make("2"))).steps == []
    assert tree(tmp_path)["out/0.txt"] == "x2"
    assert set(held(await look(database, make("3"))).values()) == {"NeedsApproval"}


async def test_a_code_change_can_be_accepted_without_building(project: Project, database: Database) -> None:
    await update(database, project.start())
    pipeline = project.start(texts=("text.upper()", "str.upper(text)"))
    assert wanted(await look(database, pipeline)) == {"second/a": "CodeChanged", "second/b": "CodeChanged"}
    await accept_code(database, "blog", "second", pipeline.stages["second"].code.total, by="me")
    assert wanted(await look(database, project.start())) == {}
    await update(database, project.start())
    assert project.calls == []


async def test_a_paused_stage_builds_nothing_and_others_go_on(project: Project, database: Database) -> None:
    await pause_pipeline(database, "blog", "second", paused=True, by="me")
    plan = await update(database, project.start())
    assert held(plan) == {"second/a": "Paused", "second/b": "Paused"}
    assert project.calls == [("first", "a"), ("first", "b")]
    await pause_pipeline(database, "blog", "second", paused=False, by="me")
    assert (await update(database, project.start())).steps == []


async def test_states_are_invalidated_alone_or_with_all_that_follows(project: Project, database: Database) -> None:
    await update(database, project.start())
    driver = Driver(database, project.start())
    await driver.begin()
    first = driver.pipeline.stages["first"]
    chosen = consumers(driver.pipeline_view, [(first, "a")])
    assert [(stage.name, entity) for stage, entity in chosen] == [("first", "a"), ("second", "a")]
    assert await invalidate_states(database, "blog", "first", ["a"], by="me") == 1
    assert wanted(await look(database, project.start())) == {"first/a": "Invalidated"}
    await update(database, project.start())
    assert project.calls == [("first", "a")]
    for stage, entity in chosen:
        assert await invalidate_states(database, "blog", stage.name, [entity], by="me") == 1
    await update(database, project.start())
    assert project.calls == [("first", "a"), ("second", "a")]


async def test_the_story_of_a_state_is_told(project: Project, database: Database) -> None:
    await update(database, project.start())
    put(project.root, {"in/a.txt": "plum"})
    await update(database, project.start(texts=("text.upper()", "text.title()")))
    app = App("blog")
    app.pipeline(project.start())
    local = Local(database, Caller("me", "viewer"), app.declarations)
    story = await local.do(get_state, GetState(name="blog", stage="first", entity="a", follow=True))
    assert story.state == "fresh"
    assert [one.path for one in story.inputs] == ["in/a.txt"]
    assert story.followed_by == ["second/a"]
    assert [build.outcome for build in story.builds] == ["built", "built"]
    assert story.builds[0].reason == "its inputs are others: changed in/a.txt"
    after = await local.do(get_state, GetState(name="blog", stage="second", entity="b", follow=True))
    assert after.builds[0].reason == "its code changed: texts.inner"
    assert {one.path: one.made_by and one.made_by.stage for one in after.inputs} == {"mid/b.txt": "first"}
    assert after.made_from == ["first/b", "in/b.txt"]


async def test_a_result_that_is_too_small_is_a_failure_and_is_not_shown(tmp_path: Path, database: Database) -> None:
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True, min_size=10)
    def only(entity, text):
        return text

    put(tmp_path, {"in/a.txt": "short", "in/b.txt": "long enough"})
    plan = await update(database, pipeline)
    assert held(plan) == {"only/a": "BackingOff"}
    assert "10" in plan.holds[0].reason.error  # pyright: ignore[reportAttributeAccessIssue]
    assert set(tree(tmp_path)) == {"in/a.txt", "in/b.txt", "out/b.txt"}


async def test_a_database_that_was_lost_is_made_up_for_by_the_manifests(project: Project, database: Database) -> None:
    await update(database, project.start())
    for table in ("state", "state_file", "state_build", "state_code"):
        await database.fetch(f"DELETE FROM tidemill.{table}")
    put(project.root, {"mid/b.txt": "strange"})
    await update(database, project.start())
    assert project.calls == [("first", "b")]


async def test_a_stage_whose_patterns_have_changed_starts_again(tmp_path: Path, database: Database) -> None:
    def make(input: str, output: str) -> Pipeline:
        pipeline = Pipeline("p", root=tmp_path)

        @pipeline.stage(input=input, output=output, in_process=True, version="1")
        def only(entity, text):
            return text

        return pipeline

    put(tmp_path, {"in/a.txt": "x", "in/7.txt": "y", "in/k/b.txt": "z"})
    assert (await update(database, make("in/{id}.txt", "out/{id}.txt"))).steps == []
    assert wanted(await look(database, make("in/{id:int}.txt", "new/{id:int}.txt"))) == {"only/7": "Deleted"}
    plan = await update(database, make("in/{kind}/{id}.txt", "out/{kind}/{id}.txt"))
    assert plan.steps == []
    assert tree(tmp_path)["out/k/b.txt"] == "z"


async def test_a_state_that_its_stage_makes_nothing_of_is_no_failure_and_is_not_tried_again(
    tmp_path: Path, database: Database
) -> None:
    calls: list[str] = []

    def make(version: str) -> Pipeline:
        pipeline = Pipeline("p", root=tmp_path)

        @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", in_process=True, version=version)
        def first(entity, text):
            calls.append(entity.id)
            return SKIP if "draft" in text else text

        @pipeline.stage(input="mid/{id}.txt", output="out/{id}.txt", in_process=True)
        def second(entity, text):
            return text.upper()

        return pipeline

    put(tmp_path, {"in/a.txt": "draft", "in/b.txt": "done"})
    for _ in range(2):
        assert (await update(database, make("1"))).steps == []
    assert sorted(calls) == ["a", "b"]
    assert set(tree(tmp_path)) == {"in/a.txt", "in/b.txt", "mid/b.txt", "out/b.txt"}
    put(tmp_path, {"in/a.txt": "final", "in/b.txt": "draft again"})
    plan = await update(database, make("1"))
    assert plan.steps == []
    # What it made before is taken away, and what was made from that has lost its input.
    assert set(tree(tmp_path)) == {"in/a.txt", "in/b.txt", "mid/a.txt", "out/a.txt", "out/b.txt"}
    assert [(stage.name, entity) for stage, entity in plan.orphans] == [("second", "b")]
    put(tmp_path, {"mid/b.txt": "by hand"})
    assert wanted(await look(database, make("1"))) == {"first/b": "Edited"}
    (tmp_path / "mid/b.txt").unlink()
    assert wanted(await look(database, make("1"))) == {}
    assert wanted(await look(database, make("2"))) == {"first/a": "CodeChanged", "first/b": "CodeChanged"}


async def test_what_a_state_is_made_of_no_more_is_taken_away(tmp_path: Path, database: Database) -> None:
    pipeline = books(tmp_path)
    put(tmp_path, {"book/a.txt": "x|y|z"})
    await update(database, pipeline)
    put(tmp_path, {"book/a.txt": "x|y"})
    assert (await update(database, pipeline)).steps == []
    assert tree(tmp_path) == {"book/a.txt": "x|y", "page/a/1.txt": "x", "page/a/2.txt": "y", "count/a.txt": "2"}


async def test_a_result_of_other_inputs_does_not_count_even_if_they_are_back(
    tmp_path: Path, database: Database
) -> None:
    pipeline, seen = Pipeline("p", root=tmp_path), list[str]()
    source = tmp_path / "in/a.txt"

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True, version="1")
    def only(entity, file: File):
        if not seen:  # Changed after the build was decided on, and put back before it ends.
            source.write_text("other")
        seen.append(file.text())
        if len(seen) == 1:
            source.write_text("apple")
        return seen[-1].upper()

    put(tmp_path, {"in/a.txt": "apple"})
    assert (await update(database, pipeline)).steps == []
    assert seen == ["other", "apple"]
    assert tree(tmp_path)["out/a.txt"] == "APPLE"


async def test_an_input_that_goes_while_it_is_built_from_is_no_failure(tmp_path: Path, database: Database) -> None:
    pipeline = Pipeline("p", root=tmp_path)
    source = tmp_path / "in/a.txt"

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True, version="1")
    def only(entity, file: File):
        if source.exists():
            source.rename(tmp_path / "in/b.txt")
        return file.text()

    put(tmp_path, {"in/a.txt": "apple"})
    assert (await update(database, pipeline)).steps == []
    assert await database.fetch("SELECT 1 FROM tidemill.state_failure") == []
    assert (await update(database, pipeline)).steps == []
    assert tree(tmp_path) == {"in/b.txt": "apple", "out/b.txt": "apple"}


async def test_an_input_that_cannot_be_read_is_told_and_waited_for(tmp_path: Path, database: Database) -> None:
    """A file of the system's that is there and refuses to be read stands in for one on a bad disk."""
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True)
    def only(entity, text):
        return text

    put(tmp_path, {"in/b.txt": "y"})
    (tmp_path / "in/a.txt").symlink_to("/proc/self/mem")
    driver = Driver(database, pipeline)
    plan = await run_once(driver)
    assert held(plan) == {"only/a": "Blocked"}
    assert (tmp_path / "out/b.txt").read_text() == "y"
    assert ["cannot be read" in problem for problem in driver.pipeline_view.problems] == [True]
