"""The pytest plugin: a PostgreSQL for the session, and for each test a database of its own with a clock."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidemill.testing.kit import TestDatabaseServer, TestKit

URL_VARIABLE = "TIDEMILL_TEST_DATABASE_URL"


@pytest.fixture(scope="session")
def tidemill_server() -> Iterator[TestDatabaseServer]:
    """The PostgreSQL of the test session: that of `TIDEMILL_TEST_DATABASE_URL`, or an embedded one."""
    # Imported here: a test run that does not use Tidemill pays nothing for the plugin.
    from tidemill.store.embedded.server import EmbeddedServer
    from tidemill.testing.kit import TestDatabaseServer

    url = os.environ.get(URL_VARIABLE)
    if url:
        with TestDatabaseServer(url) as server:
            yield server
        return
    directory = Path(tempfile.mkdtemp(prefix="tm-"))
    embedded = EmbeddedServer(directory / ".tidemill")
    try:
        embedded.ensure()
        with TestDatabaseServer(embedded.dsn, durable=False) as server:
            yield server
    finally:
        embedded.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def tidemill(tidemill_server: TestDatabaseServer) -> Iterator[TestKit]:
    """A fresh database with a clock that the test moves, and what a test asks about the work in it."""
    from tidemill.testing.kit import TestKit

    with TestKit(tidemill_server) as kit:
        yield kit
