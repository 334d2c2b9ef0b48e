"""Cases for the operations on pipelines, triggers and workflow files.

The pipeline `notes` keeps its states in the database: `a` is fresh, `b` failed, and the input of `c` is gone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.invariants.operations.case import Case, World
from tests.support.pipelines import update
from tests.support.web_pipelines import make_greetings, make_notes
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.ops.operator.http_client import HttpClient
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Nothing
from tidemill.ops.operator.remote import Remote
from tidemill.ops.pipelines import change, lineage, pipelines, plan, states, triggers
from tidemill.ops.workflows import files
from tidemill.pipelines.workflows.files import version_of
from tidemill.store.states.blobs import drop_blobs, write_blobs

FOLDER = "WEB_WORKFLOWS"
WORD = """{"mode": "trigger", "nodes": [
  {"id": "loud", "typeId": "transform", "data": {"expression": "$.payload.word.toUpperCase()"}}]}"""
TEXT = "name: nightly\nnodes:\n  - {name: pack, task: send, args: {order: 1}}\n"
OTHER = TEXT.replace("order: 1", "order: 2")
VERSION = version_of(TEXT.encode())
NOTES = "notes"
SHOUT: dict[str, Any] = {"name": NOTES, "stage": "shout"}


def declare(app: App) -> None:
    """Declare the pipeline and the workflow of the server's application."""
    app.pipeline(make_notes())
    for workflow in make_greetings():
        app.trigger(workflow)


async def the_notes(world: World) -> None:
    """`a` is fresh, `b` failed, the input of `c` is gone; the server has read none of it yet."""
    inputs = [(f"in/{name}.txt", text) for name, text in (("a", b"apple"), ("b", b"bad"), ("c", b"cherry"))]
    await write_blobs(world.database, NOTES, inputs)
    await update(world.database, world.app.pipelines.known[NOTES])
    await drop_blobs(world.database, NOTES, ["in/c.txt"])
    client = HttpClient(world.url)
    try:  # The server reads a pipeline again after it has changed it.
        await Remote(client).do(change.resume_pipeline, change.PausePipeline(name=NOTES))
    finally:
        client.close()


async def a_backfill(world: World) -> None:
    """Backfill 1 of the stage is under way."""
    await the_notes(world)
    await Local(world.database, Caller("ann", "admin"), world.app.declarations).do(
        change.start_backfill, change.StartBackfill(**SHOUT)
    )


async def a_file(world: World) -> None:
    """The folder holds one file, `nightly.yaml`."""
    folder = Path(os.environ[FOLDER])
    for old in folder.iterdir():
        old.unlink()
    (folder / "nightly.yaml").write_text(TEXT)


def named(kind: Any, **more: Any) -> Any:
    return kind(name="nothing", **more)


