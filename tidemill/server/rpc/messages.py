"""The messages of `tidemill.proto`, made from their description here, so that no generated code has to fit a version.

A field is `name:type`; `name?:type` may be missing, `name*:type` may be repeated; fields are numbered in their order.
A test compiles `tidemill.proto` and compares.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

PACKAGE = "tidemill.v1"
FILE = "tidemill/server/rpc/tidemill.proto"

_Field = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "double": _Field.TYPE_DOUBLE,
}
_TIME = ".google.protobuf.Timestamp"

#: Every message, in the order of the file.
MESSAGES = {
    "EnqueueRequest": """task:string args:string queue?:string priority?:int32 delay?:string at:Time deadline?:string
        unique_key?:string unique_for?:string concurrency_key?:string tags*:string""",
    "EnqueueResponse": "id:int64 created:bool",
    "GetJobRequest": "id:int64",
    "Job": """id:int64 state:string queue:string task:string priority:int32 attempt:int32 failures:int32 losses:int32
        created_at:Time due_at:Time started_at:Time finished_at:Time progress?:double note?:string tags*:string
        run_id?:int64 unique_key?:string args?:string result?:string errors?:string why*:string""",
    "ListJobsRequest": """state*:string queue?:string task?:string tag?:string key?:string run?:int64 limit?:int32
        cursor?:string""",
    "ListJobsResponse": "items*:Job next?:string",
    "JobIds": "ids*:int64",
    "JobsReached": "done:int64 asked:int64 unchanged:int64 ids*:int64",
    "StartRunRequest": "workflow:string args:string key?:string",
    "StartRunResponse": "id:int64 created:bool",
    "GetRunRequest": "id:int64",
    "Run": """id:int64 workflow:string shape:string state:string key?:string ticks:int64 created_at:Time ended_at:Time
        note?:string parent?:int64 forked_from?:int64 input?:string result?:string error?:string why*:string""",
    "ListRunsRequest": """state*:string workflow?:string shape?:string key?:string parent?:int64 limit?:int32
        cursor?:string""",
    "ListRunsResponse": "items*:Run next?:string",
    "CancelRunRequest": "id:int64 reason?:string",
    "CancelRunResponse": "",
    "SendEventRequest": "id:int64 type:string fields:string step?:string",
    "SendEventResponse": "",
    "NewEvent": "type:string fields:string",
    "ForkRequest": "id:int64 at:int64 event:NewEvent",
    "RerunRequest": "id:int64 start?:string edited?:string",
    "ListInputsRequest": "run?:int64 limit?:int32 cursor?:string",
    "ListInputsResponse": "items*:Input next?:string",
    "Input": """run_id:int64 workflow:string shape:string node:string prompt:string schema?:string asked_at:Time
        due_at:Time""",
    "SubmitInputRequest": "id:int64 node:string value:string key?:string",
    "SubmitInputResponse": "taken:bool",
    "AskRequest": "stream:string eligibilities*:string payload:bytes",
    "AskResponse": "result:string failed_plans*:string failures*:string",
    "WatchRequest": "topics*:string last_id?:string",
    "Change": "id:string kind:string queues*:string runs*:int64 kinds*:string all_runs:bool",
}

#: Every service with its methods: what each takes and gives; `stream` in front where it gives many.
SERVICES = {
    "Jobs": {
        "Enqueue": "EnqueueRequest EnqueueResponse",
        "Get": "GetJobRequest Job",
        "List": "ListJobsRequest ListJobsResponse",
        "Cancel": "JobIds JobsReached",
        "Retry": "JobIds JobsReached",
    },
    "Runs": {
        "Start": "StartRunRequest StartRunResponse",
        "Get": "GetRunRequest Run",
        "List": "ListRunsRequest ListRunsResponse",
        "Cancel": "CancelRunRequest CancelRunResponse",
        "SendEvent": "SendEventRequest SendEventResponse",
        "Fork": "ForkRequest StartRunResponse",
        "Rerun": "RerunRequest StartRunResponse",
        "ListInputs": "ListInputsRequest ListInputsResponse",
        "SubmitInput": "SubmitInputRequest SubmitInputResponse",
    },
    "Streams": {"Ask": "AskRequest AskResponse"},
    "Changes": {"Watch": "WatchRequest stream Change"},
}


def describe_file() -> Any:
    """The description of `tidemill.proto`."""
    file = descriptor_pb2.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, each in enumerate(fields.split(), start=1):
            _add_field(message, number, *each.split(":"))
    for name, methods in SERVICES.items():
        service = file.service.add(name=name)
        for verb, types in methods.items():
            taken, *many, given = types.split()
            method = service.method.add(name=verb, input_type=f".{PACKAGE}.{taken}", output_type=f".{PACKAGE}.{given}")
            if many:
                method.server_streaming = True
    return file


def _add_field(message: Any, number: int, name: str, kind: str) -> None:
    plain = name.rstrip("?*")
    label = _Field.LABEL_REPEATED if name.endswith("*") else _Field.LABEL_OPTIONAL
    field = message.field.add(name=plain, number=number, label=label)
    if kind in _KINDS:
        field.type = _KINDS[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, _TIME if kind == "Time" else f".{PACKAGE}.{kind}"
    if name.endswith("?"):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{plain}")


_pool = descriptor_pool.Default()
_pool.Add(describe_file())

Timestamp = timestamp_pb2.Timestamp


def message_class(name: str) -> Any:
    """The class of a message, by its name in the file."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def service_name(name: str) -> str:
    """A service's whole name."""
    return f"{PACKAGE}.{name}"
