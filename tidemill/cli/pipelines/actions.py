"""`tidemill pipeline` for operators: invalidate, retry, accept, approve, pause, resume, backfill, clean, write."""

from __future__ import annotations

import sys
from base64 import b64encode
from typing import Annotated

from cyclopts import Parameter
from rich.progress import Progress

from tidemill.cli.arguments import Yes
from tidemill.cli.confirm import agreed
from tidemill.cli.pipelines.open import (
    OneOf,
    Pipeline,
    Stage,
    Target,
    find,
    find_all,
    find_stage,
    names,
    on_pipelines,
    the_pipeline,
)
from tidemill.cli.render import counted, out
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.ops.operator.operation import Operator
from tidemill.ops.pipelines.change import (
    CleanPipeline,
    InvalidateStates,
    PausePipeline,
    RetryStates,
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
from tidemill.ops.pipelines.pipelines import PipelineRef, get_pipeline
from tidemill.ops.pipelines.states import (
    MOST_SHOWN,
    ListOrphans,
    WriteInput,
    list_orphans,
    write_pipeline_input,
)
from tidemill.ops.pipelines.waiting import wait_for_backfill

MANY = 10  # States that are built again without a question.

Downstream = Annotated[bool, Parameter(help="Also all states that are made from them.")]
Paused = Annotated[str, Parameter(help="PIPELINE, STAGE or PIPELINE/STAGE.")]


@on_pipelines
async def invalidate(
    at: Operator,
    target: Annotated[str, Parameter(help="A state, all states of an ENTITY or of a STAGE, or a PIPELINE.")],
    *,
    downstream: Downstream = False,
    yes: Yes = False,
) -> int:
    """Have states built again, even if they are fresh."""
    meant = await find(at, target)
    given = {"name": meant.pipeline, "stage": meant.stage, "entities": meant.entities, "downstream": downstream}
    count = (await at.do(preview_invalidate_states, StateSelection(**given))).count
    if count > MANY and not yes and not agreed(f"have {count:,} states built again"):
        return 1
    done = await at.do(invalidate_states, InvalidateStates(**given, count=count))
    out().print(f"{counted(done.count, 'state')} will be built again by the process of pipeline {meant.pipeline}")
    return 0


@on_pipelines
async def retry(at: Operator, target: Target) -> None:
    """Retry failed states at once, also those that need attention."""
    for meant in await find_all(at, target):
        wanted = RetryStates(name=meant.pipeline, stage=meant.stage, entities=meant.entities)
        done = await at.do(retry_states, wanted)
        out().print(f"{meant.pipeline}: {done.count} failed states are retried")


@on_pipelines
async def accept(at: Operator, stage: Stage, *, yes: Yes = False) -> int:
    """Accept a change of a stage's code that changes no result: its states count as built by the current code."""
    ref = await find_stage(at, stage)
    if not yes and not agreed(f"take all states of {ref.stage} as built by its current code"):
        return 1
    done = await at.do(accept_stage, ref)
    out().print(f"{counted(done.count, 'state')} of {ref.stage} now count as built by the current code")
    return 0


@on_pipelines
async def approve(at: Operator, stage: Stage) -> None:
    """Approve that many states of a stage are built again: what `plan` shows as needing approval."""
    ref = await find_stage(at, stage)
    await at.do(approve_stage, ref)
    out().print(f"approved for a day: states of {ref.stage} are built again by its current code")


@on_pipelines
async def pause(at: Operator, target: Paused) -> None:
    """Build nothing more of a pipeline or a stage; running builds are finished."""
    await at.do(pause_pipeline, await _find_part(at, target))
    out().print(f"{target} is paused")


@on_pipelines
async def resume(at: Operator, target: Paused) -> None:
    """Let a paused pipeline or stage build again."""
    await at.do(resume_pipeline, await _find_part(at, target))
    out().print(f"{target} is resumed")


@on_pipelines
async def backfill(
    at: Operator,
    stage: Stage,
    *,
    first: Annotated[str | None, Parameter(help="The first entity; from the beginning, if not given.")] = None,
    last: Annotated[str | None, Parameter(help="The last entity; to the end, if not given.")] = None,
    rate: Annotated[str | None, Parameter(help="How fast: 10/s, 100/m. At once, if not given.")] = None,
    downstream: Downstream = False,
    wait: Annotated[
        bool, Parameter(help="Show the progress until all are built; the status is 1 if some fail.")
    ] = False,
) -> int:
    """Have a range of a stage's states built again."""
    ref = await find_stage(at, stage)
    wanted = StartBackfill(name=ref.name, stage=ref.stage, first=first, last=last, downstream=downstream, rate=rate)
    begun = await at.do(start_backfill, wanted)
    if not wait:
        out().print(f"{counted(begun.total, 'state')} will be built again")
        return 0
    with Progress(console=out()) as progress:
        bar = progress.add_task(f"{ref.name}/{ref.stage}", total=begun.total)
        ended = await wait_for_backfill(
            at, ref.name, begun.id, each=lambda now: progress.update(bar, completed=now.total - now.left)
        )
    out().print(f"{begun.total - ended.left} states were built again")
    if ended.failed:
        out().print(f"{ended.failed} failed: see `tidemill pipeline status`", style="red")
    if ended.waiting:
        out().print(f"{ended.waiting} cannot be built now: see `tidemill pipeline plan`", style="red")
    return 1 if ended.left else 0


@on_pipelines
async def clean(
    at: Operator,
    pipeline: Pipeline,
    *,
    how: Annotated[str | None, Parameter(help="In place of what the stages declare: keep, archive, delete.")] = None,
    yes: Annotated[bool, Parameter(help="Clean them up; by default they are only listed.")] = False,
) -> None:
    """List outputs whose inputs are gone, and archive or delete them as their stages declare."""
    if how not in (None, "keep", "archive", "delete"):
        raise ConfigError(f"--how {how} is not one of keep, archive, delete")
    for name in await names(at, pipeline):
        found = await at.do(list_orphans, ListOrphans(name=name, limit=MOST_SHOWN))
        for orphan in found.items:
            for path in orphan.paths:
                out().print(f"{how or orphan.how:<8} {path}")
        if not found.total:
            out().print(f"{name}: no orphans", style="dim")
        elif yes:
            done = await at.do(clean_pipeline, CleanPipeline(name=name, how=how, count=found.total))
            out().print(f"{name}: {done.kept} kept, {done.archived} archived, {done.deleted} deleted")
        elif all((how or orphan.how) == "keep" for orphan in found.items):
            out().print("nothing to do: add --how archive or --how delete, and --yes", style="dim")
        else:
            out().print("nothing was done: add --yes", style="dim")


@on_pipelines
async def write(
    at: Operator,
    path: Annotated[str, Parameter(help="The path of the input: in/2026-01-15.txt.")],
    *,
    pipeline: OneOf = None,
) -> None:
    """Write an input of a pipeline from standard input; what is made from it is built at once."""
    data = sys.stdin.buffer.read()
    name = await the_pipeline(at, pipeline)
    try:
        given = WriteInput(name=name, path=path, content=data.decode())
    except UnicodeDecodeError:
        given = WriteInput(name=name, path=path, content=b64encode(data).decode(), encoding="base64")
    done = await at.do(write_pipeline_input, given)
    out().print(f"{done.path} is written to pipeline {done.pipeline}: {done.bytes:,} bytes")


async def _find_part(at: Operator, word: str) -> PausePipeline:
    meant = await find(at, word)
    if meant.entity is not None:
        line = await at.do(get_pipeline, PipelineRef(name=meant.pipeline))
        near = did_you_mean(word, [line.name, *(stage.name for stage in line.stages)])
        raise NotFoundError(
            f"pipeline {meant.pipeline} has no stage {meant.entity!r}: write PIPELINE, STAGE or PIPELINE/STAGE{near}"
        )
    return PausePipeline(name=meant.pipeline, stage=meant.stage)


COMMANDS = (invalidate, retry, accept, approve, pause, resume, backfill, clean, write)
