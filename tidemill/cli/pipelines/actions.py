"""`tidemill pipeline` for operators: invalidate, retry, accept, approve, pause, resume, backfill, clean."""

from __future__ import annotations

from typing import Literal, cast

from rich.progress import Progress

from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.pipelines.open import AppArgument, Work, find, find_all, find_stage, names
from tidemill.cli.render import out
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.ops.operator.operation import Operation, Operator
from tidemill.ops.pipelines.change import (
    CleanPipeline,
    InvalidateStates,
    PausePipeline,
    PipelinePaused,
    RetryStates,
    StageRef,
    StartBackfill,
    StateSelection,
    accept_stage,
    approve_stage,
    clean_pipeline,
    invalidate_states,
    pause_pipeline,
    preview_invalidate_states,
    resume_pipeline,
    retry_states,
    start_backfill,
)
from tidemill.ops.pipelines.read import MOST_SHOWN, ListOrphans, list_orphans
from tidemill.ops.pipelines.waiting import wait_for_backfill

MANY = 10  # States that are built again without a question.


def invalidate(
    app: AppArgument = None,
    target: str | None = None,
    /,
    *,
    downstream: bool = False,
    yes: bool = False,
    place: ServerOptions = ANYWHERE,
) -> int:
    """Have states built again, even if they are fresh.

    Parameters
    ----------
    target
        A state (its path, or STAGE/ENTITY), all states of an ENTITY or of a STAGE, or a PIPELINE.
    downstream
        Also all states that are made from them.
    yes
        Do not ask, however many there are.
    """
    work = Work(app, target, place)
    word = work.require_word("TARGET")

    async def act(at: Operator) -> int:
        meant = await find(at, word)
        given = {"name": meant.pipeline, "stage": meant.stage, "entities": meant.entities, "downstream": downstream}
        count = (await at.do(preview_invalidate_states, StateSelection(**given))).count
        if count > MANY and not yes and not agreed(f"have {count:,} states built again"):
            return 1
        done = await at.do(invalidate_states, InvalidateStates(**given, count=count))
        out().print(
            f"{done.count} states are built again by the process that keeps pipeline {meant.pipeline} up to date"
        )
        return 0

    return work.run(act)


