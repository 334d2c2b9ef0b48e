"""Check the next version of an application against what the database holds, before it is deployed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import PayloadError, TidemillError
from tidemill.core.jobs.job import NewJob
from tidemill.core.schedule import Schedule
from tidemill.declarations import Declarations
from tidemill.ops.operator.operation import Nothing, doc, operation
from tidemill.ops.runs.migrate import RUNS_AT_ONCE, StuckRuns, grouped, older_runs
from tidemill.pipelines.definition.code_hash import changed_parts
from tidemill.store.jobs.schedules.schedules import RunTemplate, stored_work
from tidemill.store.maintenance.deploy import (
    known_monitors,
    known_streams,
    read_only,
    state_codes,
    stored_schedules,
    waiting_jobs,
)
from tidemill.store.runs.claims import DAG_KIND
from tidemill.store.runs.versions import live_runs, load_journals
from tidemill.store.transaction import Reader, Transaction


class MisfitJobs(msgspec.Struct, frozen=True):
    """Jobs that wait and could not run with the next version, for one reason."""

    task: str
    queue: str
    why: Annotated[str, doc("Why they could not run.")]
    count: int
    ids: list[int]


class RebuiltStates(msgspec.Struct, frozen=True):
    """States of a stage that would be built again because its code differs, or that no stage builds now."""

    pipeline: str
    stage: str
    count: int
    why: Annotated[str, doc("Why they would be built again, or by no stage.")]


class ScheduleChange(msgspec.Struct, frozen=True):
    """A schedule that appears, goes or changes. `breaks` if it could not be fired."""

    name: str
    change: str
    breaks: Annotated[bool, doc("Whether it could not be fired.")] = False


class WithoutCode(msgspec.Struct, frozen=True):
    """Something that the database knows and the next version does not declare."""

    kind: str
    name: str


class DeployCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen if this version of the application were deployed now."""

    application: str
    breaks: Annotated[bool, doc("Whether a run, a job or a schedule could not go on.")]
    runs: Annotated[int, doc("How many unfinished runs were checked.")]
    migrated: Annotated[int, doc("How many of them would be moved to another version of their workflow.")]
    stuck: list[StuckRuns]
    jobs: Annotated[int, doc("How many waiting jobs were checked.")]
    misfits: list[MisfitJobs]
    states: list[RebuiltStates]
    schedules: list[ScheduleChange]
    without_code: list[WithoutCode]


@operation("GET /deploy/check", role="viewer")
async def check_deploy(at: Reader, args: Nothing, declared: Declarations) -> DeployCheck:
    """Say what would break, be rebuilt, appear or go with this version of the application. Changes nothing.

    Through a server, the application that the server has loaded is checked.
    """
    async with read_only(at.database, at.by) as tx:
        stuck, runs, migrated = await _check_flows(tx, declared)
        dags = await _check_dags(tx, declared, stuck)
        misfits, jobs = await _check_jobs(tx, declared)
        schedules = await _check_schedules(tx, declared)
        states = await _check_states(tx, declared)
        without_code = [each async for each in _without_code(tx, declared)]
    return DeployCheck(
        application=declared.name,
        breaks=bool(stuck or misfits or any(each.breaks for each in schedules)),
        runs=runs + dags,
        migrated=migrated,
        stuck=grouped(stuck),
        jobs=jobs,
        misfits=misfits,
        states=states,
        schedules=schedules,
        without_code=without_code,
    )


_Stuck = dict[tuple[str, str, str], list[int]]


async def _check_flows(tx: Transaction, declared: Declarations) -> tuple[_Stuck, int, int]:
    stuck: _Stuck = {}
    runs = migrated = 0
    async for batch in older_runs(tx, declared, with_current=True):
        for row, restored, why in batch:
            runs += 1
            migrated += restored is not None and restored.migrated is not None
            if why is not None:
                stuck.setdefault((row["workflow"], row["version"], why), []).append(row["id"])
    return stuck, runs, migrated


async def _check_dags(tx: Transaction, declared: Declarations, stuck: _Stuck) -> int:
    """A run of a dag goes on with the definition that it was started with: it needs the tasks of its nodes."""
    runs = after = 0
    while rows := await live_runs(tx, after=after, limit=RUNS_AT_ONCE, kind=DAG_KIND):
        after = rows[-1]["id"]
        runs += len(rows)
        snapshots, ticks = await load_journals(tx.fetch, [row["id"] for row in rows])
        for row in rows:
            number = row["id"]
            try:
                program, state = declared.runs.dag_kind.restore(
                    row["input"], snapshots.get(number), ticks.get(number, [])
                )
                problems = list(_node_problems(program, state, declared))
            except TidemillError as error:
                problems = [str(error)]
            if problems:
                stuck.setdefault((row["workflow"], row["version"], "; ".join(problems)), []).append(number)
    return runs


