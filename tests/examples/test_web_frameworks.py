"""The examples of web frameworks: an order and its job are stored together or not at all, and the job runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.long

FRAMEWORKS = ROOT / "examples" / "frameworks"

CLIENTS = {
    "fastapi": """
import httpx
from with_fastapi import api

async def request(method, path, body=None):
    transport = httpx.ASGITransport(app=api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        answer = await client.request(method, path, json=body)
        return answer.status_code, answer.json() if answer.status_code < 500 else None

around = lambda: api.router.lifespan_context(api)
""",
    "flask": """
import asyncio, contextlib
from with_flask import web

async def request(method, path, body=None):
    answer = await asyncio.to_thread(web.test_client().open, path, method=method, json=body)
    return answer.status_code, answer.json

around = contextlib.AsyncExitStack
""",
    "django": """
import asyncio, contextlib
import with_django
from django.test import Client

async def request(method, path, body=None):
    client = Client(raise_request_exception=False)
    call = client.get if method == "GET" else client.post
    more = {} if body is None else {"data": body, "content_type": "application/json"}
    answer = await asyncio.to_thread(call, path, **more)
    return answer.status_code, answer.json() if answer.status_code < 500 else None

around = contextlib.AsyncExitStack
""",
}

CHECK = """
import asyncio
import shop

async def main():
    async with shop.app.running(), around():
        status, placed = await request("POST", "/orders", {"quantity": 3})
        assert status == 201, (status, placed)
        await shop.app.wait(placed["job"])
        assert await request("GET", f"/jobs/{placed['job']}") == (
            200, {"state": "succeeded", "result": f"receipt {placed['order']}"}
        )
        status, _ = await request("POST", "/orders", {"quantity": -1})
        assert status == 500
        database = await shop.app.declarations.reach()
        (row,) = await database.fetch(
            "SELECT (SELECT count(*) FROM shop.orders) AS orders, (SELECT count(*) FROM tidemill.job)"
            " + (SELECT count(*) FROM tidemill.job_history) AS jobs"
        )
        assert (row["orders"], row["jobs"]) == (1, 1), dict(row)
        assert (await request("GET", "/jobs/999999"))[0] == 404
    shop.app.close_sync()

asyncio.run(main())
print("all is well")
"""


@pytest.mark.parametrize("framework", list(CLIENTS))
def test_an_order_and_its_job_are_stored_together_and_the_job_runs(
    framework: str, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "check.py").write_text(CLIENTS[framework] + CHECK)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{FRAMEWORKS}", "TIDEMILL_DATABASE_URL": database_url}
    done = subprocess.run(
        [sys.executable, "check.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE * 2
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout
