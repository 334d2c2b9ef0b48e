"""Writes `operations.proto`: a service for each family of operations, a method for each operation.

    python -m tidemill.server.rpc.proto         after an operation, an argument or a result has changed

Messages follow from the Structs of the operations. A field keeps the number that the file has for it; a new one gets
the next number of its message, so that clients of an older file go on working.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_origin

from tidemill.ops.operator.operation import Nothing, Operation
from tidemill.ops.operator.registry import all_operations
from tidemill.server.rpc.messages import fields_of, message_name, null_texts

PROTO = Path(__file__).with_name("operations.proto")

EMPTY = "google.protobuf.Empty"

_HEADER = """\
// Every operation over gRPC: the same names, arguments, results, tokens and roles as the HTTP API.
//
// Generated from the operations by `python -m tidemill.server.rpc.proto`: do not edit.
//
// Send a token as metadata: `authorization: Bearer tm_...`. A call that changes something may be repeated with the same
// `idempotency-key` as metadata: it acts once. A field with the comment JSON is JSON as text. The deadline of a call is
// kept. An error has a status, and the metadata `problem-type` with the type that HTTP gives to it:
//
// UNAUTHENTICATED      there is no token, or it is not valid
// PERMISSION_DENIED    the role is not enough, or the server is read-only
// NOT_FOUND            there is no such object
// FAILED_PRECONDITION  the state of the object does not allow it
// INVALID_ARGUMENT     an argument does not fit
// RESOURCE_EXHAUSTED   there are too many requests: try again later
// UNAVAILABLE          the database does not answer: try again later
syntax = "proto3";

package tidemill.v1;

import "google/protobuf/empty.proto";
import "google/protobuf/timestamp.proto";
"""


def service_of(operation: Operation[Any, Any]) -> str:
    """The service of an operation, which is called as the family of nouns in `ops/`."""
    return operation.run.__module__.split(".")[2].capitalize()


def method_of(operation: Operation[Any, Any]) -> str:
    """The method of an operation: `CancelJobs` for `cancel_jobs`."""
    return operation.name.title().replace("_", "")


def write_proto(before: str) -> str:
    """The text of `operations.proto`; `before` is the text that it replaces, whose numbers of fields are kept."""
    operations = sorted(all_operations(), key=lambda each: (service_of(each), each.name))
    requests = _messages({f"{method_of(each)}Request": each.args for each in operations})
    results = _messages({message_name(each.result): each.result for each in operations})
    numbers = {(at[1], name): int(number) for at in _MESSAGE.finditer(before) for name, number in _FIELD.findall(at[2])}
    services = dict.fromkeys(service_of(each) for each in operations)
    parts = [_HEADER]
    parts += [_service(name, [each for each in operations if service_of(each) == name]) for name in services]
    parts += [_message(name, kind, name in requests, numbers) for name, kind in {**requests, **results}.items()]
    return "\n".join(parts)


_MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"(\w+) = (\d+);")


def _messages(kinds: dict[str, Any]) -> dict[str, Any]:
    """These messages and those in their fields: the Struct of each by the message's name."""
    found: dict[str, Any] = {}

    def add(name: str, kind: Any) -> None:
        if found.setdefault(name, kind) != kind:
            raise TypeError(f"two Structs of operations would be the message {name}: rename one")
        for field in fields_of(kind):
            if field.type.struct is not None and field.type.proto not in found:
                add(field.type.proto, field.type.struct)

    for name, kind in kinds.items():
        if kind not in (Nothing, type(None)):
            add(name, kind)
    return found


def _service(name: str, operations: list[Operation[Any, Any]]) -> str:
    lines = [f"service {name} {{"]
    for each in operations:
        lines += [f"  // {line}".rstrip() for line in f"Role {each.role}. {each.description}".splitlines()]
        taken = EMPTY if each.args is Nothing else f"{method_of(each)}Request"
        returned = EMPTY if each.result is type(None) else message_name(each.result)
        lines.append(f"  rpc {method_of(each)}({taken}) returns ({returned});")
    return "\n".join([*lines, "}\n"])


def _message(name: str, kind: Any, is_request: bool, numbers: dict[tuple[str, str], int]) -> str:
    """A message. Each single field of a request says whether it is set, so that a missing argument can be reported."""
    about = (get_origin(kind) or kind).__doc__ or ""
    lines = [*(f"// {line}".rstrip() for line in about.strip().splitlines()[:1]), f"message {name} {{"]
    following = max((number for (message, _), number in numbers.items() if message == name), default=0)
    for field in fields_of(kind):
        number = numbers.get((name, field.name))
        if number is None:
            number = following = following + 1
        type = field.type
        null = "The empty text is null." if is_request and field.name in null_texts(kind) else ""
        if help := " ".join(filter(None, [field.help, null, "JSON." if type.is_json else ""])):
            lines.append(f"  // {help}")
        label = "repeated " if type.repeated else ""
        if not type.repeated and not type.is_map and type.struct is None and (is_request or type.nullable):
            label = "optional "
        lines.append(f"  {label}{type.proto} {field.name} = {number};")
    return "\n".join([*lines, "}\n"])


if __name__ == "__main__":
    PROTO.write_text(write_proto(PROTO.read_text() if PROTO.exists() else ""))
