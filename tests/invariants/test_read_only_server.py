"""A server that was started with --read-only changes nothing, for any role."""

from __future__ import annotations

import httpx

from tests.invariants.attack_table import HTTP, OPEN, filled
from tests.support.operate import create_token
from tests.support.web import API, LOGIN_NEEDED, web_server
from tidemill.store.database import Database


async def test_a_read_only_server_changes_nothing_for_anybody(database_url: str, database: Database) -> None:
    token, _ = await create_token(database, "admin", "admin", by="test")
    async with web_server(database_url, LOGIN_NEEDED, "--read-only") as server:
        with httpx.Client(timeout=150, headers={"Authorization": f"Bearer {token}"}) as client:
            for (method, path), needed in HTTP.items():
                if needed in (OPEN, "viewer"):
                    continue
                body = {} if method in ("POST", "PUT") else None
                response = client.request(method, f"{server.url}{API}{filled(path)}", json=body)
                assert response.status_code == 403, (method, path, response.text)
                assert "read-only" in response.json()["detail"]
