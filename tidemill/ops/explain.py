"""Explain anything by its id: why it is in its state, and what followed from it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec

from tidemill.core.accounts import Caller
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.duration import format_duration
from tidemill.core.errors import ConfigError, NotFoundError, TidemillError
from tidemill.core.jobs.job import LIVE_STATES
from tidemill.dags.view.view import NodeView
from tidemill.declarations import Declarations
from tidemill.engine.explain import explain_run_start
from tidemill.ops.admin.search import declared_names
from tidemill.ops.causes import (
    Related,
    causes_of_alert,
    causes_of_job,
    causes_of_message,
    causes_of_run,
    causes_of_state,
)
from tidemill.ops.jobs.batches import BatchDetails, BatchNumber, get_batch
from tidemill.ops.jobs.jobs import GetJob, Job, ListJobs, get_job, list_jobs
from tidemill.ops.jobs.schedules import ScheduleRef, explain_schedule
from tidemill.ops.monitors.alerts import AlertDetails, GetAlert, ListAlerts, get_alert, list_alerts
from tidemill.ops.monitors.monitors import ListMonitors, list_monitors
from tidemill.ops.monitors.why_not import TriggerCheck, explain_trigger
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Arguments, Nothing, doc, operation
from tidemill.ops.pipelines.find import find_state
from tidemill.ops.pipelines.pipelines import (
    ListPipelines,
    PipelineLine,
    PipelineRef,
    get_pipeline,
    list_pipelines,
    why_empty,
)
from tidemill.ops.pipelines.states import GetState, get_state
from tidemill.ops.pipelines.triggers import list_triggers
from tidemill.ops.runs.dags import GetTree, get_dag_tree
from tidemill.ops.runs.runs import ListRuns, Run, RunRef, get_run, list_runs
from tidemill.ops.streams.dead_letters import DeadLetterLine, GetDeadLetter, get_dead_letter, why_dead
from tidemill.ops.streams.messages import (
    HANDED_OVER,
    HandedOverItem,
    MessageDetails,
    message_at,
    message_with_id,
)
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.view.state_details import MOST_SHOWN, StateDetails
from tidemill.sources import LogSource
from tidemill.sources.redis import position_of
from tidemill.store.jobs.pages import Word
from tidemill.store.jobs.read import list_followers
from tidemill.store.jobs.schedules.schedules import list_schedules as read_schedules
from tidemill.store.origins import list_published
from tidemill.store.transaction import Reader

MOST_FOLLOWED = 100

FORMS = (
    "a job is 7, a batch of jobs b7, a run r7, a node of a run r7/NODE, an alert a7, a dead letter d7, a schedule its "
    "name, a state the path of its output or STAGE/ENTITY, a workflow file for events workflow/NAME, a trigger of a "
    "monitor MONITOR/TRIGGER/ENTITY, a message STREAM/SOURCE:POSITION or its message id (also as STREAM/SOURCE:ID)"
)


class ExplainObject(Arguments, frozen=True, kw_only=True):
    """What to explain."""

    id: Annotated[str, doc(f"The id: {FORMS}.", min_length=1, max_length=4000)]
    forward: Annotated[bool, doc("Also list what followed from it.")] = False


class WhyNot(Arguments, frozen=True, kw_only=True):
    """Which trigger, and for which entity."""

    trigger: Annotated[Word, doc("The trigger.")]
    entity: Annotated[Word, doc("The entity.")]
    monitor: Annotated[Word | None, doc("Its monitor, if several have such a trigger and entity.")] = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why something is in its state; one of `job`, `run`, `node` and so on has all details of it."""

    id: str
    kind: str
    state: str
    why: list[str]
    because: Annotated[list[Related], doc("What it followed from, step by step, the nearest first.")] = []
    followed: Annotated[list[Related], doc("What followed from it, if that is asked for.")] = []
    job: Job | None = None
    batch: BatchDetails | None = None
    run: Run | None = None
    node: NodeView | None = None
    details: Annotated[StateDetails | None, doc("Of a state of a pipeline.")] = None
    alert: AlertDetails | None = None
    dead_letter: DeadLetterLine | None = None
    trigger: TriggerCheck | None = None
    message: Annotated[MessageDetails | None, doc("Of a message of a stream.")] = None


