"""An application at work, and a page of its console: one of each for all files of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.console import Harbour, Watched, harbour, open_browser, watched_page
from tests.support.server import TestServer


@pytest.fixture(scope="package")
def shop_database_url(
    server: TestServer,
) -> Iterator[str]:  # Before the browser, which has a loop of its own.
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture(scope="package")
def browser(shop_database_url: str) -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="package")
def shop(shop_database_url: str, browser: Browser) -> Iterator[Harbour]:
    with harbour(shop_database_url) as running:
        yield running


@pytest.fixture
def console(browser: Browser, shop: Harbour) -> Iterator[Watched]:
    with watched_page(browser, shop.url) as watched:
        yield watched
