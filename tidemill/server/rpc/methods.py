"""Each method of `tidemill.proto`: the operation that it does, and how messages become arguments and results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_origin

import msgspec
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from tidemill.core.accounts import AccountRole, Caller
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.ops.jobs.jobs import cancel_jobs, enqueue_job, get_job, list_jobs, retry_jobs
from tidemill.ops.operator.operation import Operation, bare_type
from tidemill.ops.operator.validation import read_arguments
from tidemill.ops.runs.cancel import cancel_run
from tidemill.ops.runs.dags import rerun_dag
from tidemill.ops.runs.events import fork_run, send_event
from tidemill.ops.runs.inputs import list_inputs, submit_input
from tidemill.ops.runs.runs import get_run, list_runs, start_run
from tidemill.server.live.hub import Topics
from tidemill.server.live.live_requests import ask_stream
from tidemill.server.rpc.tidemill_pb2 import (
    AskResponse,
    CancelRunResponse,
    Change,
    EnqueueResponse,
    Job,
    JobsReached,
    ListInputsResponse,
    ListJobsResponse,
    ListRunsResponse,
    Run,
    SendEventResponse,
    StartRunResponse,
    SubmitInputResponse,
    ValuePiece,
)
from tidemill.server.server_state import ServerState

Act = Callable[[ServerState, Caller, Any], Awaitable[Any]]
Follow = Callable[[ServerState, Caller, Any], AsyncGenerator[Any]]

VALUE_PIECE = 1 << 20
_AS_TEXT = frozenset({"args", "result", "errors", "input", "error", "schema"})


class Verb(NamedTuple):
    """The role that a method needs, and its function."""

    role: AccountRole
    act: Act | None = None
    follow: Follow | None = None
    """For a method that returns many messages."""


def verb_of(operation: Operation[Any, Any], response: Any) -> Verb:
    """A method that does an operation: fields of the same name go in and out."""

    async def act(server_state: ServerState, caller: Caller, request: Any) -> Any:
        args = read_arguments(operation.args, fields_of(request, operation.args))
        return filled(response, await server_state.local(caller).do(operation, args))

    return Verb(operation.role, act)


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


async def read_large_value(server_state: ServerState, caller: Caller, request: Any) -> AsyncGenerator[Any]:
    async for piece in server_state.local(caller).read_value(request.place):
        for start in range(0, len(piece), VALUE_PIECE):
            yield ValuePiece(data=piece[start : start + VALUE_PIECE])


VERBS: dict[tuple[str, str], Verb] = {
    ("Jobs", "Enqueue"): verb_of(enqueue_job, EnqueueResponse),
    ("Jobs", "Get"): verb_of(get_job, Job),
    ("Jobs", "List"): verb_of(list_jobs, ListJobsResponse),
    ("Jobs", "Cancel"): verb_of(cancel_jobs, JobsReached),
    ("Jobs", "Retry"): verb_of(retry_jobs, JobsReached),
    ("Runs", "Start"): verb_of(start_run, StartRunResponse),
    ("Runs", "Get"): verb_of(get_run, Run),
    ("Runs", "List"): verb_of(list_runs, ListRunsResponse),
    ("Runs", "Cancel"): verb_of(cancel_run, CancelRunResponse),
    ("Runs", "SendEvent"): verb_of(send_event, SendEventResponse),
    ("Runs", "Fork"): verb_of(fork_run, StartRunResponse),
    ("Runs", "Rerun"): verb_of(rerun_dag, StartRunResponse),
    ("Runs", "ListInputs"): verb_of(list_inputs, ListInputsResponse),
    ("Runs", "SubmitInput"): verb_of(submit_input, SubmitInputResponse),
    ("Streams", "Ask"): Verb("operator", ask),
    ("Values", "Read"): Verb("viewer", follow=read_large_value),
    ("Changes", "Watch"): Verb("viewer", follow=watch),
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
        elif field.message_type is not None and not field.is_repeated:
            if request.HasField(field.name):
                found[field.name] = fields_of(value, types[field.name])
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
            part = None if field.message_type is None else GetMessageClass(field.message_type)
            getattr(message, field.name).extend(value if part is None else [filled(part, each) for each in value])
        else:
            setattr(message, field.name, value)
    return message