@operation("GET /explain/{id:path}", role="viewer")
async def explain(at: Reader, args: ExplainObject, declared: Declarations | None) -> Explanation:
    """Explain a job, batch, run, node, state, alert, trigger, message or dead letter, and what followed from it."""
    here = Local(at.database, Caller(at.by, "viewer"), declared)
    first: TidemillError | None = None
    for form, read in _READERS:
        if match := form.fullmatch(args.id):
            try:
                found = await read(here, *match.groups())
            except (NotFoundError, ConfigError) as error:
                first = first or error  # The id of a message may look like any other.
                continue
            if found is not None:
                return found if args.forward else msgspec.structs.replace(found, followed=[])
    raise first or NotFoundError(f"{args.id!r} is not an id of anything: {FORMS}")


@operation("GET /why-not", role="viewer")
async def explain_why_not(at: Reader, args: WhyNot) -> Explanation:
    """Explain why a trigger has not opened an alert for an entity: what was checked last, and what comes next."""
    here = Local(at.database, Caller(at.by, "viewer"), None)
    lines = (await here.do(list_monitors, ListMonitors(name=args.monitor))).items
    own = [each for each in lines if args.trigger in (*each.triggers, *each.off)]
    if not own:
        known = sorted({name for each in lines for name in each.triggers})
        raise NotFoundError(
            f"no monitor has a trigger {args.trigger!r}; there are "
            f"{', '.join(known) or 'none'}{did_you_mean(args.trigger, known)}"
        )
    for each in own:
        try:
            if (found := await _trigger(here, each.name, args.trigger, args.entity)) is not None:
                return found
        except NotFoundError:
            if each is own[-1]:
                raise
    raise NotFoundError(f"no monitor has a trigger {args.trigger!r}")


async def _job(at: Local, id: str) -> Explanation:
    job = await at.do(get_job, GetJob(id=_number(id)))
    followed = [*await _followers(at, str(job.id)), *await _published(at, f"job {job.id} ({job.task})")]
    because = await causes_of_job(at, job.origin, job.run_id)
    return Explanation(id=id, kind="job", state=job.state, why=job.why, because=because, followed=followed, job=job)


async def _batch(at: Local, id: str) -> Explanation:
    batch = await at.do(get_batch, BatchNumber(id=_number(id)))
    followed, because = await _followers(at, f"b{batch.id}"), await causes_of_job(at, batch.origin, None)
    return Explanation(
        id=f"b{id}", kind="batch", state=batch.state, why=batch.why, because=because, followed=followed, batch=batch
    )


async def _run(at: Local, id: str) -> Explanation:
    run = await at.do(get_run, RunRef(id=_number(id)))
    jobs = (await at.do(list_jobs, ListJobs(run=run.id, limit=MOST_FOLLOWED))).items
    runs = (await at.do(list_runs, ListRuns(parent=run.id, limit=MOST_FOLLOWED))).items
    followed = [Related(str(each.id), f"job {each.task}", each.state) for each in reversed(jobs)]
    followed += [Related(f"r{each.id}", f"run {each.workflow}", each.state) for each in reversed(runs)]
    children = {f"r{each.id}" for each in runs}
    followed += [each for each in await _followers(at, f"r{run.id}") if each.id not in children]
    followed += await _published(at, f"run r{run.id}")
    because = await causes_of_run(at, run.id)
    why = [*explain_run_start(run.origin), *run.why]
    waiting = [each for each in jobs if each.state in LIVE_STATES and each.state != "running"]
    if waiting:
        waits = waiting[-1]
        about = (await at.do(get_job, GetJob(id=waits.id))).why[1:]
        why.append(f"Its job {waits.id} ({waits.task}) waits: {' '.join(about)}")
    return Explanation(
        id=f"r{run.id}", kind="run", state=run.state, why=why, because=because, followed=followed, run=run
    )


