"""The Python of the README and of every guide runs, block by block, against a real database."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.guide import ROOT, blocks_of
from tests.support.nursery import begin
from tests.support.waiting import PATIENCE

COMPANIONS = ROOT / "tests" / "project" / "guides"
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if blocks_of(page)]


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem.lower())
def test_the_python_of_a_page_runs(page: Path, database_url: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TIDEMILL_DATABASE_URL": database_url}
    companion = COMPANIONS / f"{page.stem.lower()}.py"
    with tempfile.TemporaryFile("w+") as output:
        arguments = [str(page), str(companion)]
        process = begin("tests.support.guide", arguments, cwd=tmp_path, env=env, stdout=output)
        try:
            status = process.wait(PATIENCE * 2)
        finally:
            process.kill()
        output.seek(0)
        said = output.read()
    assert status == 0, said
    print(said)


def test_every_companion_has_a_page() -> None:
    assert {path.stem for path in COMPANIONS.glob("*.py")} <= {page.stem.lower() for page in PAGES}
