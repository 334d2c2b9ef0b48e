"""The application whose processes misbehave, here only to enqueue and to start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support import misbehaving_app
from tests.support.waiting import PATIENT
from tidemill import App


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    """The application of `tests/support/misbehaving_app.py`, on the fresh database."""
    misbehaving_app.app.declarations.configure(database_url=database_url, **PATIENT)
    yield misbehaving_app.app
    await misbehaving_app.app.close()
