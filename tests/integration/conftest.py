"""Fixtures for the tests that need a server of the machine's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.external import External, external_server


@pytest.fixture(scope="session")
def external() -> Iterator[External]:
    """Debian's PostgreSQL on a loopback port, with a password; shared by the tests that need it."""
    with external_server() as server:
        yield server
