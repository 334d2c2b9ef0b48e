"""An application at work, and a page of its console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.console import Harbour, Watched, harbour, watched_page


@pytest.fixture(scope="module")
def shop(module_database_url: str, browser: Browser) -> Iterator[Harbour]:  # The database has a loop of its own.
    with harbour(module_database_url) as running:
        yield running


@pytest.fixture
def console(browser: Browser, shop: Harbour) -> Iterator[Watched]:
    with watched_page(browser, shop.url) as watched:
        yield watched
