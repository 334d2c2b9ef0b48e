"""`tidemill pipeline`: bring pipelines up to date, and see what is to be built and why."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from cyclopts import App

from tidemill.cli.connection_options import ANYWHERE, HERE, ConnectionOptions, ServerOptions, operator, require_database
from tidemill.cli.pipelines import remote
from tidemill.cli.pipelines.actions import COMMANDS
from tidemill.cli.pipelines.open import APPROVAL_LASTS, local_target, looks, named, opened, owner_of, settings_of
from tidemill.cli.pipelines.page import print_counts, print_plan, print_story, step_json, story_json
from tidemill.cli.render import ago, cut, out, print_json, short, table
from tidemill.cli.run.roles import Part, play
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.engine.logs import configure_logs
from tidemill.engine.role import Role
from tidemill.pipelines.definition.load_target import PipelineTarget, is_workflow, load_target
from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.runner import operate
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.pipelines.runner.runner import PipelineRunner
from tidemill.pipelines.runner.running_builds import builds_under_way
from tidemill.pipelines.view.drawing import draw_pipeline, draw_pipeline_svg
from tidemill.pipelines.view.pipeline_view import look_at
from tidemill.pipelines.workflows import load_workflow
from tidemill.pipelines.workflows.folder import read_folder
from tidemill.pipelines.workflows.runner import WorkflowRunner
from tidemill.store.database import Database
from tidemill.store.migrate import OWN_CHAIN
from tidemill.store.states.history import list_builds
from tidemill.store.states.requests import set_approved

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
        return asyncio.run(_run_once(local_target(app, place), pipeline, approve, place))

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
    app: str | None = None, pipeline: str | None = None, /, *, json: bool = False, place: ServerOptions = ANYWHERE
) -> None:
    """Show how many states of each stage are fresh, stale, failed or waiting.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. A server has them:
        leave it out.
    pipeline
        Only this one.
    json
        Print one JSON document.
    """

    if place.server_url is not None:
        with place.remote() as server:
            told = remote.status(server, remote.only_word(app, pipeline))
    else:
        told = asyncio.run(_stand(load_target(named(app, "APP")), pipeline, place))
    if json:
        return print_json(told)
    for each in told:
        print_counts(each)
    return None


@commands.command
def check(app: str, pipeline: str | None = None, /, *, place: ConnectionOptions = HERE) -> int:
    """Say whether everything is up to date; the status is 1 if it is not.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    pipeline
        Only this one.
    """

    async def look() -> int:
        stale = 0
        async for pipeline_view, plan in looks(local_target(app, place), pipeline, place):
            fresh, left = sum(plan.fresh.values()), len(plan.steps)
            out().print(f"{pipeline_view.pipeline.name}: {fresh:,} fresh, {left:,} not")
            stale += left
        return 1 if stale else 0

    return asyncio.run(look())


@commands.command
def plan(
    app: str, pipeline: str | None = None, /, *, limit: int = 50, json: bool = False, place: ConnectionOptions = HERE
) -> None:
    """Say for every state what would be built and why, without building anything.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    pipeline
        Only this one.
    limit
        How many states to show.
    json
        Print one JSON document, with all of them.
    """

    async def look() -> None:
        told = []
        async for pipeline_view, found in looks(local_target(app, place), pipeline, place):
            if json:
                told.append(
                    {
                        "pipeline": pipeline_view.pipeline.name,
                        "builds": [step_json(step) for step in found.builds],
                        "holds": [step_json(step) for step in found.holds],
                        "orphans": [f"{stage.name}/{entity}" for stage, entity in found.orphans],
                        "fresh": found.fresh,
                        "problems": [*pipeline_view.problems, *found.problems],
                    }
                )
            else:
                print_plan(pipeline_view, found, limit)
        if json:
            print_json(told)

    asyncio.run(look())


@commands.command
def explain(app: str, state: str | None = None, /, *, json: bool = False, place: ServerOptions = ANYWHERE) -> None:
    """Tell the whole story of one state: why it is as it is, what it was made from, who takes it, every build.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. A server has them:
        leave it out.
    state
        The path of an output, STAGE/ENTITY, or PIPELINE/STAGE/ENTITY.
    json
        Print one JSON document.
    """

    async def stored(wanted: str) -> operate.StateStory:
        target = load_target(app)
        owner = owner_of(target, wanted)
        stage, entity = operate.find_state(owner, wanted)
        async with opened(target, place, create=target.app is None) as database:
            pipeline_view, found = await look_at(database, owner)
            return await operate.explain(pipeline_view, found, stage, entity, others=target.pipelines)

    if place.server_url is not None:
        with place.remote() as server:
            story = remote.story(server, remote.only_word(app, state) or "")
    else:
        story = asyncio.run(stored(named(state, "STATE")))
    return print_json(story_json(story)) if json else print_story(story)


@commands.command
def history(
    app: str | None = None,
    target: str | None = None,
    /,
    *,
    limit: int = 25,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """List builds, the newest first.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. A server has them:
        leave it out.
    target
        A state (its path, or STAGE/ENTITY), a STAGE or a PIPELINE; all, if not given.
    limit
        How many to show.
    json
        Print one JSON document.
    """

    async def stored() -> list[dict[str, Any]]:
        where = load_target(named(app, "APP"))
        owners = where.pipelines if target is None else [owner_of(where, target)]
        found: list[dict[str, Any]] = []
        async with opened(where, place) as database:
            for owner in owners:
                stage = entity = None
                rest = "" if target is None else target.removeprefix(f"{owner.name}/")
                if rest in owner.stages:
                    stage = rest
                elif target is not None and target != owner.name:
                    known, entity = operate.find_state(owner, target)
                    stage = known.name
                found += [dict(row) for row in await list_builds(database, owner.name, stage, entity, limit=limit)]
        return sorted(found, key=lambda row: row["at"], reverse=True)[:limit]

    if place.server_url is not None:
        with place.remote() as server:
            builds = remote.history(server, remote.only_word(app, target), limit)
    else:
        builds = asyncio.run(stored())
    if json:
        return print_json(builds)
    made = table("when", "state", "outcome", "took", "size", "by", "why", numbers=("took", "size"), wide="why")
    for row in builds:
        made.add_row(
            ago(row["at"]), f"{row['stage']}/{row['entity']}", row["outcome"],
            "" if row["took"] is None else short(row["took"]), "" if row["size"] is None else f"{row['size']:,}",
            row["built_by"] or "", cut(row["log"] if row["outcome"] == "failed" else row["reason"]),
        )  # fmt: skip
    return out().print(made)


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
    app: str, pipeline: str | None = None, /, *, svg: bool = False, live: bool = False, place: ConnectionOptions = HERE
) -> None:
    """Draw pipelines as Mermaid text, or as SVG.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    pipeline
        Only this one.
    svg
        As SVG.
    live
        With how many states of each stage are fresh, stale or failed.
    """
    target = local_target(app, place) if live else load_target(app)
    if live:

        async def look() -> None:
            async for pipeline_view, found in looks(target, pipeline, place):
                out().print(draw_pipeline(pipeline_view.pipeline, operate.counts(pipeline_view, found)))

        return asyncio.run(look())
    for each in target.choose(pipeline):
        out().print(draw_pipeline_svg(each) if svg else draw_pipeline(each))
    return None


async def _stand(target: PipelineTarget, name: str | None, place: ConnectionOptions) -> list[dict[str, Any]]:
    """How pipelines are."""
    told: list[dict[str, Any]] = []
    async for pipeline_view, plan in looks(target, name, place):
        jobs = await builds_under_way(pipeline_view.database, pipeline_view.pipeline, pipeline_view.order)
        paused = {stage: c.paused_by for stage, c in pipeline_view.world.controls.items() if c.paused_by}
        told.append(
            {
                "pipeline": pipeline_view.pipeline.name, "root": str(pipeline_view.pipeline.root),
                "stages": operate.counts(pipeline_view, plan, jobs),
                "bytes": operate.usage(pipeline_view), "paused": paused,
                "problems": [*pipeline_view.problems, *plan.problems], "notes": list(pipeline_view.notes),
            }
        )  # fmt: skip
    return told


async def _run_once(target: PipelineTarget, name: str | None, approve: bool, place: ConnectionOptions) -> int:
    left = 0
    configure_logs("warning", settings_of(target, place).log_format)
    async with opened(target, place, create=True) as database:
        for pipeline in _in_order(target.choose(name)):
            began = time.monotonic()
            driver = Driver(database, pipeline)
            if approve:
                for stage in driver.pipeline_view.order:
                    await set_approved(
                        database, pipeline.name, stage.name, stage.code.total, by=operator(), seconds=APPROVAL_LASTS
                    )
            found = await run_once(driver)
            took, fresh = time.monotonic() - began, sum(found.fresh.values())
            out().print(f"{pipeline.name}: {fresh:,} fresh, {len(found.steps):,} not, in {took:.2f} s")
            for problem in (
                *driver.pipeline_view.problems,
                *found.problems,
                *([driver.trouble] if driver.trouble else []),
            ):
                out().print(f"  {problem}", style="red")
            if found.steps:
                print_plan(driver.pipeline_view, found, 20)
            left += len(found.steps)
    return 1 if left else 0


def _in_order(pipelines: list[Pipeline]) -> list[Pipeline]:
    """Pipelines with those first that others take from."""
    from tidemill.pipelines.definition.pipeline import check_order

    stages = check_order([stage for pipeline in pipelines for stage in pipeline.stages.values()])
    last = {id(stage.pipeline): at for at, stage in enumerate(stages)}
    return sorted(pipelines, key=lambda pipeline: last.get(id(pipeline), 0))
