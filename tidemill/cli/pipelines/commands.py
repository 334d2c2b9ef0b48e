"""`tidemill pipeline`: bring pipelines up to date, and see what would be built and why."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from tidemill.cli.arguments import Json, Metrics, Shown, Supervise
from tidemill.cli.connection_options import HERE, ConnectionOptions, operator
from tidemill.cli.open_database import require_database
from tidemill.cli.paging import read_pages
from tidemill.cli.pipelines.actions import COMMANDS
from tidemill.cli.pipelines.open import (
    AllowUnknown,
    OneOf,
    Pipeline,
    Target,
    find_all,
    names,
    on_pipelines,
    opened,
    print_file_problems,
    settings_of,
    the_pipeline,
)
from tidemill.cli.pipelines.page import (
    draw_lineage,
    print_builds,
    print_change,
    print_earlier,
    print_pipeline,
    print_plan,
    print_problems,
)
from tidemill.cli.pipelines.terminal_answers import answer_at_terminal
from tidemill.cli.render import out, print_json
from tidemill.cli.run.process_tree import ProcessTree, child, run_processes
from tidemill.cli.run.role_process import Part, run_role
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.engine.application.workflow_access import grant_access
from tidemill.engine.settings import Settings
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.ops.operator.operation import Nothing, Operator
from tidemill.ops.pipelines.change import APPROVED_FOR
from tidemill.ops.pipelines.lineage import PreviewChange, get_lineage, preview_change
from tidemill.ops.pipelines.pipelines import (
    GetPipelineGraph,
    ListPipelines,
    PipelineList,
    PipelineRef,
    get_pipeline,
    get_pipeline_graph,
    list_pipelines,
)
from tidemill.ops.pipelines.plan import ListBuilds, PlanPipeline, PlanReport, list_builds, plan_pipeline, report_plan
from tidemill.ops.pipelines.states import MOST_SHOWN, GetContent, get_content, list_earlier_contents
from tidemill.pipelines.definition.load_target import PipelineTarget, is_workflow, load_target
from tidemill.pipelines.definition.pipeline import Pipeline as DeclaredPipeline, check_order
from tidemill.pipelines.runner.runner import PipelineRunner, pipeline_role
from tidemill.pipelines.runner.scripting import bring_up_to_date
from tidemill.pipelines.view.state_details import Build
from tidemill.pipelines.workflows import TriggerWorkflow, load_workflow
from tidemill.pipelines.workflows.expressions.names import credential_names
from tidemill.pipelines.workflows.folder import read_folder
from tidemill.pipelines.workflows.runner import WorkflowRunner
from tidemill.store.database import Database
from tidemill.store.migrate import OWN_CHAIN, wait_for_schema
from tidemill.store.states.requests import set_approved
from tidemill.store.transaction import transaction

commands = App(name="pipeline", help="Pipelines: what must exist, what is missing or out of date, and why.")
for command in COMMANDS:
    commands.command(command)


@commands.command
def run(
    app: Annotated[str, Parameter(help="Where they are declared: app.py, package.module, a workflow file or folder.")],
    pipeline: Pipeline = None,
    /,
    *,
    once: Annotated[
        bool,
        Parameter(
            help="Build here and now what is missing or out of date, and end. The status is 1 if "
            "something is left undone."
        ),
    ] = False,
    approve: Annotated[
        bool, Parameter(help="Also build what would wait for approval because there is so much of it.")
    ] = False,
    supervise: Supervise = True,
    allow_unknown: AllowUnknown = False,
    metrics: Metrics = None,
    connection: ConnectionOptions = HERE,
) -> int:
    """Keep pipelines up to date until stopped; with --once, bring them up to date and end."""
    if once:
        connection.arguments()  # A server that is named is an error, before anything is loaded.
        target = load_target(app, allow_unknown=allow_unknown)
        print_file_problems(target)
        return asyncio.run(_run_once(target, pipeline, approve, connection)) or (1 if target.problems else 0)

    def make() -> Part:
        if is_workflow(app):
            settings = connection.settings(metrics=metrics)
            database = Database(settings.database(), label="tidemill pipeline")
            folder = read_folder(Path(app), allow_unknown=allow_unknown)
            work = WorkflowRunner(database, folder, keep_days=settings.keep_days)
            role = pipeline_role(work, work.pipelines, database, settings, migrations=(OWN_CHAIN,))
            return Part(role, database, settings, patience=settings.grace_seconds)
        target = load_target(app)
        settings = settings_of(target, connection, metrics=metrics)
        if target.app is not None:
            require_database(settings)
        database = Database(settings.database(), label="tidemill pipeline")
        if target.app is not None and pipeline is None:
            role = target.app.pipelines.runner(database, settings)
            return Part(role, database, settings, patience=settings.grace_seconds)
        chosen = target.choose(pipeline)
        task_of = target.app.pipelines.task_of if target.app is not None else None
        runner = PipelineRunner(database, chosen, task_of, keep_days=settings.keep_days)
        migrations = (OWN_CHAIN,) if target.app is None else ()
        role = pipeline_role(runner, runner, database, settings, migrations=migrations)
        return Part(role, database, settings, patience=settings.grace_seconds)

    if not supervise:
        return run_role(make)

    def load() -> ProcessTree:
        settings = connection.settings(metrics=metrics)
        if not is_workflow(app):
            target = load_target(app)
            target.choose(pipeline)
            settings = settings_of(target, connection, metrics=metrics)
            if target.app is not None:
                require_database(settings)
        named = [*([] if pipeline is None else [pipeline]), *(["--allow-unknown"] if allow_unknown else [])]
        specs = [child("pipeline", connection.arguments(), "pipeline", "run", app, *named, "--no-supervise")]
        return ProcessTree(settings, specs, "tidemill pipeline")

    return run_processes(load)


@commands.command
@on_pipelines
async def status(at: Operator, pipeline: Pipeline, *, json: Json = False) -> None:
    """Show how many states of each stage are fresh, stale, failed or blocked."""
    if pipeline is None:
        found = await at.do(list_pipelines, ListPipelines())
    else:
        found = PipelineList([await at.do(get_pipeline, PipelineRef(name=pipeline))], [])
    if json:
        return print_json(found.items)
    for line in found.items:
        print_pipeline(line)
    return print_problems(found.problems)


@commands.command
@on_pipelines
async def check(at: Operator, pipeline: Pipeline) -> int:
    """Check whether everything is up to date; the status is 1 if it is not."""
    left = 0
    for report in await _plans(at, pipeline, limit=0):
        fresh, others = sum(report.fresh.values()), report.builds + report.holds
        out().print(f"{report.pipeline}: {fresh:,} fresh, {others:,} not")
        left += others
    return 1 if left else 0


@commands.command
@on_pipelines
async def plan(at: Operator, pipeline: Pipeline, *, limit: Shown = 50, json: Json = False) -> None:
    """Show what would be built and why, without building anything; as JSON, with all states."""
    reports = await _plans(at, pipeline, limit=MOST_SHOWN if json else limit)
    if json:
        return print_json(reports)
    for report in reports:
        print_plan(report)
    return None


@commands.command
@on_pipelines
async def history(at: Operator, target: Target, *, limit: Shown = 25, json: Json = False) -> None:
    """List builds, newest first."""
    found: list[Build] = []
    for meant in await find_all(at, target):
        wanted = ListBuilds(name=meant.pipeline, stage=meant.stage, entity=meant.entity)
        found += (await read_pages(at, list_builds, wanted, limit))[0]
    builds = sorted(found, key=lambda build: build.at, reverse=True)[:limit]
    return print_json(builds) if json else print_builds(builds)


@commands.command
@on_pipelines
async def content(
    at: Operator,
    path: Annotated[str, Parameter(help="The path of an input or output: summary/2026-01-15.md.")],
    *,
    pipeline: OneOf = None,
    earlier: Annotated[bool, Parameter(help="What it held before its last builds, and what they changed.")] = False,
    json: Json = False,
) -> None:
    """Show the content of a state or an input."""
    wanted = GetContent(name=await the_pipeline(at, pipeline), path=path)
    if earlier:
        found = await at.do(list_earlier_contents, wanted)
        return print_json(found.items) if json else print_earlier(found.items)
    shown = await at.do(get_content, wanted)
    if json:
        return print_json(shown)
    if shown.text is None:
        return out().print(f"{path} has {shown.size:,} bytes that are not text")
    return out().print(shown.text, markup=False, highlight=False, soft_wrap=True)


@commands.command
@on_pipelines
async def draw(
    at: Operator,
    pipeline: Pipeline,
    *,
    svg: Annotated[bool, Parameter(help="As SVG.")] = False,
    live: Annotated[bool, Parameter(help="With how many states of each stage are fresh, stale or failed.")] = False,
) -> None:
    """Draw pipelines as Mermaid text, or as SVG."""
    for name in await names(at, pipeline):
        graph = await at.do(get_pipeline_graph, GetPipelineGraph(name=name, live=live))
        out().print(graph.svg if svg else graph.mermaid)


@commands.command
@on_pipelines
async def whatif(
    at: Operator,
    what: Annotated[str, Parameter(help="The path of a file, or PIPELINE/STAGE for its function.")],
    *,
    json: Json = False,
) -> None:
    """Show what would be built in all pipelines if a file or a stage's function changed, and how long that took."""
    found = await at.do(preview_change, PreviewChange(what=what))
    return print_json(found) if json else print_change(found)


