"""What small states held before: the last three contents, with what each build changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.pipelines import books, put, update
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.ops.operator.local import Local
from tidemill.ops.pipelines.change import CleanPipeline, clean_pipeline
from tidemill.ops.pipelines.states import GetContent, list_earlier_contents
from tidemill.pipelines import Pipeline
from tidemill.pipelines.runner.commit import SMALL
from tidemill.store.database import Database


def at(database: Database, pipeline: Pipeline) -> Local:
    app = App("press")
    app.pipeline(pipeline)
    return Local(database, Caller("me", "admin"), app.declarations)


async def test_the_last_three_contents_of_a_small_state_are_kept_until_it_is_cleaned_up(
    tmp_path: Path, database: Database
) -> None:
    pipeline = Pipeline("p", root=tmp_path, on_orphan="delete")

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1")
    def only(entity: Any, text: str) -> str:
        return text.upper()

    for text in ("one\nsame", "two\nsame", "three\nsame", "four\nsame"):
        put(tmp_path, {"in/a.txt": text, "in/b.txt": text[:1] * (SMALL + 1), "in/c.txt": "c"})
        await update(database, pipeline)
    local = at(database, pipeline)
    found = (await local.do(list_earlier_contents, GetContent(name="p", path="out/a.txt"))).items
    assert [each.text for each in found] == ["THREE\nSAME", "TWO\nSAME"]
    assert [each.changes[1:] for each in found] == [["-THREE", "+FOUR", " SAME"], ["-TWO", "+THREE", " SAME"]]
    for path in ("out/b.txt", "out/c.txt", "in/a.txt", "none"):
        assert (await local.do(list_earlier_contents, GetContent(name="p", path=path))).items == [], path

    (tmp_path / "in/a.txt").unlink()
    await local.do(clean_pipeline, CleanPipeline(name="p"))
    assert await database.fetch("SELECT FROM tidemill.state_content") == []


async def test_outputs_of_a_scattering_stage_keep_theirs_one_by_one(tmp_path: Path, database: Database) -> None:
    pipeline = books(tmp_path)
    for text in ("a|b|c", "a|x|c"):
        put(tmp_path, {"book/tides.txt": text})
        await update(database, pipeline)
    local = at(database, pipeline)
    found = (await local.do(list_earlier_contents, GetContent(name="books", path="page/tides/2.txt"))).items
    assert [(each.text, each.changes[1:]) for each in found] == [("b", ["-b", "+x"])]
    assert (await local.do(list_earlier_contents, GetContent(name="books", path="page/tides/1.txt"))).items == []


async def test_what_was_not_text_is_told_by_its_size(tmp_path: Path, database: Database) -> None:
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.bin", version="1")
    def only(entity: Any, text: str) -> bytes:
        return b"\x00\xff" + text.encode()

    for text in ("one", "three"):
        put(tmp_path, {"in/a.txt": text})
        await update(database, pipeline)
    local = at(database, pipeline)
    (before,) = (await local.do(list_earlier_contents, GetContent(name="p", path="out/a.bin"))).items
    assert (before.text, before.size, before.changes) == (None, 5, [])
