"""One browser for all tests of a module that look at pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer: while it is there, nothing else in this process can run an event loop."""
    from playwright.sync_api import sync_playwright

    from tests.e2e.console_support import launch, require_browser

    require_browser()
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()