def _node_problems(program: Any, state: Any, declared: Declarations) -> Iterator[str]:
    from tidemill.dags.reducer.events import FINAL

    for name, step in program.plan.steps.items():
        if step.kind not in ("task", "map") or state.nodes[name].status in FINAL:
            continue
        task = declared.tasks.get(step.spec.task)
        if task is None:
            yield f"node {name} runs task {step.spec.task}, which the application does not have"
            continue
        for argument in step.spec.args:
            if argument not in task.signature.names:
                yield f"node {name}: {task.signature.unknown(argument)}"
        for argument in task.signature.required:
            if argument not in step.spec.args:
                what = f"task {step.spec.task} needs the argument {argument!r}"
                yield f"node {name}: {what}, which the node does not give"


async def _check_jobs(tx: Transaction, declared: Declarations) -> tuple[list[MisfitJobs], int]:
    found: dict[tuple[str, str, str], list[int]] = {}
    served = set(declared.served_queues())
    jobs = 0
    async for rows in waiting_jobs(tx):
        jobs += len(rows)
        for row in rows:
            if (why := _misfit(declared, row["task"], row["queue"], row["args"], served)) is not None:
                found.setdefault((row["task"], row["queue"], why), []).append(row["id"])
    return [MisfitJobs(*which, len(ids), ids) for which, ids in found.items()], jobs


def _misfit(declared: Declarations, task: str, queue: str, args: bytes, served: set[str]) -> str | None:
    """Why a job could not run with this version; None if it could."""
    known = declared.tasks.get(task)
    if known is None:
        return f"the application has no task {task}"
    try:
        known.signature.check(args)
    except PayloadError as error:
        return str(error)
    return None if queue in served else f"no task or node of the application is on queue {queue}"


async def _check_schedules(tx: Transaction, declared: Declarations) -> list[ScheduleChange]:
    stored = {row["name"]: row for row in await stored_schedules(tx)}
    wanted = {each.name: each for each in declared.stored_schedules()}
    changes = [ScheduleChange(name, "appears") for name in wanted.keys() - stored.keys()]
    served = set(declared.served_queues())
    for name in stored.keys() - wanted.keys():
        if stored[name]["made_by"] is None:
            changes.append(ScheduleChange(name, "goes"))
        elif (why := _cannot_fire(stored[name], declared, served)) is not None:
            changes.append(ScheduleChange(name, f"could not be fired: {why}", breaks=True))
    for name in stored.keys() & wanted.keys():
        row, each = stored[name], wanted[name]
        if decode(row["spec"], Schedule) != each.spec:
            changes.append(ScheduleChange(name, "fires at other times"))
        before = stored_work(row)
        if isinstance(each.work, NewJob):
            if encode(before) != encode(each.work):
                changes.append(ScheduleChange(name, "enqueues another job"))
        elif isinstance(before, NewJob) or _what_starts(before) != _what_starts(each.work):
            changes.append(ScheduleChange(name, "starts another run"))
    return sorted(changes, key=lambda each: each.name)


def _what_starts(run: RunTemplate) -> tuple[Any, ...]:
    return run.kind, run.workflow, decode(run.input), run.rate_key, run.key_rate, run.key_burst


def _cannot_fire(row: Any, declared: Declarations, served: set[str]) -> str | None:
    """Why a schedule that was made at run time could not be fired with this version; None if it could."""
    before = stored_work(row)
    work = declared.renewed(before) or before
    if isinstance(work, NewJob):
        return _misfit(declared, work.task, work.queue, bytes(work.args), served)
    if work.kind != DAG_KIND:
        return None if work.workflow in declared.runs.flows else f"the application has no workflow {work.workflow}"
    program, state = declared.runs.dag_kind.restore(bytes(work.input), None, [])
    return "; ".join(_node_problems(program, state, declared)) or None


async def _check_states(tx: Transaction, declared: Declarations) -> list[RebuiltStates]:
    pipelines = declared.pipelines.known
    changed: list[RebuiltStates] = []
    for row in await state_codes(tx):
        pipeline, stage = pipelines.get(row["pipeline"]), row["stage"]
        if pipeline is None or stage not in pipeline.stages:
            changed.append(RebuiltStates(row["pipeline"], stage, row["states"], "no stage builds them now"))
        elif pipeline.stages[stage].code.total != row["code"]:
            before = {} if row["parts"] is None else decode(row["parts"], dict[str, str])
            why = _what_changed(before, pipeline.stages[stage].code.parts)
            changed.append(RebuiltStates(row["pipeline"], stage, row["states"], why))
    return changed


def _what_changed(before: dict[str, str], after: dict[str, str]) -> str:
    gone, new = (sorted(one.items() - other.items()) for one, other in ((before, after), (after, before)))
    if gone and [(name.partition(".")[2], part) for name, part in gone] == [
        (n.partition(".")[2], part) for n, part in new
    ]:
        modules = ", ".join(sorted({name.partition(".")[0] for name, _ in gone}))
        return f"only the name of its module has changed: in a file that is called {modules}.py they stay as they are"
    return f"the code of the stage has changed: {', '.join(changed_parts(before, after)[:5])}"


async def _without_code(tx: Transaction, declared: Declarations) -> AsyncIterator[WithoutCode]:
    for name in await known_streams(tx):
        if name not in declared.streams.declared:
            yield WithoutCode("stream", name)
    for name in await known_monitors(tx):
        if name not in declared.monitors:
            yield WithoutCode("monitor", name)
