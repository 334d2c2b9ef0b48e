"""Fixtures for the contracts of pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pipelines import put
from tests.support.projects import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    put(made.root, {"in/a.txt": "apple", "in/b.txt": "pear"})
    return made
