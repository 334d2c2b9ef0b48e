"""Every build ends with an outcome that is recorded: built, or failed with its reason and the time of its retry."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually
from tests.support.pipelines import held, put, tree, update
from tidemill import App
from tidemill.pipelines import Pipeline
from tidemill.pipelines.stores.base import StateDraft, StateStoreError
from tidemill.pipelines.stores.files import FileStates
from tidemill.store.database import Database

LONG = "n" * 250  # With a longer suffix, longer than the name of a file may be.


def one_stage(root: Path, function: Callable[..., Any], output: str = "out/{id}.txt", **options: Any) -> Pipeline:
    pipeline = Pipeline("p", root=root, backoff=(60, 300))
    pipeline.stage(input="in/{id}.txt", output=output, name="only", version="1", **options)(function)
    return pipeline


def folder_in_its_place(root: Path) -> None:
    (root / "out/a.txt/inner").mkdir(parents=True)


def file_in_place_of_its_folder(root: Path) -> None:
    (root / "out").write_text("in the way")


def folder_that_leads_nowhere(root: Path) -> None:
    (root / "out").symlink_to(root / "gone/deeper")


def folder_that_leads_out(root: Path) -> None:
    (root / "out").symlink_to(root.parent)


def folder_that_leads_to_itself(root: Path) -> None:
    (root / "out").symlink_to(root / "out")


@pytest.mark.parametrize(
    "hinder",
    [
        folder_in_its_place,
        file_in_place_of_its_folder,
        folder_that_leads_nowhere,
        folder_that_leads_out,
        folder_that_leads_to_itself,
    ],
)
async def test_a_result_that_cannot_be_put_in_place_is_a_failure_of_its_state_alone(
    hinder: Callable[[Path], None], tmp_path: Path, database: Database
) -> None:
    root, calls = tmp_path / "root", list[str]()

    def build(entity: Any, text: str) -> str:
        calls.append(entity.id)
        return text

    put(root, {"in/a.txt": "apple"})
    hinder(root)
    plan = await update(database, one_stage(root, build, in_process=True))
    assert held(plan) == {"only/a": "BackingOff"}
    assert "out" in str(plan.holds[0].reason)
    assert calls == ["a"]
    await update(database, one_stage(root, build, in_process=True))
    assert calls == ["a"]
    rows = await database.fetch("SELECT outcome FROM tidemill.state_build")
    assert [row["outcome"] for row in rows] == ["failed"]
    assert not list(root.rglob(".tidemill-*.tmp"))


@pytest.mark.parametrize("output", ["out/{id}.longer", "out/{id}.longer/x.txt"])
async def test_a_name_that_is_too_long_fails_alone(output: str, tmp_path: Path, database: Database) -> None:
    put(tmp_path, {f"in/{LONG}.txt": "x", "in/a.txt": "y"})
    plan = await update(database, one_stage(tmp_path, lambda entity, text: text, output))
    assert held(plan) == {f"only/{LONG}": "BackingOff"}
    assert "File name too long: shorten the name" in str(plan.holds[0].reason)
    assert tree(tmp_path)[output.format(id="a")] == "y"


def test_a_folder_without_the_right_to_write_is_an_error_of_its_states(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    os.chmod(tmp_path / "out", 0o555)
    states, root = FileStates(tmp_path), os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)  # root may write anywhere
        (closed,) = states.prepare_now([StateDraft("out/a.txt", b"x", {})])
    finally:
        if root:
            os.seteuid(0)
        os.chmod(tmp_path / "out", 0o755)
    assert "out/a.txt cannot be written" in (closed.error or "")
    assert "right to write" in (closed.error or "")
    (opened,) = states.prepare_now([StateDraft("out/a.txt", b"x", {})])
    assert opened.error is None
    assert list(states.publish_now([opened])) == ["out/a.txt"]


async def test_an_output_that_was_replaced_by_a_link_is_replaced_and_its_target_left_alone(
    tmp_path: Path, database: Database
) -> None:
    root = tmp_path / "root"
    put(root, {"in/a.txt": "x"})
    put(tmp_path, {"precious.txt": "keep"})
    pipeline = one_stage(root, lambda entity, text: text, in_process=True)
    await update(database, pipeline)
    (root / "out/a.txt").unlink()
    (root / "out/a.txt").symlink_to(tmp_path / "precious.txt")
    assert (await update(database, pipeline)).steps == []
    assert (tmp_path / "precious.txt").read_text() == "keep"
    assert (root / "out/a.txt").read_text() == "x"
    assert not (root / "out/a.txt").is_symlink()


async def cancels_itself(entity: Any, text: str) -> str:
    raise asyncio.CancelledError


async def exits(entity: Any, text: str) -> str:
    raise SystemExit(3)


def exits_plainly(entity: Any, text: str) -> str:
    raise SystemExit(3)


class Verdict(BaseException):
    """As test frameworks raise: no `Exception`."""


async def judges(entity: Any, text: str) -> str:
    raise Verdict("guilty")


def judges_plainly(entity: Any, text: str) -> str:
    raise Verdict("guilty")


def yields_numbers(entity: Any, text: str) -> Iterator[Any]:
    yield 5


def names_with_nul(entity: Any, text: str) -> str:
    entity.note("a\x00b \ud800")
    return text


@pytest.mark.parametrize("build", [cancels_itself, exits, exits_plainly, judges, judges_plainly, yields_numbers])
async def test_however_a_function_ends_its_outcome_is_a_failure(
    build: Callable[..., Any], tmp_path: Path, database: Database
) -> None:
    put(tmp_path, {"in/a.txt": "x"})
    assert held(await update(database, one_stage(tmp_path, build))) == {"only/a": "BackingOff"}


async def test_a_note_of_any_text_is_kept(tmp_path: Path, database: Database) -> None:
    put(tmp_path, {"in/a.txt": "x"})
    assert (await update(database, one_stage(tmp_path, names_with_nul))).steps == []
    rows = await database.fetch("SELECT log FROM tidemill.state_build")
    assert [row["log"] for row in rows] == ["a\\x00b \\ud800"]


async def test_an_earlier_output_that_cannot_be_archived_is_a_failure(tmp_path: Path, database: Database) -> None:
    def pages(entity: Any, text: str) -> dict[str, str]:
        return {word: word for word in text.split()}

    pipeline = one_stage(tmp_path, pages, "page/{id}/{word}.txt", scatter=True, in_process=True, on_orphan="archive")
    put(tmp_path, {"in/a.txt": "one two"})
    assert (await update(database, pipeline)).steps == []
    put(tmp_path, {"in/a.txt": "one", ".archive": "in the way"})
    plan = await update(database, pipeline)
    assert held(plan) == {"only/a": "BackingOff"}
    assert "cannot be moved away" in str(plan.holds[0].reason)


async def test_a_worker_that_cannot_put_a_result_in_place_fails_the_state_once(app: App, tmp_path: Path) -> None:
    root, calls = tmp_path / "root", list[str]()

    def build(entity: Any, text: str) -> str:
        calls.append(entity.id)
        return text

    pipeline = one_stage(root, build)
    put(root, {"in/a.txt": "apple"})
    folder_in_its_place(root)
    app.pipeline(pipeline)
    async with app.running(), app.database() as database:

        async def failed() -> bool:
            return bool(await database.fetch("SELECT FROM tidemill.state_failure"))

        await eventually(failed)
    assert calls == ["a"]


async def test_what_is_made_from_many_outputs_waits_until_all_of_them_are_in_place(
    tmp_path: Path, database: Database
) -> None:
    seen = list[list[str]]()

    def pages(entity: Any, text: str) -> dict[str, str]:
        return {word: word for word in text.split()}

    def whole(entity: Any, files: list[Any]) -> str:
        seen.append([file.name for file in files])
        return "".join(file.text() for file in files)

    pipeline = one_stage(tmp_path, pages, "page/{id}/{word}.txt", scatter=True)
    pipeline.stage(input="page/{id}/{word}.txt", output="all/{id}.txt", collect="word", version="1")(whole)
    # A builder has died, or is about to go on, after it has put the first of them in place.
    put(tmp_path, {"in/a.txt": "one two", "page/a/one.txt": "one"})
    assert (await update(database, pipeline)).steps == []
    assert seen == [["one.txt", "two.txt"]]
    put(tmp_path, {"in/a.txt": "one two three", "page/a/three.txt": "three"})
    assert (await update(database, pipeline)).steps == []
    assert [sorted(each) for each in seen] == [["one.txt", "two.txt"], ["one.txt", "three.txt", "two.txt"]]


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_root_that_is_gone_during_a_build_is_an_error_and_is_not_made_anew(
    comes_back: bool, tmp_path: Path, database: Database
) -> None:
    root, away = tmp_path / "root", tmp_path / "away"

    def build(entity: Any, text: str) -> str:
        if not away.exists():
            root.rename(away)
            if comes_back:
                root.mkdir()  # A folder under a file system that was unmounted.
        return text

    put(root, {f"in/{n}.txt": "apple" for n in range(5)})
    pipeline = one_stage(root, build)
    with pytest.raises(StateStoreError, match="is another folder than before" if comes_back else "is gone"):
        await update(database, pipeline)
    assert tree(root) == {}
    assert root.exists() == comes_back
    if not comes_back:
        away.rename(root)
        away.mkdir()
        assert (await update(database, pipeline)).steps == []
        shutil.rmtree(root)
        with pytest.raises(StateStoreError, match="there is no folder"):
            await update(database, pipeline)
