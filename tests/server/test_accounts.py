"""Tokens and sessions of a team: roles for one application or for all, last use, and what an admin of one may do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import eventually, value
from tests.support.operate import create_token, revoke_token
from tests.support.web import LOGIN_NEEDED, ROOT, web_server
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database

ATTACKED_APP = ROOT / "tests" / "support" / "attacked_app.py"
LOG = "SELECT used_at FROM tidemill.token WHERE id = $1"


async def add_application(database: Database, name: str) -> None:
    """Another application of this installation, as far as accounts are concerned."""
    await database.fetch("INSERT INTO tidemill.application (name, schema) VALUES ($1, $2)", name, f"tidemill_{name}")


async def test_a_token_for_one_application_opens_no_other(database_url: str, database: Database) -> None:
    async with web_server(database_url, LOGIN_NEEDED) as server:
        await add_application(database, "other")
        here, _ = await create_token(database, "here", "admin", by="test", application="test")
        elsewhere, _ = await create_token(database, "there", "admin", by="test", application="other")
        async with server.client(here) as own, server.client(elsewhere) as foreign, server.client() as browser:
            assert (await own.get("/jobs")).status_code == 200
            refused = await foreign.get("/jobs")
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:tidemill:forbidden")
            assert "for application other" in refused.json()["detail"]
            assert (await browser.post("/session", json={"token": elsewhere})).status_code == 403
            assert (await browser.get("/session")).json()["authenticated"] is False
    with pytest.raises(ConfigError, match="there is no application 'nowhere'; there are: other, test"):
        await create_token(database, "x", "viewer", by="test", application="nowhere")


async def test_an_admin_of_one_application_administers_only_it(database_url: str, database: Database) -> None:
    async with web_server(database_url, LOGIN_NEEDED) as server:
        everywhere, chief = await create_token(database, "chief", "admin", by="test")
        secret, _ = await create_token(database, "local chief", "admin", by="test", application="test")
        async with server.client(secret) as admin, server.client(everywhere) as chief_client:
            listed = (await admin.get("/tokens")).json()["items"]
            assert [each["name"] for each in listed] == ["local chief"]
            refused = await admin.post("/tokens", json={"name": "mine", "role": "admin"})
            assert (refused.status_code, "application test only" in refused.json()["detail"]) == (403, True)
            assert (await admin.delete(f"/tokens/{chief['id']}")).status_code == 404
            made = await admin.post("/tokens", json={"name": "mine", "role": "viewer", "application": "test"})
            assert made.status_code == 201
            opened = await chief_client.post("/session", json={"token": everywhere})
            assert opened.status_code == 201
            assert (await admin.get("/sessions")).json()["items"] == [], "a session for all applications is not theirs"
            link = (await admin.post("/tokens/link", json={})).json()["secret"]
            async with server.client() as browser:
                session = (await browser.post("/session", json={"token": link})).json()
                assert (session["role"], session["only"]) == ("admin", "test")


async def test_the_last_use_is_recorded_without_a_write_for_each_request(database_url: str, database: Database) -> None:
    async with web_server(database_url, LOGIN_NEEDED) as server:
        secret, row = await create_token(database, "ci", "viewer", by="test")
        _, other = await create_token(database, "idle", "viewer", by="test")

        async def version() -> Any:
            return await value(database, "SELECT xmin::text || used_at FROM tidemill.token WHERE id = $1", row["id"])

        async with server.client(secret) as client:
            assert (await client.get("/jobs")).status_code == 200
            await eventually(version, what="the use is recorded")
            recorded = await version()
            for _ in range(50):
                assert (await client.get("/jobs")).status_code == 200
            assert await version() == recorded, "uses are written together, at most once a minute"
        assert await value(database, LOG, other["id"]) is None
        server.terminate()
        await server.ends()
        assert await version() != recorded, "a server that stops records what is left"


@pytest.mark.parametrize("path", ["/changes", "/runs/5/stream"])
async def test_an_open_stream_ends_when_its_token_is_revoked_or_its_session_ends(
    path: str, database_url: str, database: Database
) -> None:
    await database.fetch(
        "INSERT INTO tidemill.run (id, workflow, kind, version, input) VALUES (5, 'Asking', 'Asking', '1', '{}')"
    )
    async with web_server(database_url, LOGIN_NEEDED) as server:
        chief, _ = await create_token(database, "chief", "admin", by="test")
        secret, row = await create_token(database, "guest", "viewer", by="test")
        kept, _ = await create_token(database, "other guest", "viewer", by="test")

        async def last(client: httpx.AsyncClient) -> None:
            async with client.stream("GET", path) as response:
                assert response.status_code == 200
                begun.release()
                async for _ in response.aiter_bytes():
                    pass

        async with (
            server.client(chief) as admin,
            server.client(secret) as by_token,
            server.client() as browser,
            server.client() as other_browser,
            server.client(kept) as other,
        ):
            assert (await browser.post("/session", json={"token": secret})).status_code == 201
            assert (await other_browser.post("/session", json={"token": kept})).status_code == 201
            sessions = (await admin.get("/sessions")).json()["items"]
            (ended,) = [each["id"] for each in sessions if each["name"] == "other guest"]
            begun = asyncio.Semaphore(0)
            streams = [asyncio.create_task(last(each)) for each in (by_token, browser, other_browser, other)]
            for _ in streams:
                await begun.acquire()
            async with asyncio.timeout(150):
                assert (await admin.delete(f"/sessions/{ended}")).status_code == 204
                await streams[2]
                await revoke_token(database, row["id"], by="test")  # As another process does it.
                await asyncio.gather(*streams[:2])
            assert not streams[3].done()
            assert (await by_token.get("/jobs")).status_code == 401
            streams[3].cancel()
            await asyncio.gather(streams[3], return_exceptions=True)


async def test_an_account_sees_its_own_sessions_and_an_admin_all(database_url: str, database: Database) -> None:
    async with web_server(database_url, LOGIN_NEEDED) as server:
        viewer, _ = await create_token(database, "ann", "viewer", by="test")
        admin, _ = await create_token(database, "ben", "admin", by="test")
        async with server.client() as ann, server.client() as ben, server.client(viewer) as program:
            for each, secret in ((ann, viewer), (ben, admin)):
                opened = await each.post("/session", json={"token": secret}, headers={"User-Agent": "Firefox/1"})
                each.headers["X-CSRF-Token"] = opened.json()["csrf"]
            own = (await ann.get("/sessions")).json()["items"]
            assert [(each["name"], each["agent"], each["current"]) for each in own] == [("ann", "Firefox/1", True)]
            assert len((await program.get("/sessions")).json()["items"]) == 1
            seen = (await ben.get("/sessions")).json()["items"]
            assert {each["name"]: (each["own"], each["grants"]) for each in seen} == {
                "ann": (False, {"*": "viewer"}),
                "ben": (True, {"*": "admin"}),
            }
            foreign = next(each["id"] for each in seen if each["name"] == "ben")
            assert (await ann.delete(f"/sessions/{foreign}")).status_code == 404
            assert (await ben.delete(f"/sessions/{own[0]['id']}")).status_code == 204
            assert (await ann.get("/jobs")).status_code == 401
            assert (await program.get("/jobs")).status_code == 200, "the token itself is still good"
    entries = await database.fetch("SELECT who, target FROM tidemill.audit WHERE action = 'session.end'")
    assert [(row["who"].partition(" (")[0], row["target"]) for row in entries] == [("ben", f"{own[0]['id']} ann")]


async def test_only_an_admin_starts_a_task_that_can_run_a_command(
    database_url: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the way: as an event, as a job, or as the node of a dag that the caller brings along."""
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("")
    monkeypatch.setenv("ATTACKED_FOLDER", str(tmp_path))
    async with web_server(database_url, LOGIN_NEEDED, app=ATTACKED_APP) as server:
        operator, _ = await create_token(database, "op", "operator", by="test")
        admin, _ = await create_token(database, "boss", "admin", by="test")
        dag = {"name": "own", "nodes": [{"name": "a", "task": "workflow/shell", "args": {"payload": {}}}]}
        mapped = {"name": "own", "nodes": [{"name": "a", "dag": {"name": "b", "nodes": dag["nodes"]}}]}
        ways: list[tuple[str, dict[str, Any]]] = [
            ("/triggers/shell", {}),
            ("/jobs", {"task": "workflow/shell", "args": {"payload": {}}}),
            ("/jobs/copies", {"task": "workflow/shell", "args": {"payload": {}}, "count": 2}),
            ("/runs", {"workflow": "own", "definition": dag}),
            ("/runs", {"workflow": "own", "definition": mapped}),
        ]
        async with server.client(operator) as limited, server.client(admin) as full:
            for path, body in ways:
                refused = await limited.post(path, json=body)
                assert (refused.status_code, path) == (403, path), refused.text
                assert "needs the role admin" in refused.json()["detail"]
            assert await value(database, "SELECT count(*) FROM tidemill.job") == 0
            assert await value(database, "SELECT count(*) FROM tidemill.run") == 0
            for path, body in ways:
                started = await full.post(path, json=body)
                assert started.status_code in (201, 202), started.text