CASES: dict[str, Case] = {
    # reads
    "list_pipelines": Case(pipelines.ListPipelines(), the_notes, command="pipeline status APP --json", items=True),
    "get_pipeline": Case(pipelines.PipelineRef(name=NOTES), the_notes, (named(pipelines.PipelineRef),)),
    "get_pipeline_graph": Case(
        pipelines.GetPipelineGraph(name=NOTES),
        the_notes,
        (named(pipelines.GetPipelineGraph),),
        command="pipeline draw APP notes --live",
    ),
    "get_lineage": Case(Nothing(), the_notes, command="pipeline lineage APP"),
    "preview_change": Case(
        lineage.PreviewChange(what="in/a.txt"),
        the_notes,
        (lineage.PreviewChange(what="nothing"), lineage.PreviewChange(what="")),
        command="pipeline whatif APP in/a.txt",
    ),
    "get_pipeline_grid": Case(
        states.GetPipelineGrid(name=NOTES, state=("failed", "fresh"), order="asc"),
        the_notes,
        (
            named(states.GetPipelineGrid),
            states.GetPipelineGrid(name=NOTES, by="month"),
            states.GetPipelineGrid(name=NOTES, state=("rotten",)),
            states.GetPipelineGrid(name=NOTES, stage=("none",)),
            states.GetPipelineGrid(name=NOTES, limit=0),
            states.GetPipelineGrid(name=NOTES, cursor="?"),
        ),
    ),
    "get_state": Case(
        states.GetState(**SHOUT, entity="a", follow=True),
        the_notes,
        (
            named(states.GetState, stage="shout"),
            states.GetState(name=NOTES, stage="none"),
            states.GetState(**SHOUT, entity="z/z"),
        ),
    ),
    "get_content": Case(
        states.GetContent(name=NOTES, path="out/a.txt"),
        the_notes,
        (states.GetContent(name=NOTES, path="/etc/passwd"), named(states.GetContent, path="in/a.txt")),
    ),
    "list_earlier_contents": Case(
        states.GetContent(name=NOTES, path="out/a.txt"),
        the_notes,
        (named(states.GetContent, path="out/a.txt"),),
        command="pipeline content APP out/a.txt --earlier",
    ),
    "plan_pipeline": Case(
        plan.PlanPipeline(name=NOTES),
        the_notes,
        (
            named(plan.PlanPipeline),
            plan.PlanPipeline(name=NOTES, stage="none"),
            plan.PlanPipeline(name=NOTES, limit=-1),
        ),
        command="pipeline plan APP notes",
    ),
    "list_builds": Case(
        plan.ListBuilds(**SHOUT),
        the_notes,
        (named(plan.ListBuilds), plan.ListBuilds(name=NOTES, limit=0), plan.ListBuilds(name=NOTES, cursor="?")),
        command="pipeline history APP notes/shout --json",
        items=True,
    ),
    "list_backfills": Case(
        plan.ListBackfills(name=NOTES), a_backfill, (named(plan.ListBackfills), plan.ListBackfills(name=NOTES, limit=0))
    ),
    "write_pipeline_input": Case(
        states.WriteInput(name=NOTES, path="in/d.txt", content="date"),
        the_notes,
        (
            states.WriteInput(name="nothing", path="in/d.txt", content="x"),
            states.WriteInput(name=NOTES, path="out/d.txt", content="x"),
            states.WriteInput(name=NOTES, path="in/../d.txt", content="x"),
            states.WriteInput(name=NOTES, path="in/d.txt", content="?", encoding="base64"),
        ),
    ),
    "list_orphans": Case(
        states.ListOrphans(name=NOTES),
        the_notes,
        (named(states.ListOrphans), states.ListOrphans(name=NOTES, stage="none")),
        command="pipeline clean APP notes",
    ),
    # changes
    "preview_invalidate_states": Case(
        change.StateSelection(name=NOTES), the_notes, (change.StateSelection(name=NOTES, states=("rotten",)),)
    ),
    "invalidate_states": Case(
        change.InvalidateStates(**SHOUT, entities=["a"]),
        the_notes,
        (
            named(change.InvalidateStates),
            change.InvalidateStates(name=NOTES, stage="none"),
            change.InvalidateStates(name=NOTES, entities=["z"]),
            change.InvalidateStates(name=NOTES, first="a"),
            change.InvalidateStates(name=NOTES, count=17),
        ),
        command="pipeline invalidate APP out/a.txt",
    ),
    "preview_retry_states": Case(
        change.StateSelection(name=NOTES), the_notes, (change.StateSelection(name=NOTES, entities=["z"]),)
    ),
    "retry_states": Case(
        change.RetryStates(name=NOTES),
        the_notes,
        (named(change.RetryStates), change.RetryStates(name=NOTES, count=17)),
        command="pipeline retry APP",
    ),
    "preview_backfill": Case(
        change.BackfillRange(**SHOUT, first="a"), the_notes, (change.BackfillRange(name=NOTES, stage="none"),)
    ),
    "start_backfill": Case(
        change.StartBackfill(**SHOUT, first="a", last="b", rate="5/s"),
        the_notes,
        (
            change.StartBackfill(**SHOUT, first="x"),
            change.StartBackfill(**SHOUT, first="", last="b"),
            change.StartBackfill(**SHOUT, rate="fast"),
            change.StartBackfill(**SHOUT, rate="1e9/s"),
        ),
        command="pipeline backfill APP shout --first a --last b --rate 5/s",
    ),
    "stop_backfill": Case(
        change.BackfillRef(name=NOTES, id=1),
        a_backfill,
        (change.BackfillRef(name=NOTES, id=9), change.BackfillRef(name=NOTES, id=-1), named(change.BackfillRef, id=1)),
    ),
    "approve_stage": Case(
        change.StageRef(**SHOUT),
        the_notes,
        (change.StageRef(name=NOTES, stage="none"), named(change.StageRef, stage="shout")),
        command="pipeline approve APP notes/shout",
    ),
    "accept_stage": Case(
        change.StageRef(**SHOUT),
        the_notes,
        (change.StageRef(name=NOTES, stage="none"),),
        command="pipeline accept APP shout --yes",
    ),
    "pause_pipeline": Case(
        change.PausePipeline(**SHOUT),
        the_notes,
        (change.PausePipeline(name=NOTES, stage="none"), named(change.PausePipeline)),
        command="pipeline pause APP shout",
    ),
    "resume_pipeline": Case(
        change.PausePipeline(name=NOTES),
        the_notes,
        (named(change.PausePipeline),),
        command="pipeline resume APP notes",
    ),
    "clean_pipeline": Case(
        change.CleanPipeline(name=NOTES, how="delete"),
        the_notes,
        (
            named(change.CleanPipeline),
            change.CleanPipeline(name=NOTES, stage="none"),
            change.CleanPipeline(name=NOTES, count=17),
            change.CleanPipeline(name=NOTES, how="burn"),  # pyright: ignore[reportArgumentType] - it is wrong
        ),
        command="pipeline clean APP notes --how delete --yes",
    ),
    # triggers and workflow files
    "list_triggers": Case(Nothing()),
    "run_trigger": Case(
        triggers.RunTrigger(name="greet", payload={"who": "Ada"}), wrong=(triggers.RunTrigger(name="nothing"),)
    ),
    "disable_workflow": Case(
        triggers.WorkflowName(name="greet"),
        wrong=(triggers.WorkflowName(name="nothing"),),
    ),
    "enable_workflow": Case(
        triggers.WorkflowName(name="greet"),
        wrong=(triggers.WorkflowName(name="nothing"),),
    ),
    "list_workflow_kinds": Case(Nothing()),
    "list_workflow_files": Case(Nothing(), a_file),
    "get_workflow_file": Case(
        files.WorkflowFileRef(path="nightly.yaml"),
        a_file,
        (files.WorkflowFileRef(path="nothing.yaml"), files.WorkflowFileRef(path="app.py")),
    ),
    "check_workflow": Case(
        files.CheckWorkflow(path="new.yaml", text="nodes: []"),
        a_file,
        (files.CheckWorkflow(path="app.py", text=""), files.CheckWorkflow(path="", text="")),
    ),
    "dry_run_workflow": Case(
        files.DryRunWorkflow(path="nightly.yaml", text=TEXT),
        a_file,
        (files.DryRunWorkflow(path="nightly.yaml", text="nodes: []"),),
    ),
    "run_workflow_draft": Case(
        files.RunWorkflowDraft(path="word.json", text=WORD, payload={"word": "tide"}, until="loud"),
        a_file,
        (
            files.RunWorkflowDraft(path="word.json", text="{}"),
            files.RunWorkflowDraft(path="nightly.yaml", text=TEXT),
            files.RunWorkflowDraft(path="app.py", text=WORD),
        ),
    ),
    "save_workflow_file": Case(
        files.SaveWorkflowFile(path="nightly.yaml", text=OTHER, version=VERSION),
        a_file,
        (
            files.SaveWorkflowFile(path="nightly.yaml", text=OTHER),
            files.SaveWorkflowFile(path="nightly.yaml", text=OTHER, version="0"),
            files.SaveWorkflowFile(path="nightly.yaml", text=OTHER, new=True),
            files.SaveWorkflowFile(path="nightly.yaml", text="nodes: []", version=VERSION),
        ),
    ),
    "delete_workflow_file": Case(
        files.DeleteWorkflowFile(path="nightly.yaml", version=VERSION),
        a_file,
        (
            files.DeleteWorkflowFile(path="nightly.yaml"),
            files.DeleteWorkflowFile(path="nothing.yaml", version=VERSION),
            files.DeleteWorkflowFile(path="nightly.yaml", version="0"),
        ),
    ),
    "rename_workflow_file": Case(
        files.RenameWorkflowFile(path="nightly.yaml", to="daily.yaml", version=VERSION),
        a_file,
        (
            files.RenameWorkflowFile(path="nightly.yaml", to="daily.yaml"),
            files.RenameWorkflowFile(path="nightly.yaml", to="daily.json", version=VERSION),
            files.RenameWorkflowFile(path="nightly.yaml", to="daily.yaml", version="0"),
        ),
    ),
}
