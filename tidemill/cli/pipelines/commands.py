"""`tidemill pipeline`: bring pipelines up to date, and see what would be built and why."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

from cyclopts import App

from tidemill.cli.connection_options import ANYWHERE, HERE, ConnectionOptions, ServerOptions, operator, require_database
from tidemill.cli.paging import read_pages
from tidemill.cli.pipelines.actions import COMMANDS
from tidemill.cli.pipelines.open import AppArgument, Work, find_all, find_state, names, opened, settings_of
from tidemill.cli.pipelines.page import print_builds, print_pipeline, print_plan, print_problems, print_state
from tidemill.cli.render import out, print_json
from tidemill.cli.run.roles import Part, play
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.engine.logs import configure_logs
from tidemill.engine.role import Role
from tidemill.ops.operator.operation import Operator
from tidemill.ops.pipelines.change import APPROVED_FOR
from tidemill.ops.pipelines.read import (
    MOST_SHOWN,
    GetPipelineGraph,
    GetState,
    ListBuilds,
    ListPipelines,
    PipelineGraph,
    PipelineList,
    PipelineRef,
    PlanPipeline,
    PlanReport,
    get_pipeline,
    get_pipeline_graph,
    get_state,
    list_builds,
    list_pipelines,
    plan_pipeline,
    report_plan,
)
from tidemill.pipelines.definition.load_target import PipelineTarget, is_workflow, load_target
from tidemill.pipelines.definition.pipeline import Pipeline, check_order
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.pipelines.runner.runner import PipelineRunner
from tidemill.pipelines.view.state_details import Build, StateDetails
from tidemill.pipelines.workflows import load_workflow
from tidemill.pipelines.workflows.folder import read_folder
from tidemill.pipelines.workflows.runner import WorkflowRunner
from tidemill.store.database import Database
from tidemill.store.migrate import OWN_CHAIN
from tidemill.store.states.requests import set_approved
from tidemill.store.transaction import transaction

commands = App(name="pipeline", help="Pipelines: what must exist, what is missing or out of date, and why.")
for command in COMMANDS:
    commands.command(command)


@commands.command
def run(
    app: str,
    pipeline: str | None = None,
    /,
    *,
    once: bool = False,
    approve: bool = False,
    metrics: str | None = None,
    place: ConnectionOptions = HERE,
) -> int:
    """Keep pipelines up to date until stopped; with --once, bring them up to date and end.

    Parameters
    ----------
    app
        Where they are declared: app.py, package.module, a workflow file or a folder of workflow files.
    pipeline
        Only this one.
    once
        Build here and now what is missing or out of date, and end. The status is 1 if something is left undone.
    approve
        Also build what would wait for approval because it is so much.
    metrics
        Serve Prometheus metrics at this address, such as 127.0.0.1:9464.
    """
    if once:
        place.arguments()  # A server that is named is an error, before anything is loaded.
        return asyncio.run(_run_once(load_target(app), pipeline, approve, place))

    def make() -> Part:
        if is_workflow(app):
            settings = place.settings(metrics=metrics)
            database = Database(settings.database(), label="tidemill pipeline")
            folder = read_folder(Path(app))
            runner = WorkflowRunner(database, folder, keep_days=settings.keep_days)
            return Part(Role(runner, database, migrations=(OWN_CHAIN,)), database, settings)
        target = load_target(app)
        settings = settings_of(target, place, metrics=metrics)
        if target.app is not None:
            require_database(settings)
        database = Database(settings.database(), label="tidemill pipeline")
        if target.app is not None and pipeline is None:
            role = target.app.pipelines.runner(database, keep_days=settings.keep_days)
            return Part(role, database, settings)
        chosen = target.choose(pipeline)
        task_of = target.app.pipelines.task_of if target.app is not None else None
        runner = PipelineRunner(database, chosen, task_of, keep_days=settings.keep_days)
        migrations = (OWN_CHAIN,) if target.app is None else ()
        return Part(Role(runner, database, migrations=migrations), database, settings)

    return play(make)


@commands.command
def status(
    app: AppArgument = None, pipeline: str | None = None, /, *, json: bool = False, place: ServerOptions = ANYWHERE
) -> None:
    """Show how many states of each stage are fresh, stale, failed or blocked.

    Parameters
    ----------
    pipeline
        Only this one.
    json
        Print one JSON document.
    """
    work = Work(app, pipeline, place)

    async def read(at: Operator) -> PipelineList:
        if work.word is None:
            return await at.do(list_pipelines, ListPipelines())
        return PipelineList([await at.do(get_pipeline, PipelineRef(name=work.word))], [])

    found = work.run(read)
    if json:
        return print_json(found.items)
    for line in found.items:
        print_pipeline(line)
    return print_problems(found.problems)


@commands.command
def check(app: AppArgument = None, pipeline: str | None = None, /, *, place: ServerOptions = ANYWHERE) -> int:
    """Check whether everything is up to date; the status is 1 if it is not.

    Parameters
    ----------
    pipeline
        Only this one.
    """
    left = 0
    for report in _plans(Work(app, pipeline, place), limit=0):
        fresh, others = sum(report.fresh.values()), report.builds + report.holds
        out().print(f"{report.pipeline}: {fresh:,} fresh, {others:,} not")
        left += others
    return 1 if left else 0


@commands.command
def plan(
    app: AppArgument = None,
    pipeline: str | None = None,
    /,
    *,
    limit: int = 50,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """Show what would be built and why, without building anything.

    Parameters
    ----------
    pipeline
        Only this one.
    limit
        How many states to show.
    json
        Print one JSON document, with all of them.
    """
    reports = _plans(Work(app, pipeline, place), limit=MOST_SHOWN if json else limit)
    if json:
        return print_json(reports)
    for report in reports:
        print_plan(report)
    return None


@commands.command
def explain(
    app: AppArgument = None, state: str | None = None, /, *, json: bool = False, place: ServerOptions = ANYWHERE
) -> None:
    """Explain one state: why it has its standing, what it is made from, what is made from it, and every build.

    Parameters
    ----------
    state
        The path of an output, STAGE/ENTITY, or PIPELINE/STAGE/ENTITY.
    json
        Print one JSON document.
    """
    work = Work(app, state, place)
    word = work.require_word("STATE")

    async def read(at: Operator) -> StateDetails:
        meant = await find_state(at, word)
        wanted = GetState(name=meant.pipeline, stage=meant.stage or "", entity=meant.entity or "", follow=True)
        return await at.do(get_state, wanted)

    found = work.run(read)
    return print_json(found) if json else print_state(found)


@commands.command
def history(
    app: AppArgument = None,
    target: str | None = None,
    /,
    *,
    limit: int = 25,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """List builds, newest first.

    Parameters
    ----------
    target
        A state (its path, or STAGE/ENTITY), a STAGE or a PIPELINE; all, if not given.
    limit
        How many to show.
    json
        Print one JSON document.
    """
    work = Work(app, target, place)

    async def read(at: Operator) -> list[Build]:
        found: list[Build] = []
        for meant in await find_all(at, work.word):
            wanted = ListBuilds(name=meant.pipeline, stage=meant.stage, entity=meant.entity)
            found += (await read_pages(at, list_builds, wanted, limit))[0]
        return sorted(found, key=lambda build: build.at, reverse=True)[:limit]

    builds = work.run(read)
    return print_json(builds) if json else print_builds(builds)


@commands.command
def trigger(file: str, payload: str = "null", /) -> int:
    """Run a workflow file once, as its webhook or schedule would, and print what each node gave.

    Parameters
    ----------
    file
        The workflow file.
    payload
        What it is started with, as JSON.
    """
    try:
        given = decode(payload)
    except PayloadError as error:
        raise ConfigError(f"the payload is not JSON: {error}") from error
    loaded = load_workflow(file)
    if not loaded.triggers:
        raise ConfigError(f"{file} is a pipeline, and nothing that is run once: `tidemill pipeline run {file}`")
    for workflow in loaded.triggers:
        print_json(asyncio.run(workflow.run(given)))
    return 0


@commands.command
def draw(
    app: AppArgument = None,
    pipeline: str | None = None,
    /,
    *,
    svg: bool = False,
    live: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """Draw pipelines as Mermaid text, or as SVG.

    Parameters
    ----------
    pipeline
        Only this one.
    svg
        As SVG.
    live
        With how many states of each stage are fresh, stale or failed.
    """
    work = Work(app, pipeline, place)

    async def read(at: Operator) -> list[PipelineGraph]:
        every = await names(at, work.word)
        return [await at.do(get_pipeline_graph, GetPipelineGraph(name=name, live=live)) for name in every]

    for graph in work.run(read, live=live):
        out().print(graph.svg if svg else graph.mermaid)


def _plans(work: Work, *, limit: int) -> list[PlanReport]:
    async def read(at: Operator) -> list[PlanReport]:
        every = await names(at, work.word)
        return [await at.do(plan_pipeline, PlanPipeline(name=name, limit=limit)) for name in every]

    return work.run(read)


async def _run_once(target: PipelineTarget, name: str | None, approve: bool, place: ConnectionOptions) -> int:
    left = 0
    configure_logs("warning", settings_of(target, place).log_format)
    async with opened(target, place, create=True) as database:
        for pipeline in _in_order(target.choose(name)):
            began = time.monotonic()
            driver = Driver(database, pipeline)
            if approve:
                async with transaction(database, by=operator()) as tx:
                    for stage in driver.pipeline_view.order:
                        await set_approved(tx, pipeline.name, stage.name, stage.code.total, seconds=APPROVED_FOR)
            found = await run_once(driver)
            took, fresh = time.monotonic() - began, sum(found.fresh.values())
            out().print(f"{pipeline.name}: {fresh:,} fresh, {len(found.steps):,} not, in {took:.2f} s")
            problems = [*driver.pipeline_view.problems, *found.problems, *([driver.trouble] if driver.trouble else [])]
            if found.steps:
                print_plan(report_plan(PlanPipeline(name=pipeline.name, limit=20), found, problems, datetime.now(UTC)))
            else:
                print_problems(problems)
            left += len(found.steps)
    return 1 if left else 0


def _in_order(pipelines: list[Pipeline]) -> list[Pipeline]:
    """Pipelines, each after those that it takes from."""
    stages = check_order([stage for pipeline in pipelines for stage in pipeline.stages.values()])
    last = {id(stage.pipeline): at for at, stage in enumerate(stages)}
    return sorted(pipelines, key=lambda pipeline: last.get(id(pipeline), 0))
