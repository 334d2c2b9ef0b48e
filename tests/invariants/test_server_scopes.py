"""Every endpoint for every role: who may ask, and who is refused. A new endpoint fails here until it has a line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.operate import create_token
from tests.support.server import TestServer
from tests.support.web import API, LOGIN_NEEDED, WebServer
from tidemill.store.database import Database, DatabaseSettings

ROLES = (None, "read", "operate", "admin")

#: What each operation needs.
NEEDS: dict[tuple[str, str], str] = {
    ("GET", "/health"): "open",
    ("GET", "/session"): "open",
    ("POST", "/session"): "open",
    ("DELETE", "/session"): "open",
    ("GET", "/overview"): "read",
    ("GET", "/pages"): "read",
    ("GET", "/jobs"): "read",
    ("POST", "/jobs"): "operate",
    ("POST", "/jobs/copies"): "operate",
    ("GET", "/jobs/{id}"): "read",
    ("POST", "/jobs/cancel/preview"): "read",
    ("POST", "/jobs/cancel"): "operate",
    ("POST", "/jobs/retry/preview"): "read",
    ("POST", "/jobs/retry"): "operate",
    ("GET", "/runs"): "read",
    ("POST", "/runs"): "operate",
    ("GET", "/runs/{id}"): "read",
    ("GET", "/runs/{id}/ticks"): "read",
    ("GET", "/runs/{id}/state"): "read",
    ("GET", "/runs/{run_id}/stream"): "read",
    ("GET", "/runs/{id}/tree"): "read",
    ("POST", "/runs/{id}/events"): "operate",
    ("POST", "/runs/{id}/fork"): "operate",
    ("POST", "/runs/{id}/cancel"): "operate",
    ("POST", "/runs/{id}/rerun"): "operate",
    ("POST", "/runs/{id}/cancel_node"): "operate",
    ("POST", "/runs/{id}/retry"): "operate",
    ("GET", "/explain/{id}"): "read",
    ("POST", "/runs/{id}/inputs/{node}"): "operate",
    ("POST", "/runs/cancel/preview"): "read",
    ("POST", "/runs/cancel"): "operate",
    ("GET", "/workflows"): "read",
    ("GET", "/workflow-kinds"): "read",
    ("GET", "/workflow-files"): "read",
    ("GET", "/workflow-files/{path}"): "read",
    ("POST", "/workflow-files/check"): "read",
    ("POST", "/workflow-files/dry-run"): "operate",
    ("PUT", "/workflow-files/{path}"): "admin",
    ("DELETE", "/workflow-files/{path}"): "admin",
    ("POST", "/workflow-files/rename"): "admin",
    ("GET", "/inputs"): "read",
    ("GET", "/queues"): "read",
    ("PUT", "/queues/{name}/limit"): "operate",
    ("POST", "/queues/{name}/pause"): "operate",
    ("POST", "/queues/{name}/resume"): "operate",
    ("GET", "/workers"): "read",
    ("POST", "/workers/control"): "operate",
    ("GET", "/schedules"): "read",
    ("POST", "/schedules/{name}/run"): "operate",
    ("POST", "/schedules/{name}/pause"): "operate",
    ("POST", "/schedules/{name}/resume"): "operate",
    ("GET", "/hosts"): "read",
    ("GET", "/hosts/{name}/samples"): "read",
    ("GET", "/metrics"): "read",
    ("GET", "/search"): "read",
    ("GET", "/audit"): "read",
    ("GET", "/tokens"): "admin",
    ("POST", "/tokens"): "admin",
    ("POST", "/tokens/link"): "admin",
    ("DELETE", "/tokens/{id}"): "admin",
    ("GET", "/changes"): "read",
    ("GET", "/streams"): "read",
    ("POST", "/streams/{name}/control"): "operate",
    ("GET", "/dead-letters"): "read",
    ("GET", "/dead-letters/{id}"): "read",
    ("POST", "/dead-letters/replay/preview"): "read",
    ("POST", "/dead-letters/replay"): "operate",
    ("POST", "/topics/{topic}/messages"): "operate",
    ("GET", "/monitors/{name}/events"): "read",
    ("GET", "/monitors"): "read",
    ("GET", "/monitors/{name}/entities"): "read",
    ("GET", "/monitors/{name}/roster"): "read",
    ("POST", "/monitors/{name}/labels"): "operate",
    ("POST", "/monitors/{name}/backfill"): "operate",
    ("POST", "/monitors/{name}/reset"): "operate",
    ("POST", "/monitors/{name}/pause"): "operate",
    ("POST", "/monitors/{name}/resume"): "operate",
    ("POST", "/monitors/{name}/silences"): "operate",
    ("GET", "/alerts"): "read",
    ("GET", "/alerts/{id}"): "read",
    ("POST", "/alerts/ack/preview"): "read",
    ("POST", "/alerts/ack"): "operate",
    ("GET", "/jobs/{id}/log"): "read",
    ("GET", "/runs/{id}/log"): "read",
    ("GET", "/throughput"): "read",
    ("GET", "/retention"): "read",
    ("PUT", "/retention"): "admin",
    ("POST", "/streams/{name}/live"): "operate",
    ("POST", "/monitors/{name}/roster"): "operate",
    ("POST", "/monitors/{name}/triggers/{trigger}/{wanted}"): "operate",
    ("POST", "/monitors/{name}/backtest"): "operate",
    ("POST", "/alerts/{id}/note"): "operate",
    ("GET", "/silences"): "read",
    ("DELETE", "/silences/{id}"): "operate",
    ("GET", "/pipelines"): "read",
    ("GET", "/pipelines/{name}"): "read",
    ("GET", "/pipelines/{name}/backfills"): "read",
    ("GET", "/pipelines/{name}/builds"): "read",
    ("GET", "/pipelines/{name}/content"): "read",
    ("GET", "/pipelines/{name}/graph"): "read",
    ("GET", "/pipelines/{name}/grid"): "read",
    ("GET", "/pipelines/{name}/orphans"): "read",
    ("GET", "/pipelines/{name}/plan"): "read",
    ("GET", "/pipelines/{name}/state"): "read",
    ("POST", "/pipelines/{name}/accept"): "operate",
    ("POST", "/pipelines/{name}/approve"): "operate",
    ("POST", "/pipelines/{name}/backfill"): "operate",
    ("POST", "/pipelines/{name}/backfill/preview"): "read",
    ("POST", "/pipelines/{name}/backfills/{id}/stop"): "operate",
    ("POST", "/pipelines/{name}/clean"): "operate",
    ("POST", "/pipelines/{name}/invalidate"): "operate",
    ("POST", "/pipelines/{name}/invalidate/preview"): "read",
    ("POST", "/pipelines/{name}/pause"): "operate",
    ("POST", "/pipelines/{name}/resume"): "operate",
    ("POST", "/pipelines/{name}/retry"): "operate",
    ("POST", "/pipelines/{name}/retry/preview"): "read",
    ("GET", "/triggers"): "read",
    ("POST", "/triggers/{name}"): "operate",
}


class Site:
    """A server that asks everybody for a token, and one token for each role."""

    def __init__(self, server: TestServer, *options: str) -> None:
        self.url = server.create()
        self.tokens: dict[str | None, str | None] = {None: None} | asyncio.run(self._make_tokens())
        self.web = WebServer(self.url, LOGIN_NEEDED, *options)
        asyncio.run(self.web.wait_ready())

    async def _make_tokens(self) -> dict[str | None, str | None]:
        async with Database(DatabaseSettings(url=self.url)) as database:
            return {role: (await create_token(database, role, role, by="test"))[0] for role in ROLES if role}

    def ask(self, role: str | None, method: str, path: str, **more: Any) -> httpx.Response:
        token = self.tokens[role]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx.stream(method, f"{self.web.url}{API}{path}", headers=headers, timeout=20, **more) as response:
            if "event-stream" not in response.headers.get("content-type", ""):
                response.read()
            return response


@pytest.fixture(scope="module")
def site(server: TestServer) -> Iterator[Site]:
    made = Site(server)
    yield made
    made.web.close()
    server.drop(made.url)


@pytest.fixture(scope="module")
def read_only(server: TestServer) -> Iterator[Site]:
    made = Site(server, "--read-only")
    yield made
    made.web.close()
    server.drop(made.url)


def filled(path: str) -> str:
    """An address with something at every place; what it names does not exist."""
    for name in ("id", "run_id", "backfill_id"):
        path = path.replace(f"{{{name}}}", "987654")
    path = path.replace("{path}", "nothing.json")
    for name in ("name", "node", "trigger", "wanted", "topic"):
        path = path.replace(f"{{{name}}}", "nothing")
    return path + ("?q=x" if path == "/search" else "")


def test_every_operation_of_the_document_is_in_the_matrix(site: Site) -> None:
    document = site.ask("read", "GET", "/schema/openapi.json")
    assert document.status_code == 200, document.text
    found = {
        (method.upper(), path.removeprefix(API))
        for path, operations in document.json()["paths"].items()
        for method in operations
    }
    assert found == set(NEEDS)


@pytest.mark.parametrize(("method", "path"), NEEDS, ids=" ".join)
def test_each_role_may_do_what_its_scope_says_and_nothing_more(site: Site, method: str, path: str) -> None:
    for role in ROLES:
        response = site.ask(role, method, filled(path), json={} if method in ("POST", "PUT") else None)
        needed = NEEDS[method, path]
        if needed == "open" or (role is not None and ROLES.index(role) >= ROLES.index(needed)):
            refused = method == "POST" and path == "/session"  # an empty log-in is wrong for everybody
            assert refused or response.status_code not in (401, 403), (role, response.text)
        elif role is None:
            assert response.status_code == 401, (role, response.text)
            assert response.headers["www-authenticate"] == "Bearer"
        else:
            assert response.status_code == 403, (role, response.text)
            assert needed in response.json()["detail"]
        assert response.status_code < 500, response.text


@pytest.mark.parametrize(("method", "path"), [key for key, need in NEEDS.items() if need in ("operate", "admin")])
def test_a_read_only_server_changes_nothing_for_anybody(read_only: Site, method: str, path: str) -> None:
    response = read_only.ask("admin", method, filled(path), json={} if method in ("POST", "PUT") else None)
    assert response.status_code == 403, response.text
    assert "read-only" in response.json()["detail"]
