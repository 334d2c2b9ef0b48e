"""`tidemill pipeline`: bring pipelines up to date, and see what is to be built and why."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from cyclopts import App
from rich.progress import Progress

from tidemill.cli.confirm import agreed
from tidemill.cli.pipelinepage import print_counts, print_plan, print_story, step_json, story_json
from tidemill.cli.place import HERE, Place, open_soon, operator, require_database
from tidemill.cli.render import ago, cut, out, plain, print_json, short, table
from tidemill.cli.roles import Part, play
from tidemill.core.duration import parse_rate
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.engine.settings import Settings
from tidemill.pipelines import operate
from tidemill.pipelines.drawing import draw_pipeline, draw_pipeline_svg
from tidemill.pipelines.driver import Driver, run_once
from tidemill.pipelines.model import Pipeline
from tidemill.pipelines.plan import Plan
from tidemill.pipelines.runner import PipelineRunner
from tidemill.pipelines.target import Target, is_workflow, load_target
from tidemill.pipelines.workflows import load_workflow
from tidemill.pipelines.workflows.runner import WorkflowRunner
from tidemill.store import states as rows
from tidemill.store.database import Database
from tidemill.store.migrate import migrate, wait_for_schema

commands = App(name="pipeline", help="Pipelines: what must exist, what is missing or out of date, and why.")

APPROVAL_LASTS = 86400.0


@commands.command
def run(
    app: str,
    pipeline: str | None = None,
    /,
    *,
    once: bool = False,
    approve: bool = False,
    metrics: str | None = None,
    place: Place = HERE,
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
        return asyncio.run(_run_once(load_target(app), pipeline, approve, place))

    def cast() -> Part:
        if is_workflow(app):
            settings = place.settings(metrics=metrics)
            database = Database(settings.database(), application="tidemill pipeline")
            return Part(WorkflowRunner(database, Path(app), keep_days=settings.keep_days), database, settings)
        target = load_target(app)
        settings = _settings(target, place, metrics=metrics)
        if target.app is not None:
            require_database(settings)
        database = Database(settings.database(), application="tidemill pipeline")
        chosen = target.choose(pipeline)
        task_of = target.app.pipelines.task_of if target.app is not None else None
        role = PipelineRunner(database, chosen, task_of, keep_days=settings.keep_days, migrates=target.app is None)
        return Part(role, database, settings)

    return play(cast)


@commands.command
def status(app: str, pipeline: str | None = None, /, *, json: bool = False, place: Place = HERE) -> None:
    """Show how many states of each stage are fresh, stale, failed or waiting.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    pipeline
        Only this one.
    json
        Print one JSON document.
    """

    async def look() -> None:
        told = []
        async for driver, plan in _looks(load_target(app), pipeline, place):
            counted, used = operate.counts(driver, plan), operate.usage(driver)
            paused = {stage: c.paused_by for stage, c in driver.world.controls.items() if c.paused_by}
            if json:
                told.append(
                    {
                        "pipeline": driver.pipeline.name, "root": str(driver.pipeline.root), "stages": counted,
                        "bytes": used, "paused": paused, "problems": [*driver.problems, *plan.problems],
                    }
                )  # fmt: skip
            else:
                print_counts(driver, plan, counted, used, paused)
        if json:
            print_json(told)

    asyncio.run(look())


@commands.command
def check(app: str, pipeline: str | None = None, /, *, place: Place = HERE) -> int:
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
        async for driver, plan in _looks(load_target(app), pipeline, place):
            fresh, left = sum(plan.fresh.values()), len(plan.steps)
            out().print(f"{driver.pipeline.name}: {fresh:,} fresh, {left:,} not")
            stale += left
        return 1 if stale else 0

    return asyncio.run(look())


@commands.command
def plan(app: str, pipeline: str | None = None, /, *, limit: int = 50, json: bool = False, place: Place = HERE) -> None:
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
        async for driver, found in _looks(load_target(app), pipeline, place):
            if json:
                told.append(
                    {
                        "pipeline": driver.pipeline.name,
                        "builds": [step_json(driver, step) for step in found.builds],
                        "holds": [step_json(driver, step) for step in found.holds],
                        "orphans": [f"{stage.name}/{entity}" for stage, entity in found.orphans],
                        "fresh": found.fresh,
                        "problems": [*driver.problems, *found.problems],
                    }
                )
            else:
                print_plan(driver, found, limit)
        if json:
            print_json(told)

    asyncio.run(look())


@commands.command
def explain(app: str, state: str, /, *, json: bool = False, place: Place = HERE) -> None:
    """Tell the whole story of one state: why it is as it is, what it was made from, who takes it, every build.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    state
        The path of an output, STAGE/ENTITY, or PIPELINE/STAGE/ENTITY.
    json
        Print one JSON document.
    """

    async def look() -> None:
        target = load_target(app)
        owner = _owner(target, state)
        async for driver, found in _looks(target, owner.name, place):
            stage, entity = operate.find_state(owner, state)
            story = await operate.explain(driver, found, stage, entity)
            if json:
                print_json(story_json(story))
            else:
                print_story(story)

    asyncio.run(look())


@commands.command
def invalidate(app: str, target: str, /, *, downstream: bool = False, yes: bool = False, place: Place = HERE) -> None:
    """Have states built again, whatever they look like.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    target
        A state (its path, or STAGE/ENTITY), all states of an ENTITY or of a STAGE, or a PIPELINE.
    downstream
        Also all states that are made from them.
    yes
        Do not ask, however many there are.
    """

    async def act() -> None:
        where = load_target(app)
        owner = _owner(where, target)
        async for driver, _ in _looks(where, owner.name, place):
            chosen = operate.select(driver, target)
            if downstream:
                chosen = operate.consumers(driver, chosen)
            if len(chosen) > 10 and not yes and not agreed(f"have {len(chosen)} states built again"):
                return
            done = await operate.invalidate(driver, chosen, by=operator())
            out().print(f"{done} states are built again by whoever keeps pipeline {owner.name} up to date")

    asyncio.run(act())


@commands.command
def retry(app: str, target: str | None = None, /, *, place: Place = HERE) -> None:
    """Try failed and parked states again at once.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    target
        A state (its path, or STAGE/ENTITY), a STAGE or a PIPELINE; all that failed, if not given.
    """

    async def act() -> None:
        where = load_target(app)
        owners = where.pipelines if target is None else [_owner(where, target)]
        for owner in owners:
            async for driver, _ in _looks(where, owner.name, place):
                stage, entities = None, None
                if target is not None and target.removeprefix(f"{owner.name}/") in owner.stages:
                    stage = target.removeprefix(f"{owner.name}/")
                elif target is not None and target != owner.name:
                    known, entity = operate.find_state(owner, target)
                    stage, entities = known.name, [entity]
                done = await rows.retry_failures(driver.database, owner.name, stage, entities, by=operator())
                out().print(f"{owner.name}: {done} failed states are tried again")

    asyncio.run(act())


@commands.command
def accept(app: str, stage: str, /, *, yes: bool = False, place: Place = HERE) -> None:
    """Take a change of a stage's code as one that changes no result: its states count as built by the new code.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    stage
        The stage: STAGE or PIPELINE/STAGE.
    yes
        Do not ask.
    """

    async def act() -> None:
        where = load_target(app)
        owner = _owner(where, stage)
        known = owner.require(stage.removeprefix(f"{owner.name}/"))
        if not yes and not agreed(f"take all states of {known.name} as built by its code of now"):
            return
        async for driver, _ in _looks(where, owner.name, place):
            done = await rows.accept_code(
                driver.database, owner.name, known.name, known.code.total, None, by=operator()
            )
            out().print(f"{done} states of {known.name} count as built by the code of now")

    asyncio.run(act())


@commands.command
def approve(app: str, stage: str, /, *, place: Place = HERE) -> None:
    """Approve that many states of a stage are built again: what `plan` shows as needing approval.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    stage
        The stage: STAGE or PIPELINE/STAGE.
    """

    async def act() -> None:
        where = load_target(app)
        owner = _owner(where, stage)
        known = owner.require(stage.removeprefix(f"{owner.name}/"))
        async for driver, _ in _looks(where, owner.name, place):
            await rows.set_approved(
                driver.database, owner.name, known.name, known.code.total, by=operator(), seconds=APPROVAL_LASTS
            )
        out().print(f"approved for a day: states of {known.name} are built again by its code of now")

    asyncio.run(act())


@commands.command
def pause(app: str, target: str, /, *, place: Place = HERE) -> None:
    """Let a pipeline or a stage build nothing more; what is being built is finished.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    target
        PIPELINE, STAGE or PIPELINE/STAGE.
    """
    asyncio.run(_set_paused(app, target, place, paused=True))


@commands.command
def resume(app: str, target: str, /, *, place: Place = HERE) -> None:
    """Let a paused pipeline or stage go on.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    target
        PIPELINE, STAGE or PIPELINE/STAGE.
    """
    asyncio.run(_set_paused(app, target, place, paused=False))


@commands.command
def backfill(
    app: str,
    stage: str,
    /,
    *,
    first: str | None = None,
    last: str | None = None,
    rate: str | None = None,
    downstream: bool = False,
    place: Place = HERE,
) -> None:
    """Have a range of a stage's states built again, some at a time.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    stage
        The stage: STAGE or PIPELINE/STAGE.
    first
        The first entity, such as 2026-01-01; from the beginning, if not given.
    last
        The last entity; to the end, if not given.
    rate
        How fast: 10/s, 100/m. At once, if not given.
    downstream
        Also all states that are made from them.
    """

    async def act() -> None:
        where = load_target(app)
        owner = _owner(where, stage)
        known = owner.require(stage.removeprefix(f"{owner.name}/"))
        async for driver, _ in _looks(where, owner.name, place):
            entities = operate.in_range(known, driver.world.records[known.name], first, last)
            per_second = None if rate is None else parse_rate(rate, what="rate")
            size = len(entities) if per_second is None else max(1, round(per_second / 4))
            with Progress(console=out()) as progress:
                bar = progress.add_task(f"{owner.name}/{known.name}", total=len(entities))
                for start in range(0, len(entities), size or 1):
                    chosen = [(known, entity) for entity in entities[start : start + size]]
                    if downstream:
                        chosen = operate.consumers(driver, chosen)
                    await operate.invalidate(driver, chosen, by=operator())
                    progress.advance(bar, min(size, len(entities) - start))
                    if per_second is not None and start + size < len(entities):
                        await asyncio.sleep(size / per_second)
            out().print(f"{len(entities)} states of {known.name} are built again")

    asyncio.run(act())


@commands.command
def clean(
    app: str, pipeline: str | None = None, /, *, how: str | None = None, yes: bool = False, place: Place = HERE
) -> None:
    """List outputs whose inputs are gone, and archive or delete them as their stages want.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    pipeline
        Only this one.
    how
        Whatever the stages want: keep, archive or delete.
    yes
        Do it; without, they are only listed.
    """
    if how not in (None, "keep", "archive", "delete"):
        raise ConfigError(f"--how {how} is not one of keep, archive, delete")

    async def act() -> None:
        async for driver, found in _looks(load_target(app), pipeline, place):
            for stage, entity in found.orphans:
                for path in operate.output_paths(driver, stage, entity):
                    out().print(f"{how or stage.options.on_orphan:<8} {path}")
            if not found.orphans:
                out().print(f"{driver.pipeline.name}: no orphans", style="dim")
            elif yes:
                done = await operate.clean(driver, found, how=how)
                told = ", ".join(f"{len(paths)} {word}" for word, paths in done.items() if paths)
                out().print(f"{driver.pipeline.name}: done ({told})")
            else:
                out().print("nothing was done: add --yes", style="dim")

    asyncio.run(act())


@commands.command
def history(
    app: str, target: str | None = None, /, *, limit: int = 25, json: bool = False, place: Place = HERE
) -> None:
    """List builds, the newest first.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them.
    target
        A state (its path, or STAGE/ENTITY), a STAGE or a PIPELINE; all, if not given.
    limit
        How many to show.
    json
        Print one JSON document.
    """

    async def look() -> list[dict[str, Any]]:
        where = load_target(app)
        owners = where.pipelines if target is None else [_owner(where, target)]
        found: list[dict[str, Any]] = []
        async with _opened(where, place) as database:
            for owner in owners:
                stage = entity = None
                rest = "" if target is None else target.removeprefix(f"{owner.name}/")
                if rest in owner.stages:
                    stage = rest
                elif target is not None and target != owner.name:
                    known, entity = operate.find_state(owner, target)
                    stage = known.name
                found += [dict(row) for row in await rows.list_builds(database, owner.name, stage, entity, limit=limit)]
        return sorted(found, key=lambda row: row["at"], reverse=True)[:limit]

    builds = asyncio.run(look())
    if json:
        return print_json([plain(row) for row in builds])
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
    app: str, pipeline: str | None = None, /, *, svg: bool = False, live: bool = False, place: Place = HERE
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
    target = load_target(app)
    if live:

        async def look() -> None:
            async for driver, found in _looks(target, pipeline, place):
                out().print(draw_pipeline(driver.pipeline, operate.counts(driver, found)))

        return asyncio.run(look())
    for each in target.choose(pipeline):
        out().print(draw_pipeline_svg(each) if svg else draw_pipeline(each))
    return None


# -- inner parts ----------------------------------------------------------------------------------------


def _settings(target: Target, place: Place, **more: Any) -> Settings:
    if target.app is None:
        return place.settings(**more)
    target.app.configure(**place.arguments(), **more)
    return target.app.settings


@contextlib.asynccontextmanager
async def _opened(target: Target, place: Place, *, create: bool = False) -> AsyncIterator[Database]:
    settings = _settings(target, place)
    if not create:
        require_database(settings)
    database = Database(settings.database(), application="tidemill cli")
    try:
        await open_soon(database)
        if create:
            await migrate(database)
        await wait_for_schema(database, patience=2.0)
        yield database
    finally:
        await database.close()


async def _looks(target: Target, name: str | None, place: Place) -> AsyncIterator[tuple[Driver, Plan]]:
    """Each pipeline with what is known of it and what is to be done about it; nothing is changed."""
    async with _opened(target, place, create=target.app is None) as database:
        for pipeline in target.choose(name):
            driver = Driver(database, pipeline)
            await driver.load()
            await driver.survey()
            await driver.settle()
            yield driver, driver.plan()


async def _run_once(target: Target, name: str | None, approve: bool, place: Place) -> int:
    left = 0
    async with _opened(target, place, create=True) as database:
        for pipeline in _in_order(target.choose(name)):
            began = time.monotonic()
            driver = Driver(database, pipeline)
            if approve:
                for stage in driver.order:
                    await rows.set_approved(
                        database, pipeline.name, stage.name, stage.code.total, by=operator(), seconds=APPROVAL_LASTS
                    )
            found = await run_once(driver)
            took, fresh = time.monotonic() - began, sum(found.fresh.values())
            out().print(f"{pipeline.name}: {fresh:,} fresh, {len(found.steps):,} not, in {took:.2f} s")
            for problem in (*driver.problems, *found.problems, *([driver.trouble] if driver.trouble else [])):
                out().print(f"  {problem}", style="red")
            if found.steps:
                print_plan(driver, found, 20)
            left += len(found.steps)
    return 1 if left else 0


def _in_order(pipelines: list[Pipeline]) -> list[Pipeline]:
    """Pipelines with those first that others take from."""
    from tidemill.pipelines.model import check_order

    stages = check_order([stage for pipeline in pipelines for stage in pipeline.stages.values()])
    last = {id(stage.pipeline): at for at, stage in enumerate(stages)}
    return sorted(pipelines, key=lambda pipeline: last.get(id(pipeline), 0))


async def _set_paused(app: str, target: str, place: Place, *, paused: bool) -> None:
    where = load_target(app)
    owner = _owner(where, target)
    stage = "" if target == owner.name else owner.require(target.removeprefix(f"{owner.name}/")).name
    async with _opened(where, place) as database:
        await rows.set_paused(database, owner.name, stage, paused=paused, by=operator())
    out().print(f"{target} {'is paused' if paused else 'goes on'}")


def _owner(target: Target, text: str) -> Pipeline:
    """The pipeline that a target on the command line belongs to."""
    by_name = [one for one in target.pipelines if text == one.name or text.startswith(f"{one.name}/")]
    if by_name:
        return by_name[0]
    tests: list[Callable[[Pipeline], bool]] = [
        lambda one: text.partition("/")[0] in one.stages,
        lambda one: any(stage.output.values(text) is not None for stage in one.stages.values()),
    ]
    for test in tests:
        found = [one for one in target.pipelines if test(one)]
        if len(found) > 1:
            names = ", ".join(one.name for one in found)
            raise ConfigError(f"{text!r} could be of several pipelines ({names}): write PIPELINE/{text}")
        if found:
            return found[0]
    if len(target.pipelines) == 1:
        return target.pipelines[0]
    names = ", ".join(one.name for one in target.pipelines)
    raise ConfigError(f"{text!r} is of no pipeline; there are: {names}")
