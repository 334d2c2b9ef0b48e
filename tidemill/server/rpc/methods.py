"""Each method of `tidemill.proto`: which scope it needs, and what it does. Messages in, messages out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.dags.definition.model import UNSET
from tidemill.server.live.hub import Topics
from tidemill.server.live.live_requests import ask_stream
from tidemill.server.middleware.authentication import Caller
from tidemill.server.resources import jobs, runs
from tidemill.server.resources.paging import MOST
from tidemill.server.rpc.messages import Timestamp, message_class
from tidemill.server.server_state import Desk
from tidemill.store.jobs.operate import Outcome, cancel_jobs, retry_jobs
from tidemill.store.jobs.pages import JobsWanted, RunsWanted
from tidemill.store.runs.runs import list_inputs

Act = Callable[[Desk, Caller, Any], Awaitable[Any]]
Follow = Callable[[Desk, Caller, Any], AsyncGenerator[Any]]

WISHES = ("queue", "priority", "delay", "deadline", "unique_key", "unique_for", "concurrency_key")

_AS_TEXT = frozenset({"args", "result", "errors", "input", "error", "schema"})

EnqueueResponse = message_class("EnqueueResponse")
Job = message_class("Job")
ListJobsResponse = message_class("ListJobsResponse")
JobsReached = message_class("JobsReached")
StartRunResponse = message_class("StartRunResponse")
Run = message_class("Run")
ListRunsResponse = message_class("ListRunsResponse")
CancelRunResponse = message_class("CancelRunResponse")
SendEventResponse = message_class("SendEventResponse")
Input = message_class("Input")
ListInputsResponse = message_class("ListInputsResponse")
SubmitInputResponse = message_class("SubmitInputResponse")
AskResponse = message_class("AskResponse")
Change = message_class("Change")


class Verb(NamedTuple):
    """What a method needs and does."""

    scope: str
    act: Act | None = None
    follow: Follow | None = None
    """For a method that gives many messages."""


# -- jobs -----------------------------------------------------------------------------------------


async def enqueue(desk: Desk, caller: Caller, request: Any) -> Any:
    wishes = dict(zip(WISHES, all_given(request, *WISHES), strict=True))
    at = request.at.ToDatetime(UTC) if request.HasField("at") else None
    new = jobs.NewJob(request.task, read_object(request.args, "args"), at=at, tags=list(request.tags) or None, **wishes)
    done = await jobs.put_job(desk, caller, new)
    return EnqueueResponse(id=done.id, created=done.created)


async def get_job(desk: Desk, caller: Caller, request: Any) -> Any:
    return filled(Job, await jobs.find_job(desk, request.id))


async def list_jobs(desk: Desk, caller: Caller, request: Any) -> Any:
    wanted = JobsWanted(tuple(request.states), *all_given(request, "queue", "task", "tag", "run_id", "key"))
    page = decode(
        await jobs.write_page(desk, wanted, limit=read_limit(request), cursor=given(request, "cursor")), jobs.JobPage
    )
    return ListJobsResponse(jobs=[filled(Job, line) for line in page.items], next=page.next)


def on_jobs(act: Callable[..., Awaitable[Outcome]]) -> Act:
    """What does something to jobs that are named by their ids."""

    async def reach(desk: Desk, caller: Caller, request: Any) -> Any:
        ids = jobs.checked_ids(list(request.ids))
        done = jobs.told([await act(desk.database, ids, by=caller.name)])
        return JobsReached(done=done.done, asked=done.asked, unchanged=done.unchanged, ids=done.ids)

    return reach


# -- runs -----------------------------------------------------------------------------------------


async def start_run(desk: Desk, caller: Caller, request: Any) -> Any:
    new = runs.NewRun(request.workflow, read_object(request.args, "args"), given(request, "key"))
    return _started(await runs.begin_run(desk, caller, new))


async def get_run(desk: Desk, caller: Caller, request: Any) -> Any:
    return filled(Run, await runs.tell_run(desk, request.id))


async def list_runs(desk: Desk, caller: Caller, request: Any) -> Any:
    wanted = RunsWanted(tuple(request.states), *all_given(request, "workflow", "shape", "key", "parent"))
    page = decode(
        await runs.write_page(desk, wanted, limit=read_limit(request), cursor=given(request, "cursor")), runs.RunPage
    )
    return ListRunsResponse(runs=[filled(Run, line) for line in page.items], next=page.next)


async def cancel_run(desk: Desk, caller: Caller, request: Any) -> Any:
    await runs.end_run(desk, caller, request.id, given(request, "reason"))
    return CancelRunResponse()


async def send_event(desk: Desk, caller: Caller, request: Any) -> Any:
    new = runs.NewEvent(request.type, read_object(request.fields, "fields"), given(request, "step"))
    await runs.send_event(desk, caller, request.run_id, new)
    return SendEventResponse()


async def fork(desk: Desk, caller: Caller, request: Any) -> Any:
    kind = given(request, "type")
    event = None if kind is None else runs.NewEvent(kind, read_object(request.fields, "fields"))
    return _started(await runs.fork_of(desk, caller, request.run_id, request.at, event))


async def rerun(desk: Desk, caller: Caller, request: Any) -> Any:
    edited = read_json(request.edited, "edited") if request.HasField("edited") else UNSET
    return _started(await runs.repeat_run(desk, caller, request.run_id, given(request, "start"), edited))


def _started(started: runs.Started) -> Any:
    return StartRunResponse(id=started.id, created=started.created)


async def inputs(desk: Desk, caller: Caller, request: Any) -> Any:
    rows = await list_inputs(desk.database, run_id=given(request, "run_id"), limit=read_limit(request))
    known = [{**row, "schema": None if row["schema"] is None else decode(row["schema"])} for row in rows]
    return ListInputsResponse(inputs=[filled(Input, row) for row in known])


async def submit_input(desk: Desk, caller: Caller, request: Any) -> Any:
    value = read_json(request.value, "value")
    key = given(request, "key")
    return SubmitInputResponse(taken=await runs.submit_answer(desk, caller, request.run_id, request.node, value, key))


# -- streams and changes --------------------------------------------------------------------------


async def ask(desk: Desk, caller: Caller, request: Any) -> Any:
    found = await ask_stream(desk, request.stream, list(request.eligibilities), request.payload)
    return AskResponse(
        result=found.result.decode(), failed_plans=list(found.failures), failures=list(found.failures.values())
    )


async def watch(desk: Desk, caller: Caller, request: Any) -> AsyncGenerator[Any]:
    desk.hub.check_room(caller)
    async for frame in desk.hub.frames(caller, Topics.read(request.topics), given(request, "last_id")):
        news = frame.news
        if news is None:
            yield Change(id=frame.id, kind=frame.kind)
        else:
            yield Change(
                id=frame.id,
                kind=frame.kind,
                queues=news.queues,
                runs=news.runs,
                kinds=news.kinds,
                all_runs=news.all_runs,
            )


VERBS: dict[tuple[str, str], Verb] = {
    ("Jobs", "Enqueue"): Verb("operate", enqueue),
    ("Jobs", "Get"): Verb("read", get_job),
    ("Jobs", "List"): Verb("read", list_jobs),
    ("Jobs", "Cancel"): Verb("operate", on_jobs(cancel_jobs)),
    ("Jobs", "Retry"): Verb("operate", on_jobs(retry_jobs)),
    ("Runs", "Start"): Verb("operate", start_run),
    ("Runs", "Get"): Verb("read", get_run),
    ("Runs", "List"): Verb("read", list_runs),
    ("Runs", "Cancel"): Verb("operate", cancel_run),
    ("Runs", "SendEvent"): Verb("operate", send_event),
    ("Runs", "Fork"): Verb("operate", fork),
    ("Runs", "Rerun"): Verb("operate", rerun),
    ("Runs", "ListInputs"): Verb("read", inputs),
    ("Runs", "SubmitInput"): Verb("operate", submit_input),
    ("Streams", "Ask"): Verb("operate", ask),
    ("Changes", "Watch"): Verb("read", follow=watch),
}


# -- between messages and our own data ------------------------------------------------------------


def given(request: Any, name: str) -> Any:
    """An optional field, or None."""
    return getattr(request, name) if request.HasField(name) else None


def all_given(request: Any, *names: str) -> list[Any]:
    """Optional fields in this order, each or None."""
    return [given(request, name) for name in names]


def read_json(text: str, what: str) -> Any:
    """A value that came as JSON."""
    try:
        return decode(text.encode())
    except PayloadError as error:
        raise ConfigError(f"{what} is not JSON: {error}") from error


def read_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object; an empty text is an empty one."""
    value = read_json(text, what) if text else {}
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is a JSON object, such as {{}}, and not {text[:80]!r}")
    return value


def read_limit(request: Any) -> int:
    """How many to show on a page."""
    limit = given(request, "limit")
    if limit is None:
        return 50
    if not 1 <= limit <= MOST:
        raise ConfigError(f"a limit of {limit} will not do: it is 1 to {MOST}")
    return limit


def filled(kind: Any, data: Any) -> Any:
    """A message with everything of the same name in a struct or a row."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        value = data.get(field.name) if isinstance(data, dict) else getattr(data, field.name, None)
        if value is None:
            continue
        if isinstance(value, datetime):
            moment = Timestamp()
            moment.FromDatetime(value)
            getattr(message, field.name).CopyFrom(moment)
        elif field.name in _AS_TEXT:
            setattr(message, field.name, msgspec.json.encode(value).decode())
        elif isinstance(value, list):
            getattr(message, field.name).extend(value)
        else:
            setattr(message, field.name, value)
    return message
