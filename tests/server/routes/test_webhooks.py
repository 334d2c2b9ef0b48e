"""Webhooks of other services: a right signature runs a workflow once, and without one nothing runs."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import value
from tests.support.operate import create_token
from tests.support.web import API, LOGIN_NEEDED, WebServer
from tidemill.store.database import Database

SECRET = "webhook s3cret"

APP = """
from tests.support.web_app import make_app
from tidemill.core.web.webhook_signature import WebhookSignature
from tidemill.pipelines.workflows import load_workflow

app = make_app(workflow_folder={folder!r})
(paid,) = load_workflow({paid!r}).triggers
app.trigger(paid, signature=WebhookSignature(form="stripe", secret_variable="HOOK_SECRET"))
"""

PUSHED = {
    "mode": "trigger",
    "nodes": [
        {
            "id": "hook",
            "typeId": "webhook",
            "name": "push",
            "data": {"signature": {"form": "github", "secretVariable": "HOOK_SECRET"}},
        },
        {"id": "run", "typeId": "run_command", "name": "run", "data": {"command": "echo {{$.push.ref}}"}},
    ],
    "connections": [{"sourceNodeId": "hook", "targetNodeId": "run"}],
}
OPEN = {"mode": "trigger", "nodes": [{"id": "hook", "typeId": "webhook", "name": "hook", "data": {}}]}
UNSET = {
    "mode": "trigger",
    "nodes": [
        {
            "id": "hook",
            "typeId": "webhook",
            "name": "hook",
            "data": {"signature": {"header": "X-Signature", "secretVariable": "NOT_SET_ANYWHERE"}},
        }
    ],
}


@pytest.fixture
async def hooks(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebServer]:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    folder = tmp_path / "workflows"
    folder.mkdir()
    for name, data in (("pushed", PUSHED), ("open", OPEN), ("unset", UNSET)):
        (folder / f"{name}.json").write_text(json.dumps(data))
    (tmp_path / "paid.json").write_text(json.dumps(OPEN))
    app = tmp_path / "hook_app.py"
    app.write_text(APP.format(folder=str(folder), paid=str(tmp_path / "paid.json")))
    web = WebServer(database_url, LOGIN_NEEDED, app=app)
    try:
        yield await web.wait_ready()
    finally:
        web.kill()


def github(body: bytes, secret: str = SECRET) -> dict[str, str]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={digest}", "X-GitHub-Delivery": "d1"}


def stripe(body: bytes, at: int | None = None) -> dict[str, str]:
    at = int(time.time()) if at is None else at
    digest = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"Stripe-Signature": f"t={at},v1={digest}"}


async def test_a_signed_webhook_runs_its_workflow_once_and_nothing_else_does(
    hooks: WebServer, database: Database
) -> None:
    body = json.dumps({"ref": "refs/heads/main; rm -rf /"}).encode()
    async with httpx.AsyncClient(base_url=f"{hooks.url}{API}/webhooks/", timeout=150) as web:

        async def post(name: str, headers: dict[str, str], content: bytes = body) -> tuple[int, Any]:
            answer = await web.post(name, content=content, headers=headers)
            return answer.status_code, answer.json()

        async def refused(name: str, headers: dict[str, str], why: str, content: bytes = body) -> None:
            status, told = await post(name, headers, content)
            assert (status, why in told["detail"]) == (401, True), told

        await refused("pushed", {}, "X-Hub-Signature-256 is missing")
        await refused("pushed", {"Authorization": "Bearer tm_wrong"}, "is missing")
        await refused("pushed", github(body, "other"), "does not match the body")
        await refused("pushed", github(body), "does not match the body", content=body + b" ")
        await refused("paid", stripe(body, int(time.time()) - 1000), "is the most")
        await refused("paid", github(body), "Stripe-Signature is missing")
        assert (await post("open", github(body)))[0] == 404
        assert (await post("none", github(body)))[0] == 404
        assert (await post("unset", {"X-Signature": "00"}))[0] == 503
        assert (await post("pushed", github(b"no JSON"), b"no JSON"))[0] == 422
        assert await value(database, "SELECT count(*) FROM tidemill.job") == 0

        status, first = await post("pushed", github(body))
        assert status == 202
        assert await post("pushed", github(body)) == (202, first)
        status, other = await post("pushed", github(body) | {"X-GitHub-Delivery": "d2"})
        assert (status, other["id"] != first["id"]) == (202, True)
        once = stripe(body)
        answers = await asyncio.gather(*(post("paid", once) for _ in range(5)))
        assert len({(status, told["id"]) for status, told in answers}) == 1
        large = json.dumps({"ref": "x" * 500_000}).encode()
        assert (await post("pushed", github(large), large))[0] == 202
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 4
    entries = await database.fetch(
        "SELECT who, action, target, after FROM tidemill.audit WHERE who <> 'server' ORDER BY id"
    )
    told = [(row["who"], row["action"], row["target"]) for row in entries]
    assert told[:2] == [("webhook pushed", "webhook.refuse", "pushed"), ("webhook paid", "webhook.refuse", "paid")]
    assert [each[1] for each in told[2:]] == ["workflow.trigger"] * 4
    assert "X-Hub-Signature-256 is missing" in str(entries[0]["after"])
    assert "a webhook was refused" in hooks.said
    assert SECRET not in hooks.said + str([dict(row) for row in entries])


async def test_the_webhook_of_a_disabled_workflow_refuses_events_until_it_is_enabled(
    hooks: WebServer, database: Database
) -> None:
    token, _ = await create_token(database, "ann", "operator", by="test")
    body = b'{"ref": "main"}'
    async with httpx.AsyncClient(base_url=f"{hooks.url}{API}/", timeout=150) as web:
        may = {"Authorization": f"Bearer {token}"}
        assert (await web.post("workflows/paid/disable", headers=may)).json() == {"name": "paid", "is_enabled": False}
        refused = await web.post("webhooks/paid", content=body, headers=stripe(body))
        assert refused.status_code == 409
        assert "workflow paid is disabled: the event was not stored" in refused.json()["detail"]
        assert await value(database, "SELECT count(*) FROM tidemill.job") == 0
        assert (await web.post("workflows/paid/enable", headers=may)).json() == {"name": "paid", "is_enabled": True}
        assert (await web.post("webhooks/paid", content=body, headers=stripe(body))).status_code == 202
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 1


async def test_the_list_of_workflows_says_where_signed_webhooks_go(hooks: WebServer, database: Database) -> None:
    token, _ = await create_token(database, "reader", "viewer", by="test")
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=150) as web:
        answer = (await web.get(f"{hooks.url}{API}/triggers")).json()
    told = {each["name"]: (each["webhook"], each["signature"]) for each in answer["items"]}
    assert told["pushed"] == ("/api/v1/webhooks/pushed", "github")
    assert told["paid"] == ("/api/v1/webhooks/paid", "stripe")
    assert told["open"] == (None, None)
    assert "HOOK_SECRET" not in json.dumps(answer)
