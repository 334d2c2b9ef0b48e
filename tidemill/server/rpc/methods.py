"""Each method of `tidemill.proto`: the operation that it does, and how messages become arguments and results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_origin

import msgspec

from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.dags.definition.model import UNSET
from tidemill.ops.jobs import cancel_jobs, enqueue_job, get_job, list_jobs, retry_jobs
from tidemill.ops.local import Caller
from tidemill.ops.operation import Operation, bare_type
from tidemill.ops.runs import RunPage
from tidemill.ops.validation import read_arguments
from tidemill.server.live.hub import Topics
from tidemill.server.live.live_requests import ask_stream
from tidemill.server.resources import runs
from tidemill.server.resources.paging import MOST
from tidemill.server.rpc.messages import Timestamp, message_class
from tidemill.server.server_state import ServerState
from tidemill.store.jobs.pages import RunsWanted
from tidemill.store.runs.runs import list_inputs

Act = Callable[[ServerState, Caller, Any], Awaitable[Any]]
Follow = Callable[[ServerState, Caller, Any], AsyncGenerator[Any]]

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
    """The scope that a method needs, and its function."""

    scope: str
    act: Act | None = None
    follow: Follow | None = None
    """For a method that returns many messages."""


def verb_of(operation: Operation[Any, Any], response: Any) -> Verb:
    """A method that does an operation: fields of the same name go in and out."""

    async def act(server_state: ServerState, caller: Caller, request: Any) -> Any:
        args = read_arguments(operation.args, fields_of(request, operation.args))
        return filled(response, await server_state.local(caller).do(operation, args))

    return Verb(operation.scope, act)


# -- runs -----------------------------------------------------------------------------------------


async def start_run(server_state: ServerState, caller: Caller, request: Any) -> Any:
    new = runs.NewRun(request.workflow, read_object(request.args, "args"), given(request, "key"))
    return _started(await runs.begin_run(server_state, caller, new))


async def get_run(server_state: ServerState, caller: Caller, request: Any) -> Any:
    return filled(Run, await runs.tell_run(server_state, request.id))


async def list_runs(server_state: ServerState, caller: Caller, request: Any) -> Any:
    wanted = RunsWanted(tuple(request.states), *all_given(request, "workflow", "shape", "key", "parent"))
    page = decode(
        await runs.write_page(server_state, wanted, limit=read_limit(request), cursor=given(request, "cursor")), RunPage
    )
    return ListRunsResponse(runs=[filled(Run, line) for line in page.items], next=page.next)


async def cancel_run(server_state: ServerState, caller: Caller, request: Any) -> Any:
    await runs.end_run(server_state, caller, request.id, given(request, "reason"))
    return CancelRunResponse()


async def send_event(server_state: ServerState, caller: Caller, request: Any) -> Any:
    new = runs.NewEvent(request.type, read_object(request.fields, "fields"), given(request, "step"))
    await runs.send_event(server_state, caller, request.run_id, new)
    return SendEventResponse()


async def fork(server_state: ServerState, caller: Caller, request: Any) -> Any:
    kind = given(request, "type")
    event = None if kind is None else runs.NewEvent(kind, read_object(request.fields, "fields"))
    return _started(await runs.fork_of(server_state, caller, request.run_id, request.at, event))


async def rerun(server_state: ServerState, caller: Caller, request: Any) -> Any:
    edited = read_json(request.edited, "edited") if request.HasField("edited") else UNSET
    return _started(await runs.repeat_run(server_state, caller, request.run_id, given(request, "start"), edited))


def _started(started: runs.Started) -> Any:
    return StartRunResponse(id=started.id, created=started.created)


async def inputs(server_state: ServerState, caller: Caller, request: Any) -> Any:
    rows = await list_inputs(server_state.database, run_id=given(request, "run_id"), limit=read_limit(request))
    known = [{**row, "schema": None if row["schema"] is None else decode(row["schema"])} for row in rows]
    return ListInputsResponse(inputs=[filled(Input, row) for row in known])


async def submit_input(server_state: ServerState, caller: Caller, request: Any) -> Any:
    value = read_json(request.value, "value")
    key = given(request, "key")
    return SubmitInputResponse(
        taken=await runs.submit_answer(server_state, caller, request.run_id, request.node, value, key)
    )


# -- streams and changes --------------------------------------------------------------------------


async def ask(server_state: ServerState, caller: Caller, request: Any) -> Any:
    found = await ask_stream(server_state, request.stream, list(request.eligibilities), request.payload)
    return AskResponse(
        result=found.result.decode(), failed_plans=list(found.failures), failures=list(found.failures.values())
    )


async def watch(server_state: ServerState, caller: Caller, request: Any) -> AsyncGenerator[Any]:
    server_state.hub.check_room(caller)
    async for frame in server_state.hub.frames(caller, Topics.read(request.topics), given(request, "last_id")):
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
    ("Jobs", "Enqueue"): verb_of(enqueue_job, EnqueueResponse),
    ("Jobs", "Get"): verb_of(get_job, Job),
    ("Jobs", "List"): verb_of(list_jobs, ListJobsResponse),
    ("Jobs", "Cancel"): verb_of(cancel_jobs, JobsReached),
    ("Jobs", "Retry"): verb_of(retry_jobs, JobsReached),
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


def fields_of(request: Any, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of a message that are set, as arguments of this kind; JSON texts are read where they hold a value."""
    found: dict[str, Any] = {}
    types = {each.name: bare_type(each.type) for each in msgspec.structs.fields(kind)}
    for field in request.DESCRIPTOR.fields:
        value = getattr(request, field.name)
        if field.message_type is not None and field.message_type.name == "Timestamp":
            if request.HasField(field.name):
                found[field.name] = value.ToDatetime(UTC)
        elif field.is_repeated:
            if value:
                found[field.name] = list(value)
        elif not field.has_presence or request.HasField(field.name):
            is_json = types.get(field.name) is Any or get_origin(types.get(field.name)) is dict
            found[field.name] = read_value(value, field.name, types[field.name]) if is_json else value
    return found


def read_value(text: str, what: str, kind: Any) -> Any:
    """A JSON text; an object may be left empty."""
    return read_object(text, what) if get_origin(kind) is dict else read_json(text, what)


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
            part = None if field.message_type is None else message_class(field.message_type.name)
            getattr(message, field.name).extend(value if part is None else [filled(part, each) for each in value])
        else:
            setattr(message, field.name, value)
    return message
