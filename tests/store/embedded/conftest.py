"""Fixtures for the tests of the embedded server: directories, servers in them, and other processes there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.embedded.neighbour import (
    Neighbour,
)
from tidemill.store.embedded.server import EmbeddedServer


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory with a short path."""
    path = Path(tempfile.mkdtemp(prefix="tm-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A database directory from an earlier run, in which no server runs between tests."""
    path = Path(tempfile.mkdtemp(prefix="tm-"))
    embedded = EmbeddedServer(path / ".tidemill")
    embedded.ensure()
    embedded.stop()
    yield path / ".tidemill"
    shutil.rmtree(path)


@pytest.fixture
def move(directory: Path, place: Path) -> Iterator[Callable[[Path], Path]]:
    """Move the database directory elsewhere for one test."""
    moved: list[Path] = []

    def move_to(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        moved.append(directory.rename(path))
        return path

    yield move_to
    for path in moved:
        path.rename(directory)


@pytest.fixture
def open_server(move: object) -> Iterator[Callable[[Path], EmbeddedServer]]:
    opened: list[EmbeddedServer] = []

    def open_one(directory: Path) -> EmbeddedServer:
        opened.append(EmbeddedServer(directory))
        return opened[-1]

    yield open_one
    for embedded in opened:
        embedded.stop()


@pytest.fixture
def embedded(directory: Path, open_server: Callable[[Path], EmbeddedServer]) -> EmbeddedServer:
    return open_server(directory)


@pytest.fixture
def neighbours(move: object) -> Iterator[Callable[..., Neighbour]]:
    started: list[Neighbour] = []

    def start(directory: Path, *prefix: str, **options: Any) -> Neighbour:
        started.append(Neighbour(directory, *prefix, **options))
        return started[-1]

    yield start
    for neighbour in started:
        if not neighbour.closed:
            neighbour.close()
