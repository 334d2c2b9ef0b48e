"""`docs/architecture.md` names the files that exist: six walks, each file once, in order; and every package."""

from __future__ import annotations

import re

import pytest

from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALKS = {
    title: re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE)
    for title, text in re.findall(r"^### (.+?)\n(.*?)(?=^##)", PAGE, re.DOTALL | re.MULTILINE)
}
LINK = re.compile(r"\[`?([^\]`]+)`?\]\(\.\./(tidemill/[^)]+)\)")


def test_there_are_six_walks() -> None:
    assert len(WALKS) == 6


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_visits_existing_files_in_order_and_none_twice(title: str) -> None:
    steps = WALKS[title]
    assert [number for number, _ in steps] == [str(n) for n in range(1, len(steps) + 1)]
    visited = []
    for _, text in steps:
        shown, path = LINK.findall(text)[0]
        assert path == f"tidemill/{shown}", "the text of a link is its path"
        assert text.startswith("[`"), "the file comes first"
        visited.append(path)
    assert len(visited) == len(set(visited))


def test_every_linked_file_exists() -> None:
    found = LINK.findall(PAGE)
    assert len(found) > 50
    assert [path for _, path in found if not (ROOT / path).is_file()] == []


def test_every_name_in_the_table_of_packages_exists() -> None:
    rows = re.findall(r"^\| `(\w+)/` \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 6
    for package, text in rows:
        for name in re.findall(r"`(\w+/?)`", text):
            place = ROOT / "tidemill" / package / name.rstrip("/")
            is_there = place.is_dir() if name.endswith("/") else place.with_suffix(".py").is_file()
            nested = list((ROOT / "tidemill" / package).rglob(f"{name}.py"))
            assert is_there or nested, f"{package}/{name}"