async def _node(at: Local, run: str, name: str) -> Explanation:
    tree = await at.do(get_dag_tree, GetTree(id=_number(run)))
    found = next((each for each in tree.nodes if each.node == name), None)
    if found is None:
        meant = did_you_mean(name, [each.node for each in tree.nodes])
        raise NotFoundError(f"run r{run} has no node {name!r}: `tidemill run r{run}` shows its nodes{meant}")
    followed = [Related(str(each.id), f"job on queue {each.queue}", each.state) for each in found.jobs]
    why = [found.why]
    if found.began is not None and found.ended is not None:
        took = format_duration((found.ended - found.began).total_seconds())
        why.append(f"It took {took}; `tidemill jobs --run r{run}` lists the jobs of its run.")
    return Explanation(id=f"r{run}/{name}", kind="node", state=found.state, why=why, followed=followed, node=found)


async def _alert(at: Local, id: str) -> Explanation:
    found = await at.do(get_alert, GetAlert(id=_number(id)))
    row = found.alert
    followed = [Related(f"a{row.id}", f"{each.action} by {each.who}", each.detail or "") for each in found.history]
    because = await causes_of_alert(at, row.monitor, found.record or {})
    return Explanation(
        id=f"a{row.id}", kind="alert", state=row.state, why=found.why, because=because, followed=followed, alert=found
    )


async def _workflow(at: Local, name: str) -> Explanation | None:
    """A workflow file for events: whether it is enabled, and what starts it."""
    if at.declared is None:
        return None
    found = next((each for each in (await at.do(list_triggers, Nothing())).items if each.name == name), None)
    if found is None:
        return await _pipeline(at, name) if name in at.declared.pipelines.known else None
    lines = [f"It runs as task {found.task}: `tidemill jobs --task {shlex.quote(found.task)}` lists its runs."]
    starts = [
        f"events to {found.webhook or f'/api/v1/triggers/{name}'}",
        *(f"its schedule, {each}" for each in found.schedules),
    ]
    if found.disabled_by is None:
        lines.append(f"It is started by {' and by '.join(starts)}.")
    else:
        lines.append(f"{found.disabled_by} has disabled it: nothing starts it, and events are refused.")
        lines.append(f"Enable it with `tidemill workflow enable {shlex.quote(name)}`.")
    state = "enabled" if found.disabled_by is None else "disabled"
    return Explanation(id=f"workflow/{name}", kind="workflow", state=state, why=lines)


async def _pipeline(at: Local, name: str) -> Explanation:
    """A pipeline: whether it is paused, as a disabled workflow file is, and what its states are."""
    found = await at.do(get_pipeline, PipelineRef(name=name))
    counts = ", ".join(f"{number:,} {state}" for state, number in found.counts.items())
    word = shlex.quote(name)
    lines = [f"Its states: {counts}. `tidemill pipeline plan APP {word}` lists what is not fresh, and why."]
    if not counts:
        lines = [f"It has no states: {why_empty(found)}."]
    if found.paused_by is not None:
        lines.append(f"{found.paused_by} has paused it: nothing is built.")
        lines.append(f"Resume it with `tidemill pipeline resume APP {word}`.")
    elif not found.kept:
        lines.append("No process keeps it up to date: start `tidemill up`, or `tidemill pipeline run`.")
    state = "paused" if found.paused_by is not None else "active" if found.kept else "not_running"
    return Explanation(id=name, kind="pipeline", state=state, why=[*lines, *found.problems])


async def _schedule(at: Local, name: str) -> Explanation | None:
    if not await read_schedules(at.database, name):
        return None
    found = await at.do(explain_schedule, ScheduleRef(name=name))
    line = found.schedule
    state = "disabled" if line.disabled_by is not None else "paused" if line.paused else "active"
    starts = [
        Related(f"r{fire.run_id}", "run", "") if fire.run_id is not None else Related(str(fire.job_id), "job", "")
        for fire in found.fires
        if fire.run_id is not None or fire.job_id is not None
    ]
    return Explanation(id=name, kind="schedule", state=state, why=found.why, followed=starts)


async def _dead_letter(at: Local, id: str) -> Explanation:
    found = await at.do(get_dead_letter, GetDeadLetter(id=_number(id)))
    because = await causes_of_message(at, found.stream, found.source, found.place)
    return Explanation(
        id=f"d{found.id}", kind="dead letter", state=found.why, why=why_dead(found), because=because, dead_letter=found
    )


