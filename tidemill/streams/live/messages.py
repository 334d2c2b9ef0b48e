"""The messages of `live.proto`, built at run time, so that no generated code depends on a version of protobuf.

A test compiles `live.proto` and compares.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "tidemill.streams.v1"
FILE = "tidemill/streams/live/live.proto"
SERVICE = f"{PACKAGE}.Live"

_Field = descriptor_pb2.FieldDescriptorProto


def _field(message: Any, name: str, number: int, kind: int, *, repeated: bool = False, type_name: str = "") -> None:
    label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    made = message.field.add(name=name, number=number, type=kind, label=label)
    if type_name:
        made.type_name = type_name


def _text_map(message: Any, name: str, number: int) -> None:
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    _field(entry, "key", 1, _Field.TYPE_STRING)
    _field(entry, "value", 2, _Field.TYPE_STRING)
    entry.options.map_entry = True
    kind = f".{PACKAGE}.{message.name}.{entry.name}"
    _field(message, name, number, _Field.TYPE_MESSAGE, repeated=True, type_name=kind)


def describe_file() -> Any:
    """The file descriptor of `live.proto`."""
    file = descriptor_pb2.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    request = file.message_type.add(name="RunRequest")
    _field(request, "eligibilities", 1, _Field.TYPE_STRING, repeated=True)
    _field(request, "payload", 2, _Field.TYPE_BYTES)
    _text_map(request, "headers", 3)
    response = file.message_type.add(name="RunResponse")
    _field(response, "result", 1, _Field.TYPE_BYTES)
    _text_map(response, "failures", 2)
    run = file.service.add(name="Live").method.add(name="Run")
    run.input_type, run.output_type = f".{PACKAGE}.RunRequest", f".{PACKAGE}.RunResponse"
    return file


_pool = descriptor_pool.Default()
_pool.Add(describe_file())

RunRequest: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.RunRequest"))
RunResponse: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.RunResponse"))
