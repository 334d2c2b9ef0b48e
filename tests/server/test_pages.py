"""An application's own page: its files, its handlers behind the server's gate, and its place in the console's list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.web import WebServer
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.server.pages import Page

APP = """
from pathlib import Path

from litestar import get, post

from tidemill import App
from tidemill.server.server_state import TheServerState
from tidemill.server.pages import Page

app = App("shop")


@get("/count", opt={"role": "viewer"})
async def count(server_state: TheServerState) -> dict[str, int]:
    (row,) = await server_state.database.fetch("SELECT count(*) AS n FROM tidemill.job")
    return {"jobs": row["n"]}


@post("/forget", opt={"role": "operator"})
async def forget() -> None: ...


app.add_page(Page("shelf", "The shelf", Path(__file__).parent / "page", [count, forget]))
"""


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<!doctype html><title>Shelf</title>")
    (tmp_path / "page" / "shelf.js").write_text("export const shelf = 1;")
    (tmp_path / "app.py").write_text(APP)
    server = WebServer(database_url, "--read-only", app=tmp_path / "app.py")
    try:
        await server.wait_ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=150) as client:
            yield client
    finally:
        server.close()


async def test_a_page_has_its_files_and_handlers_and_nothing_beside_them(site: httpx.AsyncClient) -> None:
    page, script = await site.get("/pages/shelf/"), await site.get("/pages/shelf/shelf.js")
    assert page.text.startswith("<!doctype html>")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert script.headers["content-type"].startswith("text/javascript")
    assert (await site.get("/pages/shelf/api/count")).json() == {"jobs": 0}
    assert (await site.get("/api/v1/pages")).json() == [
        {"name": "shelf", "title": "The shelf", "address": "/pages/shelf/"}
    ]
    for outside in ("/pages/shelf/%2e%2e/app.py", "/pages/shelf/none.js", "/pages/shelf/..%2fapp.py"):
        assert (await site.get(outside)).status_code == 404, outside


async def test_a_pages_handlers_keep_to_the_servers_rules(site: httpx.AsyncClient) -> None:
    refused = await site.post("/pages/shelf/api/forget")
    assert refused.status_code == 403
    assert "read-only" in refused.json()["detail"]
    foreign = await site.post("/pages/shelf/api/forget", headers={"Origin": "http://elsewhere.test"})
    assert foreign.status_code == 403
    assert "another origin" in foreign.json()["detail"]


def test_a_page_that_cannot_be_shown_is_refused_when_it_is_declared(tmp_path: Path) -> None:
    app = App("shop")
    with pytest.raises(ConfigError, match=r"no index\.html"):
        app.add_page(Page("shelf", "Shelf", tmp_path))
    (tmp_path / "index.html").write_text("x")
    app.add_page(Page("shelf", "Shelf", tmp_path))
    with pytest.raises(ConfigError, match="declared twice"):
        app.add_page(Page("shelf", "Shelf", tmp_path))
    with pytest.raises(ConfigError, match="lower-case"):
        app.add_page(Page("../x", "Shelf", tmp_path))
