"""The walk over folders: every file that a pattern means is found, and nothing leads it astray."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, strategies as st

from tests.support.pipelines import put
from tidemill.pipelines import Pipeline
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.stores.folder_walk import Walk
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.store.database import Database

TEXTS = ("a/{x}.txt", "a/**/{x}.txt", "a/b/*", "**/c.txt", "{y}/b/{x}.txt", "a/{x}/**", "c.txt", "a/b/c.txt")
PATHS = ("c.txt", "a/c.txt", "a/d.md", "a/b/c.txt", "a/b/.hidden", "a/b/b/e.txt", "x/b/c.txt", "a/.h/c.txt")


@given(st.lists(st.sampled_from(TEXTS), min_size=1, unique=True))
def test_a_walk_finds_exactly_what_the_patterns_match(tmp_path_factory, texts: list[str]) -> None:
    root = tmp_path_factory.getbasetemp() / "walked"
    if not root.exists():
        put(root, dict.fromkeys(PATHS, ""))
    scan = Walk(str(root), [Pattern(text) for text in texts]).run()
    for pattern, found in scan.matched.items():
        assert set(found) == {path for path in PATHS if pattern.match(path) is not None}
    assert set(scan.signatures) == {path for found in scan.matched.values() for path in found}
    assert scan.problems == []


def test_links_that_lead_back_are_told_and_walked_no_further(tmp_path: Path) -> None:
    put(tmp_path, {"a/b/c.txt": ""})
    (tmp_path / "a/b/up").symlink_to(tmp_path / "a")
    (tmp_path / "a/b/self").symlink_to("self")
    scan = Walk(str(tmp_path), [Pattern("a/**/{x}.txt")]).run()
    assert list(scan.signatures) == ["a/b/c.txt"]
    assert [problem.removeprefix(str(tmp_path)) for problem in scan.problems] == [
        "/a/b/up/ is a symlink cycle: skipped"
    ]


def test_a_link_to_a_folder_elsewhere_is_followed(tmp_path: Path) -> None:
    put(tmp_path, {"elsewhere/x.txt": "", "root/a/y.txt": ""})
    (tmp_path / "root/a/more").symlink_to(tmp_path / "elsewhere")
    scan = Walk(str(tmp_path / "root"), [Pattern("a/**/{x}.txt")]).run()
    assert set(scan.signatures) == {"a/y.txt", "a/more/x.txt"}


def test_folders_whose_names_are_not_utf8_are_told(tmp_path: Path) -> None:
    os.makedirs(os.fsencode(tmp_path) + b"/a/\xff")
    scan = Walk(str(tmp_path), [Pattern("a/**/{x}.txt")]).run()
    assert [problem.endswith("its name is not UTF-8: skipped") for problem in scan.problems] == [True]


@pytest.mark.parametrize("seed", range(20))
async def test_a_look_into_changed_folders_finds_what_a_look_at_everything_finds(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    places = ["in", "in/a", "in/a/deep", "in/b", "out", "set"]
    pipeline = Pipeline("p", root=tmp_path)
    pipeline.stage(input={"files": "in/**/{name}.txt", "one": "set/one.cfg"}, output="out/{name}.md", name="all")(print)

    def change() -> None:
        for _ in range(chance.randint(1, 6)):
            folder = tmp_path / chance.choice(places)
            file = folder / chance.choice(["x.txt", "y.txt", "y.md", "one.cfg"])
            act = chance.random()
            if act < 0.6:
                folder.mkdir(parents=True, exist_ok=True)
                file.write_text(str(chance.random()))
            elif act < 0.85:
                file.unlink(missing_ok=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def known(pipeline_view: PipelineView) -> tuple[set[str], dict[str, set[str]]]:
        world = pipeline_view.world
        return set(world.files), {pattern.text: set(paths) for pattern, paths in world.matched.items()}

    change()
    patient = PipelineView(cast("Database", None), pipeline)
    await patient.scan()
    for _ in range(6):
        for folder, there in patient.folders.items():
            if there:
                os.utime(tmp_path / folder, ns=(1, 1))  # so that whatever comes is later
                patient.folders[folder] = 1
        before = known(patient)[0]
        change()
        news = set(await patient.scan_folders())
        fresh = PipelineView(cast("Database", None), pipeline)
        await fresh.scan()
        assert known(patient) == known(fresh)
        assert news >= before ^ known(fresh)[0]
