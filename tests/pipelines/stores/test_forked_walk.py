"""A walk in a child process finds what a walk in this process finds."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.support.pipelines import put
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.stores.folder_walk import Walk
from tidemill.pipelines.stores.forked_walk import ForkedWalk, can_fork

PATTERNS = [Pattern("in/{id}.txt"), Pattern("all/{path:**}/{name}.md"), Pattern("gone/{id}")]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def test_it_finds_the_same_files_signatures_and_problems(tmp_path: Path) -> None:
    put(tmp_path, {"in/a.txt": "a", "in/é %20.txt": "b", "all/x/y/z.md": "c", "in/other": "d"})
    (tmp_path / os.fsdecode(b"in/\xff.txt")).touch()
    there, found = Walk(str(tmp_path), PATTERNS).run(), ForkedWalk(str(tmp_path), PATTERNS).result()
    assert found is not None
    assert (found.signatures, found.matched, found.problems) == (there.signatures, there.matched, there.problems)
    assert found.problems


def test_a_root_that_does_not_exist_has_no_files(tmp_path: Path) -> None:
    found = ForkedWalk(str(tmp_path / "nowhere"), PATTERNS).result()
    assert found is not None
    assert (found.signatures, found.problems) == ({}, [])


def test_a_walk_that_fails_gives_no_result() -> None:
    assert ForkedWalk("no\0folder", PATTERNS).result() is None


def test_a_process_with_threads_does_not_fork() -> None:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        assert not can_fork()
    finally:
        ends.set()
        thread.join()