async def _message(at: Local, stream: str, source: str, place: str) -> Explanation | None:
    if "-" in place:  # Redis counts entries by milliseconds.
        place = str(position_of(place))
    place = place if ":" in place else f"0:{place}"
    found = await message_at(at.database, at.declared, stream, source, place)
    return None if found is None else await _explained_message(at, f"{stream}/{source}:{place}", found)


async def _message_of(at: Local, stream: str, source: str, id: str) -> Explanation | None:
    found = await message_with_id(at.database, at.declared, id, stream, source)
    return None if found is None else await _explained_message(at, f"{stream}/{source}:{id}", found)


async def _message_id(at: Local, id: str) -> Explanation | None:
    found = await message_with_id(at.database, at.declared, id)
    return None if found is None else await _explained_message(at, id, found)


async def _explained_message(at: Local, id: str, found: MessageDetails) -> Explanation:
    followed = [followed_by(each) for each in found.handed_over]
    if found.state == "dead":
        letter = await _dead_letter(at, str(found.dead_letter))
        return msgspec.structs.replace(letter, message=found, followed=followed)
    because: list[Related] = []
    if found.stream is not None and found.source is not None and found.place is not None:
        because = await causes_of_message(at, found.stream, found.source, found.place)
    return Explanation(
        id=id, kind="message", state=found.state, why=found.why, because=because, followed=followed, message=found
    )


def followed_by(item: HandedOverItem) -> Related:
    """What a message has handed over, under the id that explains it."""
    match item.kind:
        case "job":
            return Related(str(item.id), f"job {item.name}", item.state or "deleted")
        case "event":
            return Related(f"r{item.id}", "event for a run", item.state or "deleted")
        case "state":
            return Related(str(item.id), f"state of pipeline {item.name}", "")
        case _:
            return Related("", f"{HANDED_OVER[item.kind]} {item.name}", "")


async def _trigger(at: Local, monitor: str, trigger: str, entity: str) -> Explanation | None:
    lines = (await at.do(list_monitors, ListMonitors(name=monitor))).items
    if not lines or trigger not in (*lines[0].triggers, *lines[0].off):
        return None
    wanted = ListAlerts(monitor=monitor, trigger=trigger, entity=entity, limit=MOST_FOLLOWED)
    alerts = (await at.do(list_alerts, wanted)).items
    state, why, check = await explain_trigger(at.database, lines[0], trigger, entity, alerts)
    followed = [Related(f"a{each.id}", f"alert {each.severity}", each.state) for each in reversed(alerts)]
    id = f"{monitor}/{trigger}/{entity}"
    return Explanation(id=id, kind="trigger", state=state, why=why, followed=followed, trigger=check)


async def _state(at: Local, text: str) -> Explanation | None:
    if at.declared is None:
        raise NotFoundError(
            f"{text!r} is not the id of a job, run, alert or message, nor a schedule; to explain a state of a "
            "pipeline, name the application (--app app.py) or a server"
        )
    if (other := _says_name(at.declared, text)) is not None:
        raise NotFoundError(other)
    lines = (await at.do(list_pipelines, ListPipelines(live=False))).items
    if not lines:
        return None
    if text in (line.name for line in lines):
        return await _pipeline(at, text)
    try:
        pipeline, stage, entity = find_state(lines, text)
    except (NotFoundError, ConfigError) as error:
        raise NotFoundError(f"{error}{did_you_mean(text, declared_names(at.declared))}") from error
    found = await at.do(get_state, GetState(name=pipeline, stage=stage, entity=entity, follow=True))
    why = found.why if found.state == "absent" else [*_not_among(lines, found, text), *found.why]
    followed = [Related(f"{pipeline}/{each}", "state", "") for each in found.followed_by]
    followed += await _published(at, f"state {pipeline}/{stage}/{entity}")
    because = await causes_of_state(at, pipeline, found.made_from)
    return Explanation(
        id=f"{pipeline}/{stage}/{entity}", kind="state", state=found.state, why=why, because=because,
        followed=followed, details=found,
    )  # fmt: skip


