"""Explains a state in sentences: why it is fresh, stale, failed and so on, and what an operator can do about it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable

from tidemill.core.encoding.json_rows import readable
from tidemill.engine.explain import explain_job
from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.pipelines.reducer import reasons
from tidemill.pipelines.reducer.plan import BuildStep
from tidemill.pipelines.runner.running_builds import BuildJob, BuildJobs
from tidemill.pipelines.view.absence import state_word, why_absent, why_inputs_missing
from tidemill.pipelines.view.snapshot import PipelineSnapshot
from tidemill.store.database import Database
from tidemill.store.jobs.read import describe_job


def unserved(jobs: Iterable[BuildJob]) -> list[str]:
    """The queues of these jobs that no worker serves, as sentences."""
    counts = Counter(job.queue for job in jobs if not job.is_served and job.state != "running")
    return [
        f"No worker serves queue {queue}, where {number:,} {'build waits' if number == 1 else 'builds wait'}: "
        f"start one with `tidemill worker APP --queue {shlex.quote(queue or '')}`."
        for queue, number in counts.items()
    ]


async def explain_state(
    database: Database,
    snapshot: PipelineSnapshot,
    jobs: BuildJobs,
    stage: Stage,
    entity: str,
    *,
    kept: bool,
    log: str | None,
    pipelines: Iterable[Pipeline],
) -> list[str]:
    """Why a state is fresh, stale, failed and so on; `log` is that of its last build."""
    if snapshot.state_of(stage.name, entity, jobs) is None:
        return why_absent(snapshot, stage, entity, pipelines)
    job = jobs.get((stage.name, entity))
    not_fresh = snapshot.not_fresh[stage.name]
    if entity in not_fresh:
        step = not_fresh[entity]
        if step is None:
            return ["Its inputs are gone: no stage makes it now, and it is kept until it is cleaned up."]
        reason = str(step.reason)
        lines = [f"{reason[0].upper()}{reason[1:]}.", *_why_held(snapshot, stage, step, pipelines)]
        if job is None and step.is_build and not kept:
            lines.append("No process keeps this pipeline up to date: start `tidemill up`, or `tidemill pipeline run`.")
        elif job is None and step.is_build and (running := _running(jobs, stage)):
            lines.append(
                f"It is built after others of its stage, of which {running:,} {_are(running)} being built now."
            )
    else:
        record = snapshot.pipeline_view.world.records[stage.name].get(entity)
        lines = ["It is up to date: the current code built it from its current inputs."]
        if record is not None and record.is_nothing:
            lines = [f"It is up to date: its stage makes nothing of it{f' ({log.strip()})' if log else ''}."]
    return lines if job is None else [*lines, *await _why_waits(database, job)]


def _running(jobs: BuildJobs, stage: Stage) -> int:
    return sum(name == stage.name and job.state == "running" for (name, _), job in jobs.items())


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


async def _why_waits(database: Database, job: BuildJob) -> list[str]:
    """Who builds a state, or what its build waits for."""
    if job.state == "running":
        by = f"by {job.builder}" if job.id is None else f"job {job.id}"
        return [f"It is being built now: {by}."]
    row = None if job.id is None else await describe_job(database, job.id)
    waits = f"Its build waits in queue {job.queue}: job {job.id}."
    return [waits] if row is None else [waits, *explain_job(readable(row))[1:]]


def _why_held(snapshot: PipelineSnapshot, stage: Stage, step: BuildStep, pipelines: Iterable[Pipeline]) -> list[str]:
    """What holds a state back besides its reason, and the command that lets it go on."""
    name = snapshot.pipeline.name
    match step.reason:
        case reasons.Blocked(waits_for):
            return _why_blocked(snapshot, waits_for[0], pipelines)
        case reasons.NoPartner():
            return why_inputs_missing(snapshot, stage, stage.variables_of(step.entity), pipelines)
        case reasons.BackingOff() | reasons.NeedsAttention():
            return [f"`tidemill pipeline retry APP {state_word(stage, step.entity)}` tries it at once."]
        case reasons.Paused():
            control = snapshot.pipeline_view.world.controls.get("")
            paused = name if control is not None and control.paused_by else f"{name}/{stage.name}"
            return [f"`tidemill pipeline resume APP {shlex.quote(paused)}` lets it be built."]
        case reasons.NeedsApproval():
            word = shlex.quote(f"{name}/{stage.name}")
            return [
                f"`tidemill pipeline approve APP {word}` lets them be built; `accept` in place of `approve` takes them "
                "as they are."
            ]
        case _:
            return []


def _why_blocked(snapshot: PipelineSnapshot, waits_for: str, pipelines: Iterable[Pipeline]) -> list[str]:
    """What holds up the state that a state waits for, directly or behind others, if anything does."""
    stage, entity = snapshot.pipeline_view.maker(waits_for) or (None, "")
    step = None if stage is None else snapshot.not_fresh[stage.name].get(entity)
    if stage is None or step is None or step.is_build:
        return []
    if isinstance(step.reason, reasons.Blocked):
        return _why_blocked(snapshot, step.reason.waits_for[0], pipelines)
    state = f"{stage.name}/{entity}".removesuffix("/")
    held = _why_held(snapshot, stage, step, pipelines)
    return [f"{state} is {snapshot.state_of(stage.name, entity, {})}: {step.reason}.", *held]