@commands.command
@on_pipelines
async def lineage(at: Operator, pipeline: Pipeline, *, json: Json = False) -> None:
    """Draw all pipelines as one graph, from sources to ends, as Mermaid text."""
    found = await at.do(get_lineage, Nothing())
    return print_json(found) if json else out().print(draw_lineage(found, pipeline))


@commands.command
def trigger(
    file: Annotated[str, Parameter(help="The workflow file.")],
    payload: Annotated[str, Parameter(help="What it is started with, as JSON.")] = "null",
    /,
    *,
    allow_unknown: AllowUnknown = False,
    connection: ConnectionOptions = HERE,
) -> int:
    """Run a workflow file once, as its webhook or schedule would, and print what each node gave."""
    try:
        given = decode(payload)
    except PayloadError as error:
        raise ConfigError(f"the payload is not JSON: {error}") from error
    loaded = load_workflow(file, allow_unknown=allow_unknown)
    for note in loaded.notes:
        sys.stderr.write(f"warning: {note}\n")
    if not loaded.triggers:
        raise ConfigError(f"{file} is a pipeline, not a workflow that runs once: `tidemill pipeline run {file}`")
    settings = connection.settings()
    for workflow in loaded.triggers:
        print_json(asyncio.run(_run_trigger(workflow, given, settings)))
    return 0


