"""`tidemill pipeline` for those who act: invalidate, retry, approve, pause, backfill, clean."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from rich.progress import Progress, TaskID

from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, HERE, ConnectionOptions, ServerOptions, operator
from tidemill.cli.pipelines import remote
from tidemill.cli.pipelines.open import APPROVAL_LASTS, local_target, looks, named, opened, owner_of
from tidemill.cli.render import out
from tidemill.core.duration import parse_rate
from tidemill.core.errors import ConfigError
from tidemill.pipelines.definition.load_target import load_target
from tidemill.pipelines.runner import operate
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.store.states.build_jobs import is_kept
from tidemill.store.states.requests import accept_code, count_marked, retry_failures, set_approved, set_paused

LOOK_EVERY = 0.5


def invalidate(
    app: str,
    target: str | None = None,
    /,
    *,
    downstream: bool = False,
    yes: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """Have states built again, whatever they look like.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. A server has them:
        leave it out.
    target
        A state (its path, or STAGE/ENTITY), all states of an ENTITY or of a STAGE, or a PIPELINE.
    downstream
        Also all states that are made from them.
    yes
        Do not ask, however many there are.
    """

    async def stored(target: str) -> None:
        where = load_target(app)
        owner = owner_of(where, target)
        async for pipeline_view, _ in looks(where, owner.name, place):
            chosen = operate.select(pipeline_view, target)
            if downstream:
                chosen = operate.consumers(pipeline_view, chosen)
            if len(chosen) > 10 and not yes and not agreed(f"have {len(chosen)} states built again"):
                return
            done = await operate.invalidate(pipeline_view, chosen, by=operator())
            out().print(f"{done} states are built again by whoever keeps pipeline {owner.name} up to date")

    if place.server_url is None:
        return asyncio.run(stored(named(target, "TARGET")))
    with place.remote() as server:
        return remote.invalidate(server, remote.only_word(app, target) or "", downstream=downstream, yes=yes)


def retry(app: str | None = None, target: str | None = None, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Try failed states again, also those that need attention, at once.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. A server has them:
        leave it out.
    target
        A state (its path, or STAGE/ENTITY), a STAGE or a PIPELINE; all that failed, if not given.
    """

    async def stored() -> None:
        where = load_target(named(app, "APP"))
        owners = where.pipelines if target is None else [owner_of(where, target)]
        for owner in owners:
            async for pipeline_view, _ in looks(where, owner.name, place):
                stage, entities = None, None
                if target is not None and target.removeprefix(f"{owner.name}/") in owner.stages:
                    stage = target.removeprefix(f"{owner.name}/")
                elif target is not None and target != owner.name:
                    known, entity = operate.find_state(owner, target)
                    stage, entities = known.name, [entity]
                done = await retry_failures(pipeline_view.database, owner.name, stage, entities, by=operator())
                out().print(f"{owner.name}: {done} failed states are tried again")

    if place.server_url is None:
        return asyncio.run(stored())
    with place.remote() as server:
        return remote.retry(server, remote.only_word(app, target))


def accept(app: str, stage: str | None = None, /, *, yes: bool = False, place: ServerOptions = ANYWHERE) -> None:
    """Take a change of a stage's code as one that changes no result: its states count as built by the new code.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. A server has them:
        leave it out.
    stage
        The stage: STAGE or PIPELINE/STAGE.
    yes
        Do not ask.
    """

    async def stored(stage: str) -> None:
        where = load_target(app)
        owner = owner_of(where, stage)
        known = owner.require(stage.removeprefix(f"{owner.name}/"))
        if not yes and not agreed(f"take all states of {known.name} as built by its code of now"):
            return
        async for pipeline_view, _ in looks(where, owner.name, place):
            done = await accept_code(
                pipeline_view.database, owner.name, known.name, known.code.total, None, by=operator()
            )
            out().print(f"{done} states of {known.name} count as built by the code of now")

    if place.server_url is None:
        return asyncio.run(stored(named(stage, "STAGE")))
    with place.remote() as server:
        return remote.accept(server, remote.only_word(app, stage) or "", yes=yes)