def retry(app: AppArgument = None, target: str | None = None, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Retry failed states at once, also those that need attention.

    Parameters
    ----------
    target
        A state (its path, or STAGE/ENTITY), a STAGE or a PIPELINE; all that failed, if not given.
    """
    work = Work(app, target, place)

    async def act(at: Operator) -> None:
        for meant in await find_all(at, work.word):
            wanted = RetryStates(name=meant.pipeline, stage=meant.stage, entities=meant.entities)
            done = await at.do(retry_states, wanted)
            out().print(f"{meant.pipeline}: {done.count} failed states are retried")

    work.run(act)


def accept(
    app: AppArgument = None, stage: str | None = None, /, *, yes: bool = False, place: ServerOptions = ANYWHERE
) -> int:
    """Accept a change of a stage's code that changes no result: its states count as built by the current code.

    Parameters
    ----------
    stage
        The stage: STAGE or PIPELINE/STAGE.
    yes
        Do not ask.
    """
    work = Work(app, stage, place)
    word = work.require_word("STAGE")

    async def act(at: Operator) -> int:
        pipeline, name = await find_stage(at, word)
        if not yes and not agreed(f"take all states of {name} as built by its current code"):
            return 1
        done = await at.do(accept_stage, StageRef(name=pipeline, stage=name))
        out().print(f"{done.count} states of {name} count as built by the current code")
        return 0

    return work.run(act)


def approve(app: AppArgument = None, stage: str | None = None, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Approve that many states of a stage are built again: what `plan` shows as needing approval.

    Parameters
    ----------
    stage
        The stage: STAGE or PIPELINE/STAGE.
    """
    work = Work(app, stage, place)
    word = work.require_word("STAGE")

    async def act(at: Operator) -> None:
        pipeline, name = await find_stage(at, word)
        await at.do(approve_stage, StageRef(name=pipeline, stage=name))
        out().print(f"approved for a day: states of {name} are built again by its current code")

    work.run(act)


def pause(app: AppArgument = None, target: str | None = None, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Build nothing more of a pipeline or a stage; running builds are finished.

    Parameters
    ----------
    target
        PIPELINE, STAGE or PIPELINE/STAGE.
    """
    _set_paused(Work(app, target, place), pause_pipeline)


def resume(app: AppArgument = None, target: str | None = None, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Let a paused pipeline or stage build again.

    Parameters
    ----------
    target
        PIPELINE, STAGE or PIPELINE/STAGE.
    """
    _set_paused(Work(app, target, place), resume_pipeline)


def backfill(
    app: AppArgument = None,
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
    """Have a range of a stage's states built again.

    Parameters
    ----------
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
        Show the progress until all are built; the status is 1 if some fail.
    """
    work = Work(app, stage, place)
    word = work.require_word("STAGE")

    async def act(at: Operator) -> int:
        pipeline, name = await find_stage(at, word)
        wanted = StartBackfill(name=pipeline, stage=name, first=first, last=last, downstream=downstream, rate=rate)
        begun = await at.do(start_backfill, wanted)
        if not wait:
            out().print(f"{begun.total} states are built again")
            return 0
        with Progress(console=out()) as progress:
            bar = progress.add_task(f"{pipeline}/{name}", total=begun.total)
            ended = await wait_for_backfill(
                at, pipeline, begun.id, each=lambda now: progress.update(bar, completed=now.total - now.left)
            )
        out().print(f"{begun.total} states were built again")
        if ended.failed:
            out().print(f"{ended.failed} of them failed: see `tidemill pipeline status`", style="red")
        return 1 if ended.failed else 0

    return work.run(act)


def clean(
    app: AppArgument = None,
    pipeline: str | None = None,
    /,
    *,
    how: str | None = None,
    yes: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """List outputs whose inputs are gone, and archive or delete them as their stages declare.

    Parameters
    ----------
    pipeline
        Only this one.
    how
        Whatever the stages declare: keep, archive or delete.
    yes
        Do it; without, they are only listed.
    """
    work = Work(app, pipeline, place)

    async def act(at: Operator) -> None:
        for name in await names(at, work.word):
            found = await at.do(list_orphans, ListOrphans(name=name, limit=MOST_SHOWN))
            for orphan in found.items:
                for path in orphan.paths:
                    out().print(f"{how or orphan.how:<8} {path}")
            if not found.total:
                out().print(f"{name}: no orphans", style="dim")
            elif yes:
                wanted = CleanPipeline(name=name, how=cast(_How, how), count=found.total)
                done = await at.do(clean_pipeline, wanted)
                out().print(f"{name}: {done.kept} kept, {done.archived} archived, {done.deleted} deleted")
            else:
                out().print("nothing was done: add --yes", style="dim")

    if how not in (None, "keep", "archive", "delete"):
        raise ConfigError(f"--how {how} is not one of keep, archive, delete")
    work.run(act)


def _set_paused(work: Work, operation: Operation[PausePipeline, PipelinePaused]) -> None:
    word = work.require_word("TARGET")

    async def act(at: Operator) -> None:
        meant = await find(at, word)
        if meant.entity is not None:
            raise NotFoundError(
                f"pipeline {meant.pipeline} has no stage {meant.entity!r}: write PIPELINE, STAGE or PIPELINE/STAGE"
            )
        done = await at.do(operation, PausePipeline(name=meant.pipeline, stage=meant.stage))
        out().print(f"{word} is {'paused' if done.paused else 'resumed'}")

    work.run(act)


_How = Literal["keep", "archive", "delete"] | None

COMMANDS = (invalidate, retry, accept, approve, pause, resume, backfill, clean)
