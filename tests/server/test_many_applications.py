"""`tidemill server --all`: one address for every application of a database, and each account sees its own only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.server.routes.test_webhooks import APP, OPEN, PUSHED, SECRET, github
from tests.server.test_oidc import options
from tests.support.oidc import Visitor, provider
from tests.support.operate import create_token
from tests.support.web import API, LOGIN_NEEDED, WebServer, web_server
from tidemill import App
from tidemill.store.database import Database
from tidemill.store.migrate import migrate

NAMED = "Tidemill-Application"


@pytest.fixture
async def bakery(database_url: str) -> AsyncIterator[App]:
    """A second application, whose code the server does not have."""
    app = App("bakery", database_url=database_url)

    @app.task
    async def bake(bread: str) -> str:
        return bread

    for each in (App("test", database_url=database_url), app):  # The first one is that of the server.
        async with each.database() as database:
            await migrate(database)
    yield app
    await app.close()
    app.close_sync()


async def test_a_token_for_one_application_sees_nothing_of_another(
    database_url: str, database: Database, bakery: App
) -> None:
    async with web_server(database_url, LOGIN_NEEDED, "--all") as server:
        await bakery.enqueue(bakery.declarations.tasks["bake"].call(bread="rye"))
        baker, _ = await create_token(database, "baker", "admin", by="test", application="bakery")
        tester, _ = await create_token(database, "tester", "admin", by="test", application="test")
        chief, _ = await create_token(database, "chief", "admin", by="test")
        async with server.client(baker) as client:
            session = (await client.get("/session")).json()
            assert (session["application"], session["applications"]) == ("bakery", ["bakery"])
            assert [job["task"] for job in (await client.get("/jobs")).json()["items"]] == ["bake"]
            for name in ("test", "nowhere"):
                refused = await client.get("/jobs", headers={NAMED: name})
                assert refused.status_code == 403
                assert refused.json()["detail"] == f"this account has no role in an application {name!r} here"
            cancelled = await client.post("/jobs/cancel", json={"filter": {"task": "bake"}})
            assert cancelled.status_code == 200, cancelled.text
        async with server.client(tester) as client:
            assert (await client.get("/jobs")).json()["items"] == []
            assert (await client.get("/jobs", headers={NAMED: "bakery"})).status_code == 403
            client.cookies.set("tidemill-application", "bakery")
            assert (await client.get("/session")).json()["application"] == "test", "a cookie opens nothing"
            trail = repr((await client.get("/audit")).json())
            assert "job.cancel" not in trail
        async with server.client(chief) as client:
            session = (await client.get("/session")).json()
            assert session["applications"] == ["test", "bakery"]
            named = await client.get("/jobs", headers={NAMED: "bakery"})
            assert [(job["task"], job["state"]) for job in named.json()["items"]] == [("bake", "cancelled")]
            assert (await client.get("/jobs", headers={NAMED: "test"})).json()["items"] == []


async def test_a_browser_logs_in_to_the_application_that_it_has_a_role_in(
    database_url: str, database: Database, bakery: App
) -> None:
    async with web_server(database_url, LOGIN_NEEDED, "--all") as server:
        baker, _ = await create_token(database, "baker", "operator", by="test", application=bakery.name)
        chief, _ = await create_token(database, "chief", "admin", by="test")
        async with server.client() as browser:
            opened = (await browser.post("/session", json={"token": baker})).json()
            assert (opened["application"], opened["applications"]) == ("bakery", ["bakery"])
            assert (await browser.get("/jobs")).status_code == 200
            assert (await browser.get("/session")).json()["application"] == "bakery"
        async with server.client() as browser:
            assert (await browser.post("/session", json={"token": chief})).json()["application"] == "test"
            browser.cookies.set("tidemill-application", "bakery")
            assert (await browser.get("/session")).json()["application"] == "bakery"
        async with server.client() as stranger:
            assert (await stranger.get("/session")).json()["authenticated"] is False
            assert (await stranger.get("/jobs")).status_code == 401
            assert (await stranger.get("/jobs", headers={NAMED: "bakery"})).status_code == 401


async def test_users_of_an_identity_provider_reach_the_applications_that_their_groups_have_a_role_in(
    database_url: str, bakery: App
) -> None:
    rules = ("groups=chiefs:admin", "groups=bakers:operator@bakery", "groups=testers:viewer@test")
    with provider() as running:
        running.set_user("bea", groups=["bakers"])
        running.set_user("tim", groups=["testers", "bakers"])
        running.set_user("eve", groups=["strangers"])
        async with web_server(database_url, *options(running, *rules), "--all") as server:
            await bakery.enqueue(bakery.declarations.tasks["bake"].call(bread="rye"))

            def visit() -> None:
                bea, tim, eve = (Visitor(server.url) for _ in range(3))
                bea.log_in("bea")
                session = bea.session()
                assert (session["application"], session["applications"]) == ("bakery", ["bakery"])
                assert [job["task"] for job in bea.ask("GET", "/jobs").json()["items"]] == ["bake"]
                assert bea.ask("POST", "/jobs/cancel", {"filter": {"task": "bake"}}).status_code == 200
                bea.http.headers[NAMED] = "test"
                assert bea.ask("GET", "/jobs").status_code == 403
                tim.log_in("tim")
                assert tim.session()["applications"] == ["test", "bakery"]
                assert tim.ask("POST", "/jobs/cancel", {"filter": {"task": "bake"}}).status_code == 403, "a viewer here"
                tim.http.headers[NAMED] = "bakery"
                assert tim.ask("POST", "/jobs/cancel", {"filter": {"task": "bake"}}).status_code == 200
                assert eve.log_in("eve") == "/?login=no_role"
                assert eve.session()["authenticated"] is False

            await asyncio.to_thread(visit)


async def test_a_webhook_runs_the_workflow_of_the_application_that_its_address_names(
    database_url: str, database: Database, bakery: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    folder = tmp_path / "workflows"
    folder.mkdir()
    (folder / "pushed.json").write_text(json.dumps(PUSHED))
    (tmp_path / "paid.json").write_text(json.dumps(OPEN))
    code = tmp_path / "hook_app.py"
    code.write_text(APP.format(folder=str(folder), paid=str(tmp_path / "paid.json")))
    web = WebServer(database_url, LOGIN_NEEDED, "--all", app=code)
    body = json.dumps({"ref": "main"}).encode()
    try:
        await web.wait_ready()
        async with httpx.AsyncClient(base_url=f"{web.url}{API}/webhooks/", timeout=150) as client:
            for name in ("bakery", "tset"):
                wrong = await client.post("pushed", params={"application": name}, content=body, headers=github(body))
                assert wrong.status_code == 404, wrong.text
            assert await database.fetch("SELECT FROM tidemill.job") == []
            taken = await client.post("pushed", params={"application": "test"}, content=body, headers=github(body))
            assert taken.status_code == 202, taken.text
            forged = {"X-Hub-Signature-256": "sha256=00", "X-GitHub-Delivery": "d2"}
            refused = await client.post("pushed", params={"application": "test"}, content=body, headers=forged)
            assert refused.status_code == 401
        assert len(await database.fetch("SELECT FROM tidemill.job")) == 1
    finally:
        web.kill()
