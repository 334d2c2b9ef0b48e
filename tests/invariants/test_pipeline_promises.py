"""What a pipeline promises about when it builds, and when it does not."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.operate import invalidate_states
from tests.support.pipelines import held, look, put, tree, until_trusted, update, wanted
from tests.support.projects import TEXTS, Project
from tidemill.pipelines import Pipeline
from tidemill.pipelines.reducer import reasons
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.pipelines.view.quick_check import count_fresh, is_plain
from tidemill.store.database import Database
from tidemill.store.states.summary import summarise


async def test_everything_missing_is_built_and_then_nothing(project: Project, database: Database) -> None:
    plan = await update(database, project.start())
    assert tree(project.root) == {
        "in/a.txt": "apple", "in/b.txt": "pear", "mid/a.txt": "apple", "mid/b.txt": "pear",
        "out/a.txt": "APPLE!shortsmall", "out/b.txt": "PEAR!shortsmall",
    }  # fmt: skip
    assert plan.steps == []
    await update(database, project.start())
    assert project.calls == []


async def test_a_touch_of_an_input_builds_nothing(project: Project, database: Database) -> None:
    await update(database, project.start())
    os.utime(project.root / "in/a.txt", (1, 1))
    await update(database, project.start())
    assert project.calls == []


async def test_a_change_of_an_input_builds_its_own_states_only(project: Project, database: Database) -> None:
    await update(database, project.start())
    put(project.root, {"in/a.txt": "plum"})
    plan = await look(database, project.start())
    assert wanted(plan) == {"first/a": "InputChanged"}
    assert held(plan) == {"second/a": "Blocked"}
    assert plan.builds[0].reason == reasons.InputChanged(changed=("in/a.txt",))
    await update(database, project.start())
    assert project.calls == [("first", "a"), ("second", "a")]
    assert (project.root / "out/a.txt").read_text() == "PLUM!shortsmall"


async def test_an_identical_rebuild_goes_no_further(project: Project, database: Database) -> None:
    await update(database, project.start())
    before = os.stat(project.root / "mid/a.txt")
    put(project.root, {"in/a.txt": "apple#comment"})
    await update(database, project.start())
    assert project.calls == [("first", "a")]
    assert os.stat(project.root / "mid/a.txt").st_ino == before.st_ino


async def test_an_output_changed_by_hand_is_noticed_and_built_again(project: Project, database: Database) -> None:
    await update(database, project.start())
    put(project.root, {"out/a.txt": "tampered"})
    assert wanted(await look(database, project.start())) == {"second/a": "Edited"}
    await update(database, project.start())
    assert (project.root / "out/a.txt").read_text() == "APPLE!shortsmall"


async def test_an_output_changed_in_place_to_the_same_size_is_noticed(project: Project, database: Database) -> None:
    await update(database, project.start())
    target = project.root / "out/a.txt"
    stamp = os.stat(target)
    with open(target, "r+b") as opened:
        opened.write(b"Z")
    os.utime(target, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert wanted(await look(database, project.start())) == {"second/a": "Edited"}


async def test_an_output_that_is_adopted_is_left_and_passed_on(tmp_path: Path, database: Database) -> None:
    pipeline = Pipeline("p", root=tmp_path, on_edit="adopt")

    @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", in_process=True)
    def first(entity, text):
        return text

    @pipeline.stage(input="mid/{id}.txt", output="out/{id}.txt", in_process=True)
    def second(entity, text):
        return text.upper()

    put(tmp_path, {"in/a.txt": "apple"})
    await update(database, pipeline)
    put(tmp_path, {"mid/a.txt": "better"})
    plan = await update(database, pipeline)
    assert plan.steps == []
    assert tree(tmp_path)["mid/a.txt"] == "better"
    assert tree(tmp_path)["out/a.txt"] == "BETTER"
    assert wanted(await look(database, pipeline)) == {}


async def test_a_deleted_output_is_noticed_and_built_again(project: Project, database: Database) -> None:
    await update(database, project.start())
    (project.root / "mid/b.txt").unlink()
    assert wanted(await look(database, project.start())) == {"first/b": "Deleted"}
    await update(database, project.start())
    assert project.calls == [("first", "b")]


async def test_a_changed_helper_rebuilds_exactly_its_users(project: Project, database: Database) -> None:
    await update(database, project.start())
    plan = await look(database, project.start(texts=("text.upper()", "text.title()")))
    assert wanted(plan) == {"second/a": "CodeChanged", "second/b": "CodeChanged"}
    reason = plan.builds[0].reason
    assert isinstance(reason, reasons.CodeChanged)
    assert reason.parts == ("texts.inner",)
    await update(database, project.start())
    assert project.calls == [("second", "a"), ("second", "b")]


@pytest.mark.parametrize(
    ("where", "old", "new"),
    [
        ("texts", '"""Decorates a text."""', '"""Decorates a text with marks."""'),
        ("texts", "    return inner(text) + MARK", "    # adds a mark\n    return inner( text )+MARK"),
        ("texts", "def unused(text):\n    return text", "def unused(text):\n    return text * 2"),
        ("blogmod", "in_process=True, params", "in_process=True, priority=7, params"),
    ],
    ids=["docstring", "comment and formatting", "unused function", "how it is run"],
)
async def test_what_is_not_code_rebuilds_nothing(
    project: Project, database: Database, where: str, old: str, new: str
) -> None:
    await update(database, project.start())
    assert wanted(await look(database, project.start(**{where: (old, new)}))) == {}


@pytest.mark.parametrize(
    ("where", "old", "new", "part"),
    [
        ("texts", 'MARK = "!"', 'MARK = "?"', "texts.MARK"),
        ("blogmod", 'PROMPT = "short"', 'PROMPT = "long"', "blogmod.PROMPT"),
        ("blogmod", '"model": "small"', '"model": "large"', "params.model"),
    ],
    ids=["constant", "prompt", "model name"],
)
async def test_constants_prompts_and_parameters_count_as_code(
    project: Project, database: Database, where: str, old: str, new: str, part: str
) -> None:
    await update(database, project.start())
    plan = await look(database, project.start(**{where: (old, new)}))
    assert wanted(plan) == {"second/a": "CodeChanged", "second/b": "CodeChanged"}
    assert plan.builds[0].reason.parts == (part,)  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_declared_version_stands_in_for_the_code(tmp_path: Path, database: Database) -> None:
    def make(version: str, ending: str) -> Pipeline:
        pipeline = Pipeline("p", root=tmp_path)

        @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True, version=version)
        def only(entity, text):
            return text + ending

        return pipeline

    put(tmp_path, {"in/a.txt": "x"})
    await update(database, make("1", "a"))
    assert wanted(await look(database, make("1", "b"))) == {}
    assert wanted(await look(database, make("2", "b"))) == {"only/a": "CodeChanged"}


async def test_the_code_hash_is_that_of_what_runs_not_of_what_is_on_disk(project: Project, database: Database) -> None:
    before = project.start().stages["second"].code
    running = project.start()
    (project.folder / "texts.py").write_text(TEXTS.replace("upper", "lower"))
    # Hashed only now, when the file is newer than what was imported: it was taken when the stage was declared.
    assert running.stages["second"].code == before
    newer = project.start(texts=("upper", "lower"))
    assert newer.stages["second"].code.parts["texts.inner"] != before.parts["texts.inner"]


@pytest.mark.parametrize(
    "change",
    ["nothing", "touch", "edit", "new", "gone", "tampered", "deleted", "invalid", "code", "failed", "size"],
)
async def test_a_glance_never_calls_fresh_what_a_closer_look_does_not(
    project: Project, database: Database, change: str
) -> None:
    await asyncio.to_thread(until_trusted, project.root / "in/b.txt")
    await update(database, project.start())
    root, pipeline = project.root, project.start()
    match change:
        case "touch":
            os.utime(root / "in/a.txt", (1, 1))
        case "edit":
            put(root, {"in/a.txt": "plum"})
        case "new" | "failed":
            put(root, {"in/c.txt": "plum"})
        case "gone":
            (root / "in/a.txt").unlink()
        case "tampered":
            put(root, {"mid/a.txt": "tampered"})
        case "deleted":
            (root / "out/a.txt").unlink()
        case "invalid":
            await invalidate_states(database, "blog", "second", ["a"], by="me")
        case "code":
            pipeline = project.start(texts=("text.upper()", "text.title()"))
        case "size":
            pipeline = project.start(blogmod=("in_process=True)", "in_process=True, min_size=5)"))
    pipeline_view = PipelineView(database, pipeline)
    assert is_plain(pipeline_view.order)
    scan = await pipeline_view.states.scan(pipeline_view.patterns)
    seen = count_fresh(pipeline_view.order, scan, *await summarise(database, "blog"))
    plan = await look(database, pipeline)
    if plan.steps or plan.orphans:
        assert seen is None
    assert seen == (4 if change == "nothing" else None)
