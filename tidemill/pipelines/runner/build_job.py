"""Builds on queues: each stage is a task, each build of a state a job for any worker.

The unique key of such a job is its entity: a state is built by one worker at a time, on any host. The stage's backoff
applies to failures of the code; the queue handles lost workers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from tidemill.core.jobs.job import NewJob
from tidemill.core.retry import Discard, RefuseJob, Snooze, retry
from tidemill.engine.jobs.origin import origin_here
from tidemill.engine.jobs.task import Task, TaskOptions
from tidemill.engine.telemetry.tracing import carrying
from tidemill.engine.worker.context import current_job
from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.pipelines.reducer import reasons
from tidemill.pipelines.reducer.facts import FileFact, PipelineFacts
from tidemill.pipelines.reducer.plan import BuildStep
from tidemill.pipelines.reducer.staleness import input_key, input_text
from tidemill.pipelines.runner.build import StageCaller, files_of, open_inputs
from tidemill.pipelines.runner.build_trace import read_traces
from tidemill.pipelines.runner.commit import CommitBatch, finish_intents
from tidemill.pipelines.stores.base import NotHereError, SeenFile, States, StateStoreError, Unreadable
from tidemill.pipelines.view.pipeline_view import open_states
from tidemill.store.database import Database, Executor
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.states.build_jobs import free_keys
from tidemill.store.states.leases import LeaseHolder, Wanted, list_alive, release_leases, take_leases
from tidemill.store.states.states import NEWEST_CODE, StatesChanged, notify_states

CHUNK = 500
MAX_LOSSES = 3
PATIENCE_WITH_OLD_WORKERS = 10.0
WAIT_FOR_OTHERS = 2.0
REPEAT_AFTER = 1.0
LONGEST_LIST = 4000  # characters of input paths in a notification

Reach = Callable[[], Awaitable[Database]]


def stage_task(stage: Stage, reach: Reach) -> Task[Any, Any]:
    """The task that builds states of a stage."""
    caller = StageCaller(stage)

    async def build(
        entity: str, paths: list[list[str]], inputs: str, code: str, version: int, reason: dict[str, Any], root: str
    ) -> dict:
        """Build one state."""
        groups = tuple(tuple(group) for group in paths)
        step = BuildStep(stage, entity, msgspec.convert(reason, reasons.Reason), groups, inputs, version)
        return await _build(caller, await reach(), step, code, root)

    options = stage.options
    key = options.concurrency_key or f"pipeline {stage.full_name}"
    return Task(
        build,
        stage.full_name,
        TaskOptions(
            queue=options.queue or stage.pipeline.queue,
            priority=options.priority,
            # The queue retries errors of writing; failures of the code are not retried there.
            retry=retry(5, backoff="1s", cap="1m", retry_on=("StateStoreError",), max_losses=MAX_LOSSES),
            budget=options.budget,
            resources=options.resources,
            concurrency_key=None if options.max_concurrency is None else key,
            max_concurrency=options.max_concurrency or 1,
            tags=("pipeline",),
        ),
    )


async def enqueue_builds(database: Database, task: Task[Any, Any], steps: Sequence[BuildStep], root: str) -> list[int]:
    """Store a job for each step; a state whose build is queued keeps its job.

    A running job of a state has reported its outcome, else the state would not be planned again: it is about to end,
    and gives its key to the new one. `root` is the id of the place of the states: a worker that does not see it
    refuses the job.
    """
    origin = origin_here("pipeline")
    ids: list[int] = []
    if steps:
        await read_traces(database, steps[0].stage.pipeline.name, steps)
    for start in range(0, len(steps), CHUNK):
        jobs: list[NewJob] = []
        for step in steps[start : start + CHUNK]:
            args = task.signature.pack(
                {
                    "entity": step.entity,
                    "paths": step.paths,
                    "inputs": step.inputs,
                    "code": step.stage.code.total,
                    "version": step.version,
                    "reason": msgspec.to_builtins(step.reason),
                    "root": root,
                }
            )
            # Set as it is: braces in a name are no template.
            job = msgspec.structs.replace(task.new_job(args, origin=origin), unique_key=step.entity or "*")
            jobs.append(carrying(job, step.traces[0] if step.traces else None))
        async with database.transaction() as connection:
            ids += await _insert_builds(database, connection, jobs)
    return ids


async def _insert_builds(database: Database, connection: Executor, jobs: list[NewJob]) -> list[int]:
    """Store jobs; returns the id of each, or of the job that is queued for its state already."""
    refs = await insert_jobs(database, connection, jobs, notify=True)
    if all(ref.created for ref in refs):
        return [ref.id for ref in refs]
    held = {job.unique_key: at for at, (job, ref) in enumerate(zip(jobs, refs, strict=True)) if not ref.created}
    freed = await free_keys(database, connection, jobs[0].task, [key for key in held if key is not None])
    again: list[NewJob] = []
    for key, args in freed.items():
        job = jobs[held[key]]
        # The same build once more: its worker saw other inputs than this process, which waits for them to agree.
        again.append(msgspec.structs.replace(job, delay=REPEAT_AFTER) if bytes(job.args) == args else job)
    for job, ref in zip(again, await insert_jobs(database, connection, again, notify=True), strict=True):
        refs[held[job.unique_key]] = ref
    return [ref.id for ref in refs]


async def _build(caller: StageCaller, database: Database, step: BuildStep, code: str, root: str) -> dict[str, Any]:
    stage = step.stage
    pipeline: Pipeline = stage.pipeline
    builder = f"worker {socket.gethostname()}:{os.getpid()}"
    holder = LeaseHolder(builder, job=current_job().id)
    news = StatesChanged(pipeline.name, builder, stage.name, [step.entity])
    if code != stage.code.total:
        newest = await database.fetchrow(NEWEST_CODE, pipeline.name, stage.name)
        if newest is not None and newest["code"] == code:
            raise Snooze(PATIENCE_WITH_OLD_WORKERS, f"this worker runs other code of stage {stage.name}: restart it")
        return await _dropped(database, news, "it was asked for by a process with other code")
    states = open_states(pipeline, database)
    states.builder = holder.id
    try:
        await states.check_identity(root)
    except NotHereError as error:
        raise RefuseJob(str(error)) from error
    every = [path for group in step.paths for path in group]
    seen = await states.contents(every)
    for one in seen.values():
        if isinstance(one, Unreadable):
            raise StateStoreError(one.why)  # It may be readable on another host.
    found = {path: one for path, one in seen.items() if isinstance(one, SeenFile)}
    if len(found) < len(seen) or step.inputs != input_text(
        every, [found[path].content for path in every], named=stage.named
    ):
        return await _dropped(database, news, "its inputs have changed since it was asked for", every)
    wanted = Wanted(step.entity, step.version, input_key(step.inputs))
    leased = await take_leases(database, pipeline.name, stage.name, code, holder, [wanted])
    if leased.is_paused:
        return await _dropped(database, news, "its stage is paused")
    if leased.elsewhere:
        raise Snooze(WAIT_FOR_OTHERS, f"another builder has the lease of {stage.name}/{step.entity}")
    if leased.outdated:
        return await _dropped(database, news, "another builder has built it, or it was changed")
    if current_job().attempt > 1:
        await _sweep_earlier(database, states, step, holder)
    world = PipelineFacts()
    intents, named = leased.intents, pipeline.name
    if await finish_intents(database, states, [step], intents, world, pipeline=named, by=builder, holder=holder):
        return await _dropped(database, news, "its builder died when its result was in place, and was recorded now")
    try:
        outcome, why = await _build_leased(caller, database, states, step, found, builder)
    finally:
        await release_leases(database, pipeline.name, stage.name, holder, [step.entity])
    if why is not None:  # Told when the lease is free: the next build may begin at once.
        return await _dropped(database, news, why, every)
    return outcome


async def _sweep_earlier(database: Database, states: States, step: BuildStep, holder: LeaseHolder) -> None:
    """Delete what earlier attempts of this job have left beside its output: their workers were killed."""
    if step.stage.scatter:
        return  # Its outputs may be in any folder: the process that drives the pipeline sweeps all of them.

    async def alive(builders: Iterable[str]) -> set[str]:
        return await list_alive(database, builders) - {holder.id}

    folder, slash, _ = step.stage.quick_path(step.entity).rpartition("/")
    await states.sweep([folder + slash], alive)


async def _build_leased(
    caller: StageCaller,
    database: Database,
    states: States,
    step: BuildStep,
    found: dict[str, SeenFile],
    builder: str,
) -> tuple[dict[str, Any], str | None]:
    """Call the stage's function, and publish its result; also returns why it was dropped, if it was."""
    stage = step.stage
    try:
        source = await open_inputs(states, caller, step.paths)
    except FileNotFoundError:
        return {}, "an input was deleted after the build was requested"
    await read_traces(database, stage.pipeline.name, [step])
    result = await caller.run_async(stage.entity(step.entity), files_of(step.paths, source), step.traces)
    result.needs = {path: one.signature for path, one in found.items()}
    world = PipelineFacts()
    for path, one in (await states.contents(list(result.outputs))).items():
        if isinstance(one, SeenFile):
            world.files[path] = FileFact(one.signature, one.signature, one.content, one.size)
    done = await CommitBatch(database, states, stage.pipeline.name, builder, stage, world).commit([(step, result)])
    if done.failed:
        failed = Discard(result.error or "the build failed")
        failed.add_note(f"\nThe log of the build:\n{result.log}")  # With the traceback of the stage's function.
        raise failed
    if done.overtaken:
        return {}, "its inputs changed while it was built, or another build was faster"
    outcome = "skipped" if not result.outputs else "built" if done.changed else "same"
    return {"outcome": outcome, "paths": done.changed}, None


async def _dropped(database: Database, news: StatesChanged, why: str, inputs: Sequence[str] = ()) -> dict[str, Any]:
    """Record that nothing was built: the pipeline's driver reads these inputs, and plans again."""
    if sum(len(path) for path in inputs) < LONGEST_LIST:  # The driver's own scan finds changes of very many.
        news.paths = list(inputs)
    async with database.transaction() as connection:
        await notify_states(database, connection, news)
    return {"outcome": "dropped", "why": why}