def approve(app: str, stage: str | None = None, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Approve that many states of a stage are built again: what `plan` shows as needing approval.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. A server has them:
        leave it out.
    stage
        The stage: STAGE or PIPELINE/STAGE.
    """

    async def stored(stage: str) -> None:
        where = load_target(app)
        owner = owner_of(where, stage)
        known = owner.require(stage.removeprefix(f"{owner.name}/"))
        async for pipeline_view, _ in looks(where, owner.name, place):
            await set_approved(
                pipeline_view.database, owner.name, known.name, known.code.total, by=operator(), seconds=APPROVAL_LASTS
            )
        out().print(f"approved for a day: states of {known.name} are built again by its code of now")

    if place.server_url is None:
        return asyncio.run(stored(named(stage, "STAGE")))
    with place.remote() as server:
        return remote.approve(server, remote.only_word(app, stage) or "")


def pause(app: str, target: str | None = None, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Let a pipeline or a stage build nothing more; what is being built is finished.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. A server has them:
        leave it out.
    target
        PIPELINE, STAGE or PIPELINE/STAGE.
    """
    _set_paused(app, target, place, paused=True)


def resume(app: str, target: str | None = None, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Let a paused pipeline or stage go on.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. A server has them:
        leave it out.
    target
        PIPELINE, STAGE or PIPELINE/STAGE.
    """
    _set_paused(app, target, place, paused=False)


def backfill(
    app: str,
    stage: str | None = None,
    /,
    *,
    first: str | None = None,
    last: str | None = None,
    rate: str | None = None,
    downstream: bool = False,
    wait: bool = False,
    place: ServerOptions = ANYWHERE,
) -> int:
    """Have a range of a stage's states built again, some at a time.

    Parameters
    ----------
    app
        Where pipelines are declared: app.py, package.module, a workflow file or a folder of them. A server has them:
        leave it out.
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
    wait
        Show how far it is until all are built; the status is 1 if some fail.
    """

    async def stored(stage: str) -> int:
        where = load_target(app)
        owner = owner_of(where, stage)
        known = owner.require(stage.removeprefix(f"{owner.name}/"))
        mark = f"{operator()} (backfill of {known.name} at {datetime.now(UTC):%Y-%m-%d %H:%M:%S})"
        failed = 0
        async for pipeline_view, _ in looks(where, owner.name, place):
            entities = operate.in_range(known, pipeline_view.world.records[known.name], first, last)
            per_second = None if rate is None else parse_rate(rate, what="rate")
            size = len(entities) if per_second is None else max(1, round(per_second / 4))
            asked = 0
            with Progress(console=out()) as progress:
                bar = progress.add_task(f"{owner.name}/{known.name}", total=len(entities))
                for start in range(0, len(entities), size or 1):
                    chosen = [(known, entity) for entity in entities[start : start + size]]
                    if downstream:
                        chosen = operate.consumers(pipeline_view, chosen)
                    asked += await operate.invalidate(pipeline_view, chosen, by=mark)
                    if not wait:
                        progress.advance(bar, min(size, len(entities) - start))
                    if per_second is not None and start + size < len(entities):
                        await asyncio.sleep(size / per_second)
                if wait:
                    progress.update(bar, total=asked)
                    failed = await _follow(pipeline_view, mark, progress, bar, asked)
            out().print(f"{len(entities)} states of {known.name} {'were' if wait else 'are'} built again")
            if failed:
                out().print(f"{failed} of them failed: see `tidemill pipeline status`", style="red")
        return 1 if failed else 0

    if place.server_url is None:
        return asyncio.run(stored(named(stage, "STAGE")))
    with place.remote() as server:
        wanted = {"first": first, "last": last, "downstream": downstream, "rate": rate}
        return remote.backfill(server, remote.only_word(app, stage) or "", wanted, wait=wait)


async def _follow(pipeline_view: PipelineView, mark: str, progress: Progress, bar: TaskID, asked: int) -> int:
    """Show how far a backfill is until nothing is left of it but what has failed; returns how many that are."""
    while True:
        if not await is_kept(pipeline_view.database, pipeline_view.pipeline.name):
            raise ConfigError(
                f"nobody keeps pipeline {pipeline_view.pipeline.name} up to date: it goes on when `tidemill up` or "
                "`tidemill pipeline run` does"
            )
        left, failed = await count_marked(pipeline_view.database, pipeline_view.pipeline.name, mark)
        progress.update(bar, completed=asked - left)
        if left == failed:
            return failed
        await asyncio.sleep(LOOK_EVERY)


def clean(
    app: str,
    pipeline: str | None = None,
    /,
    *,
    how: str | None = None,
    yes: bool = False,
    place: ConnectionOptions = HERE,
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
        async for pipeline_view, found in looks(local_target(app, place), pipeline, place):
            for stage, entity in found.orphans:
                for path in operate.output_paths(pipeline_view, stage, entity):
                    out().print(f"{how or stage.options.on_orphan:<8} {path}")
            if not found.orphans:
                out().print(f"{pipeline_view.pipeline.name}: no orphans", style="dim")
            elif yes:
                done = await operate.clean(pipeline_view, found, how=how)
                told = ", ".join(f"{len(paths)} {word}" for word, paths in done.items() if paths)
                out().print(f"{pipeline_view.pipeline.name}: done ({told})")
            else:
                out().print("nothing was done: add --yes", style="dim")

    asyncio.run(act())


def _set_paused(app: str, target: str | None, place: ServerOptions, *, paused: bool) -> None:
    async def stored(target: str) -> None:
        where = load_target(app)
        owner = owner_of(where, target)
        stage = "" if target == owner.name else owner.require(target.removeprefix(f"{owner.name}/")).name
        async with opened(where, place) as database:
            await set_paused(database, owner.name, stage, paused=paused, by=operator())
        out().print(f"{target} {'is paused' if paused else 'goes on'}")

    if place.server_url is None:
        return asyncio.run(stored(named(target, "TARGET")))
    with place.remote() as server:
        return remote.set_paused(server, remote.only_word(app, target) or "", paused=paused)


COMMANDS = (invalidate, retry, accept, approve, pause, resume, backfill, clean)
