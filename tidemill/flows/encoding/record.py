"""Encode and decode the record of a step: its operations, whose results may refer to values of the run's state.

A value that was read and is still in the state is stored as the path to it, and one that has changed since as the
parts that differ: a state of 100 kB that is read before each of twenty waits is not stored twenty times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

from pydantic import BaseModel

from tidemill.core.errors import PayloadError
from tidemill.flows.encoding.dict_like import DictLikeModel
from tidemill.flows.encoding.values import pack, unpack
from tidemill.flows.reducer.record import NEW_MARKS, READS, RecordedOperation
from tidemill.flows.reducer.state.diff import same
from tidemill.flows.reducer.state.paths import MISSING, read_path

#: A string that is shorter than this is stored as it is.
_SHORT = 64

NO_STATE: Any = object()
"""Stands for the state where there is none to refer to: values are stored as they are."""


UNKNOWN: Any = object()
"""The result of a read of a live object, which could not be saved: it is read again."""


class StateReference:
    """A result of a read as it was stored, until the reducer knows the state that it refers to."""

    __slots__ = ("stored",)

    def __init__(self, stored: Any) -> None:
        self.stored = stored


def pack_record(
    operations: Sequence[RecordedOperation], store: Any, name: str, *, lenient: bool = False
) -> dict[str, Any]:
    """Convert operations to plain JSON values. With `lenient`, a read that has no JSON form is read again later.

    The version before reads those under `name`, and knows neither marks nor details of exceptions: they are apart.
    """
    known = [each for each in operations if each.kind not in NEW_MARKS]
    packed: dict[str, Any] = {name: [_pack_operation(each, store, lenient) for each in known]}
    if len(known) < len(operations):
        marks = ((n, each) for n, each in enumerate(operations) if each.kind in NEW_MARKS)
        packed["marks"] = [(n, each.lane, each.kind, each.key) for n, each in marks]
    if details := [(n, each.error[2]) for n, each in enumerate(known) if each.error and len(each.error) > 2]:
        packed["details"] = details
    return packed


def unpack_record(data: dict[str, Any], name: str) -> tuple[RecordedOperation, ...]:
    """Convert plain JSON values back to operations; `resolve` finds what their reads refer to."""
    details = dict(data.get("details", ()))
    operations = [_unpack_operation(details.get(n), *each) for n, each in enumerate(data.get(name, ()))]
    for n, *mark in data.get("marks", ()):
        operations.insert(n, RecordedOperation(*mark))
    return tuple(operations)


def resolve(operations: Iterable[RecordedOperation], store: Any) -> tuple[RecordedOperation, ...]:
    """Return the operations with the values of the state that their reads refer to."""
    return tuple(
        RecordedOperation(each.lane, each.kind, each.key, _resolved(each.result.stored, store))
        if isinstance(each.result, StateReference)
        else each
        for each in operations
    )


def _pack_operation(each: RecordedOperation, store: Any, lenient: bool) -> list[Any]:
    result = each.result
    if each.kind not in READS:
        packed = pack(result)
    elif isinstance(result, StateReference):
        packed = result.stored  # It comes from a job of the step, and is journaled as it came.
    else:
        try:
            packed = _refer(result, read_path(store, each.key) if store is not NO_STATE else MISSING, each.key)
        except PayloadError:
            if not lenient:
                raise
            packed = ["~"]
    data = [each.lane, each.kind, each.key, packed]
    if each.error is not None or each.leaves:
        data += [each.error and each.error[:2], each.leaves]
    return data


def _unpack_operation(
    detail: Any, lane: str, kind: str, key: str, packed: Any, error: Any = None, leaves: bool = False
) -> RecordedOperation:
    result = StateReference(packed) if kind in READS else unpack(packed)
    raised = None if error is None else (*error, detail) if detail else tuple(error)
    return RecordedOperation(lane, kind, key, result, raised, leaves)


def _refer(value: Any, now: Any, path: str) -> Any:
    """Return a value as a reference to what the state has at a path, or as the parts that differ from it.

    ["@", path] the value at the path     ["=", value]         another value      ["?"] no value
    ["{", path, names]  a dict            ["[", path, n, more] a list that begins with n items of another
    ["$", names, gone]  the whole state   ["~"]                read it again
    """
    if value is MISSING or value is UNKNOWN:
        return ["?"] if value is MISSING else ["~"]
    if isinstance(value, BaseModel) and path == "" and type(value) is type(now):
        return _refer_state(value, now)
    if isinstance(value, str):
        return ["@", path] if len(value) > _SHORT and value == now else ["=", value]
    if value is None or isinstance(value, bool | int | float) or now is MISSING:
        return ["=", pack(value)]
    if value is now or same(value, now):
        return ["@", path]
    if type(value) is dict and type(now) is dict and all(isinstance(name, str) and "." not in name for name in value):
        return ["{", {name: _refer(each, now.get(name, MISSING), f"{path}.{name}") for name, each in value.items()}]
    if type(value) is list and type(now) is list:
        count = 0
        for one, other in zip(value, now, strict=False):
            if not (one is other or same(one, other)):
                break
            count += 1
        if count:
            return ["[", path, count, [pack(each) for each in value[count:]]]
    return ["=", pack(value)]


def _refer_state(value: BaseModel, now: BaseModel) -> Any:
    if not same(value.__pydantic_private__, now.__pydantic_private__):
        return ["=", pack(value)]
    then, here = _names(value), _names(now)
    if any("." in name or not name for name in (*then, *here)):
        return ["=", pack(value)]
    parts = {name: _refer(each, here.get(name, MISSING), name) for name, each in then.items()}
    if all(part == ["@", name] for name, part in parts.items()) and then.keys() == here.keys():
        return ["@", ""]
    return ["$", parts]


def _names(state: BaseModel) -> dict[str, Any]:
    return {**state.__dict__, **(state.__pydantic_extra__ or {})}


def _resolved(stored: Any, store: Any) -> Any:
    match stored:
        case ["=", value]:
            return unpack(value)
        case ["@", path]:
            return read_path(store, path) if path else copy(store)
        case ["{", names]:
            return {name: _resolved(each, store) for name, each in names.items()}
        case ["[", path, count, more]:
            return [*read_path(store, path)[:count], *map(unpack, more)]
        case ["$", names]:
            return _with_values(store, {name: _resolved(each, store) for name, each in names.items()})
        case ["?"]:
            return MISSING
        case ["~"]:
            return UNKNOWN
    raise PayloadError(f"unknown form of a recorded value {stored!r}: it may be of a newer version of Tidemill")


def _with_values(store: Any, values: dict[str, Any]) -> Any:
    """Return a copy of the state that has exactly these values."""
    made = copy(store)
    fields = type(made).__pydantic_fields__
    made.__dict__.update({name: value for name, value in values.items() if name in fields})
    dynamic = {name: value for name, value in values.items() if name not in fields}
    if isinstance(made, DictLikeModel):
        made._data.clear()
        made._data.update(dynamic)
    elif made.__pydantic_extra__ is not None:
        made.__pydantic_extra__.clear()
        made.__pydantic_extra__.update(dynamic)
    return made
