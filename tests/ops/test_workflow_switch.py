"""A workflow file is disabled and enabled as a whole: its webhook, its schedules and its state triggers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import ConflictError, NotFoundError
from tidemill.engine.roles.scheduler import Scheduler, _plan
from tidemill.ops.explain import ExplainObject, explain
from tidemill.ops.jobs.schedules import (
    ScheduleRef,
    explain_schedule,
    list_schedules,
    pause_schedule,
    resume_schedule,
)
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Nothing
from tidemill.ops.pipelines.pipelines import PipelineRef, get_pipeline
from tidemill.ops.pipelines.triggers import (
    RunTrigger,
    WorkflowName,
    disable_workflow,
    enable_workflow,
    list_triggers,
    run_trigger,
)
from tidemill.pipelines.workflows.schedules import FILES, workflow_schedules
from tidemill.store.database import Database
from tidemill.store.jobs.schedules.schedules import declare_schedules, fire_due, list_schedules as read_schedules


def nightly(*intervals: int) -> str:
    times = [
        {"id": f"at{at}", "typeId": "scheduled", "name": f"at{at}", "data": {"interval": hours, "unit": "hours"}}
        for at, hours in enumerate(intervals)
    ]
    return json.dumps(
        {
            "mode": "trigger",
            "nodes": [
                {"id": "hook", "typeId": "webhook", "name": "hook", "data": {}},
                *times,
                {"id": "say", "typeId": "transform", "name": "say", "data": {"expression": "1"}},
            ],
            "connections": [
                {"sourceNodeId": each, "targetNodeId": "say"} for each in ("hook", *(one["id"] for one in times))
            ],
        }
    )


COPIES = {
    "name": "copies",
    "mode": "pipeline",
    "nodes": [
        {"id": "s", "typeId": "state_trigger", "name": "days", "data": {"pattern": "in/{day}.txt"}},
        {"id": "a", "typeId": "append_to_file", "name": "log", "data": {"path": "all.txt", "content": "{{$.days.id}}"}},
    ],
    "connections": [{"sourceNodeId": "s", "targetNodeId": "a"}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nightly.json").write_text(nightly(3))
    return tmp_path


@pytest.fixture
async def at(folder: Path, database: Database) -> Local:
    app = App("switch", workflow_folder=str(folder))
    return Local(database, Caller("ann", "admin"), app.declarations)


async def declare(at: Local, database: Database) -> None:
    assert at.declared is not None
    pipelines = at.declared.pipelines
    schedules = workflow_schedules(pipelines.triggers.values(), pipelines.trigger_task, FILES)
    await declare_schedules(database, schedules, by=(FILES,))


async def schedules(at: Local) -> dict[str, str]:
    """Each schedule: paused, disabled, both, or neither."""
    return {
        each.name: ", ".join(["paused"] * each.paused + ["disabled"] * (each.disabled_by is not None)) or "fires"
        for each in (await at.do(list_schedules, Nothing())).items
    }


async def fire_all(database: Database) -> list[str]:
    """Make every schedule due; returns those that fire."""
    await database.fetch(
        "UPDATE tidemill.schedule SET next_fire = now() - interval '1 second', decided = decided - 86400"
    )
    return sorted(
        each.schedule for each in await fire_due(database, _plan, Scheduler(database, None)._place) if each.jobs
    )


async def test_a_disabled_workflow_refuses_events_and_its_schedules_do_not_fire(
    at: Local, folder: Path, database: Database
) -> None:
    await declare(at, database)
    await at.do(disable_workflow, WorkflowName(name="nightly"))
    with pytest.raises(ConflictError, match="workflow nightly is disabled: the event was not stored"):
        await at.do(run_trigger, RunTrigger(name="nightly", payload={}))
    assert [each.disabled_by for each in (await at.do(list_triggers, Nothing())).items] == ["ann"]
    assert await schedules(at) == {"workflow/nightly": "disabled"}
    assert await fire_all(database) == []
    found = await at.do(explain, ExplainObject(id="workflow/nightly"))
    assert (found.kind, found.state) == ("workflow", "disabled")
    assert "ann has disabled it: nothing starts it, and events are refused." in found.why

    (folder / "nightly.json").write_text(nightly(3, 4))
    await declare(at, database)
    assert await schedules(at) == {"workflow/nightly": "disabled", "workflow/nightly#2": "disabled"}

    await at.do(enable_workflow, WorkflowName(name="nightly"))
    assert await schedules(at) == {"workflow/nightly": "fires", "workflow/nightly#2": "fires"}
    assert (await at.do(run_trigger, RunTrigger(name="nightly", payload={}))).id
    assert (await at.do(explain, ExplainObject(id="workflow/nightly"))).state == "enabled"
    rows = await database.fetch("SELECT who, action, target FROM tidemill.audit WHERE action LIKE 'workflow.%able'")
    assert [tuple(row) for row in rows] == [
        ("ann", "workflow.disable", "nightly"),
        ("ann", "workflow.enable", "nightly"),
    ]


async def test_a_schedule_that_was_paused_on_its_own_stays_paused_when_its_workflow_is_enabled(
    at: Local, folder: Path, database: Database
) -> None:
    (folder / "nightly.json").write_text(nightly(3, 4))
    await declare(at, database)
    second = ScheduleRef(name="workflow/nightly#2")
    await at.do(pause_schedule, second)
    await at.do(disable_workflow, WorkflowName(name="nightly"))
    assert await schedules(at) == {"workflow/nightly": "disabled", "workflow/nightly#2": "paused, disabled"}
    why = (await at.do(explain_schedule, second)).why
    assert "ann has disabled its workflow, so it does not fire: `tidemill workflow enable nightly`." in why
    assert "It is paused, so it does not fire: `tidemill schedules resume 'workflow/nightly#2'`." in why
    await at.do(enable_workflow, WorkflowName(name="nightly"))
    assert await schedules(at) == {"workflow/nightly": "fires", "workflow/nightly#2": "paused"}
    assert await fire_all(database) == ["workflow/nightly"]


async def test_a_schedule_that_is_resumed_while_its_workflow_is_disabled_fires_when_it_is_enabled(
    at: Local, database: Database
) -> None:
    await declare(at, database)
    await at.do(disable_workflow, WorkflowName(name="nightly"))
    await at.do(pause_schedule, ScheduleRef(name="workflow/nightly"))
    await at.do(resume_schedule, ScheduleRef(name="workflow/nightly"))
    assert await fire_all(database) == []
    await at.do(enable_workflow, WorkflowName(name="nightly"))
    (row,) = await read_schedules(database)
    assert row["next_fire"].timestamp() > time.time(), "what was missed while it was disabled is skipped"
    assert await fire_all(database) == ["workflow/nightly"]


async def test_a_disabled_workflow_file_that_is_a_pipeline_is_paused(at: Local, folder: Path) -> None:
    (folder / "copies.json").write_text(json.dumps({**COPIES, "stateRoot": str(folder / "states")}))
    await at.do(disable_workflow, WorkflowName(name="copies"))
    assert (await at.do(get_pipeline, PipelineRef(name="copies"))).paused_by == "ann"
    await at.do(enable_workflow, WorkflowName(name="copies"))
    assert (await at.do(get_pipeline, PipelineRef(name="copies"))).paused_by is None
    with pytest.raises(NotFoundError, match="there is no workflow 'copy'; there are: copies, nightly"):
        await at.do(disable_workflow, WorkflowName(name="copy"))