async def _run_trigger(workflow: TriggerWorkflow, payload: Any, settings: Settings) -> dict[str, Any]:
    answer = answer_at_terminal if sys.stdin.isatty() else None
    if not credential_names(workflow.graph.nodes.values()):
        grant_access(settings)
        return await workflow.run(payload, answer=answer)
    require_database(settings)
    async with Database(settings.database(), label="tidemill cli") as database:
        await wait_for_schema(database, patience=2.0)
        grant_access(settings, database)
        return await workflow.run(payload, answer=answer)


async def _plans(at: Operator, pipeline: str | None, *, limit: int) -> list[PlanReport]:
    return [await at.do(plan_pipeline, PlanPipeline(name=name, limit=limit)) for name in await names(at, pipeline)]


async def _run_once(target: PipelineTarget, name: str | None, approve: bool, connection: ConnectionOptions) -> int:
    left = 0
    settings = settings_of(target, connection)
    configure_logs("warning", settings.log_format)
    async with opened(target, connection, create=True) as database:
        grant_access(settings, database)
        for pipeline in _in_order(target.choose(name)):
            began = time.monotonic()
            if approve:
                async with transaction(database, by=operator()) as tx:
                    for stage in pipeline.stages.values():
                        await set_approved(tx, pipeline.name, stage.name, stage.code.total, seconds=APPROVED_FOR)
            driver, found = await bring_up_to_date(database, pipeline)
            took, fresh = time.monotonic() - began, sum(found.fresh.values())
            out().print(f"{pipeline.name}: {fresh:,} fresh, {len(found.steps):,} not, in {took:.2f} s")
            problems = [*driver.pipeline_view.problems, *found.problems]
            if found.steps:
                print_plan(report_plan(PlanPipeline(name=pipeline.name, limit=20), found, problems, datetime.now(UTC)))
            else:
                print_problems(problems)
            left += len(found.steps)
    return 1 if left else 0


def _in_order(pipelines: list[DeclaredPipeline]) -> list[DeclaredPipeline]:
    """Pipelines, each after those that it takes from."""
    stages = check_order([stage for pipeline in pipelines for stage in pipeline.stages.values()])
    last = {id(stage.pipeline): at for at, stage in enumerate(stages)}
    return sorted(pipelines, key=lambda pipeline: last.get(id(pipeline), 0))
