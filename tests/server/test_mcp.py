"""The Model Context Protocol by its own client library: tools with the roles and the audit log of all interfaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from jsonschema_rs import validator_for
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent, Tool

from tests.support.operate import create_token
from tests.support.start_table import OPTIONS
from tests.support.web import LOGIN_NEEDED, WebServer
from tidemill.server.mcp.tools import OFFERED, offered_tools
from tidemill.store.database import Database


@pytest.fixture
async def web(database_url: str) -> AsyncIterator[WebServer]:
    server = WebServer(database_url, LOGIN_NEEDED)
    try:
        yield await server.wait_ready()
    finally:
        server.close()


@asynccontextmanager
async def assistant(web: WebServer, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    """A client that speaks to the server with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{web.url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool returns."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


def hints(tool: Tool) -> tuple[bool | None, bool | None]:
    """Whether a tool says that it changes nothing, and that it destroys something."""
    assert tool.annotations is not None
    return tool.annotations.read_only_hint, tool.annotations.destructive_hint


def said(result: CallToolResult) -> str:
    """The text of a result."""
    (part,) = result.content
    assert isinstance(part, TextContent)
    return part.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_assistant_enqueues_explains_and_cancels(web: WebServer, database: Database, mode: str) -> None:
    token, _ = await create_token(database, "helper", "operator", by="ann")
    async with assistant(web, token, mode) as client:
        tools = {each.name: each for each in (await client.list_tools()).tools}
        assert set(tools) == set(OFFERED)
        assert hints(tools["explain"]) == (True, False)
        assert hints(tools["cancel_jobs"]) == (False, True)
        job = await call(client, "enqueue_job", task="send", args={"order": 7}, delay="1h")
        found = await call(client, "list_jobs", arg=["order=7"])
        assert [each["id"] for each in found["items"]] == [job["id"]]
        explained = await call(client, "explain", id=str(job["id"]))
        assert explained["why"]
        done = await call(client, "cancel_jobs", ids=[job["id"]])
        assert done["done"] == 1
    (entry,) = await database.fetch("SELECT who, action FROM tidemill.audit WHERE action = 'job.cancel'")
    assert entry["who"].startswith("helper (token ")


async def test_an_assistant_learns_the_arguments_of_a_task_and_gives_every_option(
    web: WebServer, database: Database
) -> None:
    token, _ = await create_token(database, "helper", "operator", by="ann")
    given = {
        name: value for options, calls, _ in OPTIONS.values() if "batch" in calls for name, value in options.items()
    }
    left_out = {
        "at",
        "webhook",
        "required_model",
        "rate_key",
        "unique_key",
        "unique_for",
    }  # These need more than a task.
    options = {name: value for name, value in given.items() if name not in left_out}
    async with assistant(web, token) as client:
        known = {each["name"]: each for each in (await call(client, "list_startable"))["items"]}
        assert known["send"]["schema"]["required"] == ["order"]
        job = await call(client, "enqueue_job", task="send", args={"order": 1}, **options)
        batch = await call(client, "enqueue_batch", task="send", each=[{"order": 2}, {"order": 3}], **options)
        later = await call(client, "enqueue_job", task="send", args={"order": 4}, at="2090-01-31T12:00:00+01:00")
        assert (await call(client, "get_batch", id=batch["id"]))["total"] == 2
        await call(client, "cancel_batch", id=batch["id"])
        assert [each["id"] for each in (await call(client, "list_batches"))["items"]] == [batch["id"]]
        run = await call(client, "start_run", workflow="Asking", delay="1h", tags=["a"], priority=8)
    (row,) = await database.fetch("SELECT tags, priority, fair_key FROM tidemill.job WHERE id = $1", job["id"])
    assert (row["tags"], row["priority"], row["fair_key"]) == (["a", "b"], 8, options["fair_key"])
    (row,) = await database.fetch("SELECT due_at FROM tidemill.job WHERE id = $1", later["id"])
    assert row["due_at"] == datetime(2090, 1, 31, 11, tzinfo=UTC)
    (row,) = await database.fetch("SELECT tags, priority FROM tidemill.run WHERE id = $1", run["id"])
    assert (row["tags"], row["priority"]) == (["a"], 8)


async def test_a_viewer_is_offered_what_changes_nothing_and_is_refused_the_rest(
    web: WebServer, database: Database
) -> None:
    token, _ = await create_token(database, "reader", "viewer", by="ann")
    async with assistant(web, token) as client:
        names = {each.name for each in (await client.list_tools()).tools}
        assert "list_runs" in names
        assert "cancel_run" not in names
        refused = await client.call_tool("cancel_run", {"id": 1})
        assert refused.is_error
        assert "this needs the role operator" in said(refused)
        wrong = await client.call_tool("list_jobs", {"stat": ["failed"]})
        assert wrong.is_error
        assert "stat" in said(wrong)
        unknown = await client.call_tool("create_token", {"name": "mine"})
        assert unknown.is_error
        misspelt = await client.call_tool("list_job", {})
        assert "there is no tool 'list_job'; did you mean 'list_jobs'?" in said(misspelt)
        missing = await client.call_tool("get_job", {"id": 4711})
        assert missing.is_error
        assert "4711" in said(missing)


async def test_without_a_token_there_is_no_answer_and_no_stream(web: WebServer) -> None:
    async with httpx.AsyncClient(base_url=web.url, timeout=150) as http:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert (await http.post("/mcp", json=message)).status_code == 401
        assert (await http.get("/mcp")).status_code == 401


def test_every_tool_describes_itself() -> None:
    for name, tool in offered_tools().items():
        assert tool.schema["type"] == "object", name
        assert tool.operation.description.strip(), name
        assert not tool.operation.secret, f"{name} returns a secret"
        validator_for(tool.schema)


def test_the_guide_names_every_tool() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "assistants.md").read_text()
    assert [name for name in OFFERED if f"`{name}`" not in guide] == []