def _says_name(declared: Declarations, name: str) -> str | None:
    """That an id is the name of something else than a pipeline, and what can be explained of that."""
    kind = declared_names(declared).get(name)
    if kind == "task" and "/" not in name:  # PIPELINE/STAGE is a stage, whose builds are jobs of such a task.
        return f"{name!r} is a task: explain one of its jobs, which `tidemill jobs --task {name}` lists"
    if kind in ("flow", "dag"):
        return f"{name!r} is a {kind}: explain one of its runs, which `tidemill runs --workflow {name}` lists"
    if kind == "stream":
        return f"{name!r} is a stream: `tidemill stream status {name}` shows it; a message is {name}/SOURCE:POSITION"
    if kind == "monitor":
        return f"{name!r} is a monitor: `tidemill monitor status {name}` shows it; explain {name}/TRIGGER/ENTITY"
    owners = [each.name for each in declared.monitors.values() if any(one.name == name for one in each.triggers)]
    return f"{name!r} is a trigger: explain {owners[0]}/{name}/ENTITY" if owners else None


def _not_among(lines: list[PipelineLine], found: StateDetails, text: str) -> list[str]:
    """That a path is none of the many outputs of the state that it would be of."""
    stages = next(line.stages for line in lines if line.name == found.pipeline)
    output = Pattern(next(stage.output for stage in stages if stage.name == found.stage))
    paths = [each.path for each in found.outputs]
    named = [path for path in (text, text.removeprefix(f"{found.pipeline}/")) if output.match(path) is not None]
    if not named or not paths or named[0] in paths or len(paths) >= MOST_SHOWN:
        return []
    return [f"There is no {named[0]}: stage {found.stage} makes {', '.join(paths[:10])} of {found.entity or 'all'}."]


async def _followers(at: Local, of: str) -> list[Related]:
    """The jobs and runs that followed from a job or a batch."""
    rows = await list_followers(at.database, of, limit=MOST_FOLLOWED)
    return [Related(row["id"], f"{row['kind']} {row['name']}", row["state"]) for row in rows]


async def _published(at: Local, work: str) -> list[Related]:
    """The messages that work, given in words, has published to the log; explained by the streams that read them."""
    found: list[Related] = []
    for row in await list_published(at.database, work, limit=MOST_FOLLOWED):
        many = f" and {row['messages'] - 1:,} more" if row["messages"] > 1 else ""
        readers = [
            f"{stream.name}/{source.name}"
            for stream in (() if at.declared is None else at.declared.streams.declared.values())
            for source in stream.sources
            if isinstance(source, LogSource) and source.topic == row["topic"]
        ]
        ids = [f"{reader}:0:{row['position']}" for reader in readers] or [""]
        found += [Related(id, f"message {row['position']}{many} of topic {row['topic']}", "") for id in ids]
    return found


def _number(text: str) -> int:
    if len(text) > 18:
        raise ConfigError(f"{text} is not an id: it is too long")
    return int(text)


#: The forms of ids in the order in which they are tried; a reader returns None if there is no such object.
_READERS: tuple[tuple[re.Pattern[str], Callable[..., Awaitable[Explanation | None]]], ...] = (
    (re.compile(r"([0-9]+)"), _job),
    (re.compile(r"b([0-9]+)"), _batch),
    (re.compile(r"r([0-9]+)"), _run),
    (re.compile(r"a([0-9]+)"), _alert),
    (re.compile(r"d([0-9]+)"), _dead_letter),
    (re.compile(r"r([0-9]+)/(.+)", re.DOTALL), _node),
    (re.compile(r"([^/:]+)/([^/]+?):([0-9]+(?:[:-][0-9]+)?)"), _message),
    (re.compile(r"([^/:]+)/([^/]+?):(.+)", re.DOTALL), _message_of),
    (re.compile(r"workflow/(.+)", re.DOTALL), _workflow),
    (re.compile(r"([^/]+)/([^/]+)/(.+)", re.DOTALL), _trigger),
    (re.compile(r"(.+)", re.DOTALL), _schedule),
    (re.compile(r"(.+)", re.DOTALL), _message_id),
    (re.compile(r"(.+)", re.DOTALL), _state),
)
