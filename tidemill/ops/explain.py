"""Explain anything by its id: why it is in its state, and what followed from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec

from tidemill.core.accounts import Caller
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, NotFoundError, TidemillError
from tidemill.dags.view.view import NodeView
from tidemill.declarations import Declarations
from tidemill.ops.jobs.batches import BatchDetails, BatchNumber, get_batch
from tidemill.ops.jobs.jobs import GetJob, Job, ListJobs, get_job, list_jobs
from tidemill.ops.monitors.alerts import AlertDetails, GetAlert, ListAlerts, get_alert, list_alerts
from tidemill.ops.monitors.monitors import ListMonitors, list_monitors
from tidemill.ops.monitors.why_not import TriggerCheck, explain_trigger
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Arguments, doc, operation
from tidemill.ops.pipelines.find import find_state
from tidemill.ops.pipelines.pipelines import ListPipelines, list_pipelines
from tidemill.ops.pipelines.states import GetState, get_state
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
from tidemill.pipelines.view.state_details import StateDetails
from tidemill.sources.redis import position_of
from tidemill.store.jobs.batches.batches import LIST_FOLLOWERS_OF_BATCH
from tidemill.store.jobs.pages import Word
from tidemill.store.jobs.read import list_followers
from tidemill.store.transaction import Reader

MOST_FOLLOWED = 100

FORMS = (
    "a job is 7, a batch of jobs b7, a run r7, a node of a run r7/NODE, an alert a7, a dead letter d7, a state the "
    "path of its output or STAGE/ENTITY, a trigger of a monitor MONITOR/TRIGGER/ENTITY, a message "
    "STREAM/SOURCE:POSITION or its message id (also as STREAM/SOURCE:ID)"
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


class Followed(msgspec.Struct, frozen=True):
    """Something that followed from what is explained: its id, and what it is."""

    id: str
    what: Annotated[str, doc("What it is.")]
    state: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why something is in its state; one of `job`, `run`, `node` and so on has all details of it."""

    id: str
    kind: str
    state: str
    why: list[str]
    followed: list[Followed] = []
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
    rows = await list_followers(at.database, job.id, job.created_at, limit=MOST_FOLLOWED)
    followed = [Followed(row["id"], f"{row['kind']} {row['name']}", row["state"]) for row in rows]
    return Explanation(id=id, kind="job", state=job.state, why=job.why, followed=followed, job=job)


async def _batch(at: Local, id: str) -> Explanation:
    batch = await at.do(get_batch, BatchNumber(id=_number(id)))
    rows = await at.database.fetch(LIST_FOLLOWERS_OF_BATCH, batch.id, batch.created_at, MOST_FOLLOWED)
    followed = [Followed(str(row["id"]), f"job {row['task']}", row["state"]) for row in rows]
    return Explanation(id=f"b{id}", kind="batch", state=batch.state, why=batch.why, followed=followed, batch=batch)


async def _run(at: Local, id: str) -> Explanation:
    run = await at.do(get_run, RunRef(id=_number(id)))
    jobs = (await at.do(list_jobs, ListJobs(run=run.id, limit=MOST_FOLLOWED))).items
    runs = (await at.do(list_runs, ListRuns(parent=run.id, limit=MOST_FOLLOWED))).items
    followed = [Followed(str(each.id), f"job {each.task}", each.state) for each in reversed(jobs)]
    followed += [Followed(f"r{each.id}", f"run {each.workflow}", each.state) for each in reversed(runs)]
    return Explanation(id=f"r{run.id}", kind="run", state=run.state, why=run.why, followed=followed, run=run)


async def _node(at: Local, run: str, name: str) -> Explanation:
    tree = await at.do(get_dag_tree, GetTree(id=_number(run)))
    found = next((each for each in tree.nodes if each.node == name), None)
    if found is None:
        raise NotFoundError(f"run r{run} has no node {name!r}: `tidemill run r{run}` shows its nodes")
    followed = [Followed(str(each.id), f"job on queue {each.queue}", each.state) for each in found.jobs]
    return Explanation(
        id=f"r{run}/{name}", kind="node", state=found.state, why=[found.why], followed=followed, node=found
    )


async def _alert(at: Local, id: str) -> Explanation:
    found = await at.do(get_alert, GetAlert(id=_number(id)))
    row = found.alert
    followed = [Followed(f"a{row.id}", f"{each.action} by {each.who}", each.detail or "") for each in found.history]
    return Explanation(id=f"a{row.id}", kind="alert", state=row.state, why=found.why, followed=followed, alert=found)


async def _dead_letter(at: Local, id: str) -> Explanation:
    found = await at.do(get_dead_letter, GetDeadLetter(id=_number(id)))
    return Explanation(id=f"d{found.id}", kind="dead letter", state=found.why, why=why_dead(found), dead_letter=found)


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
    return Explanation(id=id, kind="message", state=found.state, why=found.why, followed=followed, message=found)


def followed_by(item: HandedOverItem) -> Followed:
    """What a message has handed over, under the id that explains it."""
    match item.kind:
        case "job":
            return Followed(str(item.id), f"job {item.name}", item.state or "deleted")
        case "event":
            return Followed(f"r{item.id}", "event for a run", item.state or "deleted")
        case "state":
            return Followed(str(item.id), f"state of pipeline {item.name}", "")
        case _:
            return Followed("", f"{HANDED_OVER[item.kind]} {item.name}", "")


async def _trigger(at: Local, monitor: str, trigger: str, entity: str) -> Explanation | None:
    lines = (await at.do(list_monitors, ListMonitors(name=monitor))).items
    if not lines or trigger not in (*lines[0].triggers, *lines[0].off):
        return None
    wanted = ListAlerts(monitor=monitor, trigger=trigger, entity=entity, limit=MOST_FOLLOWED)
    alerts = (await at.do(list_alerts, wanted)).items
    state, why, check = await explain_trigger(at.database, lines[0], trigger, entity, alerts)
    followed = [Followed(f"a{each.id}", f"alert {each.severity}", each.state) for each in reversed(alerts)]
    id = f"{monitor}/{trigger}/{entity}"
    return Explanation(id=id, kind="trigger", state=state, why=why, followed=followed, trigger=check)


async def _state(at: Local, text: str) -> Explanation | None:
    if at.declared is None:
        raise NotFoundError(
            f"{text!r} is not the id of a job, run, alert or message; to explain a state of a pipeline, name the "
            "application (--app app.py) or a server"
        )
    lines = (await at.do(list_pipelines, ListPipelines(live=False))).items
    if not lines:
        return None
    pipeline, stage, entity = find_state(lines, text)
    found = await at.do(get_state, GetState(name=pipeline, stage=stage, entity=entity, follow=True))
    followed = [Followed(f"{pipeline}/{each}", "state", "") for each in found.followed_by]
    return Explanation(
        id=f"{pipeline}/{stage}/{entity}", kind="state", state=found.state, why=found.why, followed=followed,
        details=found,
    )  # fmt: skip


def _number(text: str) -> int:
    if len(text) > 18:
        raise ConfigError(f"{text} is no id: it is too long")
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
    (re.compile(r"([^/]+)/([^/]+)/(.+)", re.DOTALL), _trigger),
    (re.compile(r"(.+)", re.DOTALL), _message_id),
    (re.compile(r"(.+)", re.DOTALL), _state),
)
