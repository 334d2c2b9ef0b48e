"""Connections that know PostgreSQL's own array types without asking for them.

asyncpg asks for each array type that a statement uses, on every new connection, with a statement that takes longer to
plan than most of ours take to run. These types have the same ids in every version of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import asyncpg

#: The name of an element type, its id, and the id of its array type.
_BUILT_IN = (
    ("bool", 16, 1000),
    ("bytea", 17, 1001),
    ("int8", 20, 1016),
    ("int2", 21, 1005),
    ("int4", 23, 1007),
    ("json", 114, 199),
    ("float4", 700, 1021),
    ("float8", 701, 1022),
    ("varchar", 1043, 1015),
    ("date", 1082, 1182),
    ("timestamptz", 1184, 1185),
    ("numeric", 1700, 1231),
    ("uuid", 2950, 2951),
    ("jsonb", 3802, 3807),
    ("xid8", 5069, 271),
)

#: The rows that asyncpg would have read, by the id of the type.
ARRAY_TYPES: dict[int, dict[str, Any]] = {
    array: {
        "oid": array,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "elemtype": element,
        "elemdelim": b",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
        "basetype_name": None,
        "elemtype_name": name,
        "range_subtype_name": None,
    }
    for name, element, array in _BUILT_IN
}

#: Stands for the statement that was not sent: with a name, so that asyncpg prepares nothing again.
_NOT_SENT = SimpleNamespace(name="not sent")


class KnownTypesConnection(asyncpg.Connection):
    """A connection that asks the server only for types that are not PostgreSQL's own arrays."""

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float) -> Any:
        wanted = list(typeoids)
        known = [ARRAY_TYPES[oid] for oid in wanted if oid in ARRAY_TYPES]
        if len(known) == len(wanted):
            return known, _NOT_SENT
        return await super()._introspect_types(wanted, timeout)  # pyright: ignore[reportAttributeAccessIssue]
