"""A server with a folder of workflow files, and a page of its editor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.console import Watched, require_browser, watched_page
from tests.support.editor import APP, BLOG, NIGHTLY, Bench
from tests.support.server import TestServer
from tests.support.web import WebServer


@pytest.fixture(scope="module", autouse=True)  # Before the browser, for it waits in an event loop.
def bench(server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    require_browser()
    folder = tmp_path_factory.mktemp("bench")
    (folder / "app.py").write_text(APP)
    (folder / "workflows").mkdir()
    (folder / "states" / "daily").mkdir(parents=True)
    (folder / "states" / "daily" / "2026-01-15.txt").write_text("high water at six")
    url = server.create()
    web = WebServer(url, app=folder / "app.py")
    try:
        asyncio.run(web.wait_ready())
        yield Bench(folder, web, url)
    finally:
        web.close()
        server.drop(url)


@pytest.fixture
def watched(bench: Bench, browser: Browser) -> Iterator[Watched]:
    (bench.workflows / "blog.json").write_text(BLOG.replace("ROOT", str(bench.folder / "states")))
    (bench.workflows / "nightly.yaml").write_text(NIGHTLY)
    with watched_page(browser, bench.web.url) as watched:
        yield watched
    (bench.workflows / "staged.json").unlink(missing_ok=True)  # Not while a page may ask for it.
