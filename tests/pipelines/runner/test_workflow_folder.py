"""A folder of workflow files while it runs: changed files, and schedules of files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually
from tests.support.pipelines import put, tree
from tests.support.waiting import PATIENCE
from tidemill.core.accounts import Caller
from tidemill.engine.roles.role import Role
from tidemill.ops.jobs.schedules import ScheduleRef, list_schedules, pause_schedule, resume_schedule, run_schedule
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Nothing
from tidemill.pipelines.workflows.folder import WorkflowFolder
from tidemill.pipelines.workflows.nodes import NODE_TYPES, NodeType
from tidemill.pipelines.workflows.runner import WorkflowRunner
from tidemill.store.database import Database


async def test_a_folder_of_workflow_files_is_read_again_when_one_changes(tmp_path: Path, database: Database) -> None:
    def flow(ending: str) -> str:
        return json.dumps(
            {
                "mode": "pipeline",
                "stateRoot": str(tmp_path / "states"),
                "nodes": [
                    {"id": "s", "typeId": "state_scan", "name": "s", "data": {"pattern": "in/{id}.txt"}},
                    {"id": "w", "typeId": "state_write", "name": "w",
                     "data": {"pattern": "out/{{$.s.id}}.txt", "content": "{{$.s.content}}" + ending}},
                ],
                "connections": [{"sourceNodeId": "s", "targetNodeId": "w"}],
            }
        )  # fmt: skip

    put(tmp_path, {"states/in/a.txt": "apple", "w/flow.json": flow("!")})
    folder = WorkflowFolder(tmp_path / "w")
    runner = Role(WorkflowRunner(database, folder), database)
    running = asyncio.create_task(runner.run())
    try:
        await eventually(lambda: tree(tmp_path / "states").get("out/a.txt") == "apple!")
        put(tmp_path, {"w/flow.json": "{"})
        assert "is not JSON" in (await eventually(lambda: folder.errors))["flow.json"]
        put(tmp_path, {"states/in/b.txt": "pear"})
        await eventually(lambda: tree(tmp_path / "states").get("out/b.txt") == "pear!")
        put(tmp_path, {"w/flow.json": flow("?")})
        await eventually(lambda: tree(tmp_path / "states").get("out/a.txt") == "apple?")
        assert folder.errors == {}
    finally:
        runner.stop()
        await running


async def test_a_scheduled_node_that_overhears_that_it_is_to_end_does_not_keep_its_runner(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Python 3.11 whatever waits with `asyncio.wait_for` may overhear a cancellation: this one always does."""
    begun, heard = asyncio.Event(), []

    async def deaf(data: object, item: object) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append(item)
        return "done"

    monkeypatch.setitem(NODE_TYPES, "deaf", NodeType(deaf))
    flow = {
        "mode": "trigger",
        "nodes": [
            {"id": "s", "typeId": "scheduled", "name": "s", "data": {"interval": 1, "unit": "seconds"}},
            {"id": "d", "typeId": "deaf", "name": "d", "data": {}},
        ],
        "connections": [{"sourceNodeId": "s", "targetNodeId": "d"}],
    }
    put(tmp_path, {"w/flow.json": json.dumps(flow)})
    runner = Role(WorkflowRunner(database, WorkflowFolder(tmp_path / "w")), database)
    running = asyncio.create_task(runner.run())
    await eventually(begun.is_set)
    runner.stop()
    await asyncio.wait([running], timeout=PATIENCE)
    assert running.done(), "it is still running"
    await running
    assert heard


async def test_a_schedule_of_a_file_fires_once_however_many_keep_it(tmp_path: Path, database: Database) -> None:
    flow = {
        "mode": "trigger",
        "nodes": [
            {"id": "s", "typeId": "scheduled", "name": "s", "data": {"interval": 1, "unit": "seconds"}},
            {"id": "w", "typeId": "append_to_file", "name": "w",
             "data": {"path": str(tmp_path / "fired.txt"), "content": "{{$.s.scheduledAt}}"}},
        ],
        "connections": [{"sourceNodeId": "s", "targetNodeId": "w"}],
    }  # fmt: skip
    put(tmp_path, {"w/flow.json": json.dumps(flow)})
    runners = [Role(WorkflowRunner(database, WorkflowFolder(tmp_path / "w")), database) for _ in range(2)]
    running = [asyncio.create_task(runner.run()) for runner in runners]
    fired = tmp_path / "fired.txt"
    try:
        await eventually(lambda: fired.exists() and len(fired.read_text().split()) >= 3)
    finally:
        for runner in runners:
            runner.stop()
        await asyncio.gather(*running)
    moments = fired.read_text().split()
    assert len(moments) == len(set(moments))


async def test_a_schedule_of_a_file_is_listed_paused_run_now_and_made_up_for_after_a_restart(
    tmp_path: Path, database: Database
) -> None:
    flow = {
        "mode": "trigger",
        "nodes": [
            {"id": "s", "typeId": "scheduled", "name": "s", "data": {"interval": 1, "unit": "hours"}},
            {"id": "w", "typeId": "append_to_file", "name": "w",
             "data": {"filepath": str(tmp_path / "fired.txt"), "content": "{{$.s.time}}"}},
        ],
        "connections": [{"sourceNodeId": "s", "targetNodeId": "w"}],
    }  # fmt: skip
    put(tmp_path, {"w/flow.json": json.dumps(flow)})
    at = Local(database, Caller("ann", "admin"), None)
    fired = tmp_path / "fired.txt"

    async def listed() -> list[Any]:
        return (await at.do(list_schedules, Nothing())).items

    async def run_until(what: Callable[[], Any]) -> None:
        runner = Role(WorkflowRunner(database, WorkflowFolder(tmp_path / "w")), database)
        running = asyncio.create_task(runner.run())
        try:
            await eventually(what)
        finally:
            runner.stop()
            await running

    await run_until(listed)
    assert [(each.name, each.when, each.paused) for each in await listed()] == [("workflow/flow", "every hour", False)]
    await at.do(pause_schedule, ScheduleRef(name="workflow/flow"))
    assert [each.paused for each in await listed()] == [True]
    await at.do(resume_schedule, ScheduleRef(name="workflow/flow"))
    await at.do(run_schedule, ScheduleRef(name="workflow/flow"))
    await run_until(fired.exists)
    # Three fires were missed while nothing ran: one is made up for.
    await database.fetch(
        "UPDATE tidemill.schedule SET next_fire = next_fire - interval '3 h', decided = decided - 3 * 3600.0"
    )
    await run_until(lambda: len(fired.read_text().split()) == 2)
    (tmp_path / "w/flow.json").unlink()
    await run_until(lambda: _gone(database))


async def _gone(database: Database) -> bool:
    return not await database.fetch("SELECT FROM tidemill.schedule")
