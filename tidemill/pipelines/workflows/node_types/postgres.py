"""The node that queries a PostgreSQL database."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows.expressions.javascript import evaluate, shown
from tidemill.pipelines.workflows.expressions.safe_templates import sql_template
from tidemill.pipelines.workflows.node_types.values import pairs
from tidemill.pipelines.workflows.nodes import credential_of, node_type, number_of

_ALONE = re.compile(r"\(\((\$\d+)\)::text\)")  # as `sql_template` writes '{{…}}'
_NAMED = re.compile(r"%\(([^)]+)\)s|%%")


@node_type("postgres_query", role="admin", raw=("query",), expands=True)
async def postgres_query(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Queries a PostgreSQL database, each row an item; each {{…}} and %(name)s in the query is a bound parameter."""
    import asyncpg

    given = list(data.get("parameters") or [])
    named = pairs(data.get("params"), "params")
    template = sql_template(named_parameters(str(data["query"]), named), first=len(given) + 1)
    values = [*given, *(evaluate(each, item, **{"$params": named}) for each in template.expressions)]
    try:
        connection = await asyncpg.connect(**_address(data))
    except (OSError, asyncpg.PostgresError, TimeoutError) as error:
        raise ConfigError(f"the database cannot be reached: {error}") from error
    try:
        prepared = await _prepared(connection, template.text)
        types = prepared.get_parameters()
        if len(types) != len(values):
            raise ConfigError(f"the query has {len(types)} parameters, and {len(values)} values are given")
        rows = await prepared.fetch(
            *[await _typed(connection, kind, value) for kind, value in zip(types, values, strict=True)]
        )
        columns = prepared.get_attributes()
        if not columns:
            return {"affected": _affected(prepared.get_statusmsg())}
    except asyncpg.PostgresError as error:
        raise ConfigError(f"the query failed: {error}") from error
    finally:
        await connection.close()
    documents = [each.name for each in columns if each.type.name in ("json", "jsonb")]
    return [_row(dict(row), documents) for row in rows]


def _row(row: dict[str, Any], documents: Collection[str]) -> dict[str, Any]:
    """A row as JSON: documents as they are, sums and averages as numbers, times as texts."""
    parsed = {name: json.loads(row[name]) for name in documents if row[name] is not None}
    return json.loads(json.dumps({**row, **parsed}, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    return value.isoformat() if isinstance(value, date) else str(value)


async def _prepared(connection: Any, statement: str) -> Any:
    """A statement in which '{{…}}' has the type that its place needs, as a text of SQL has, and is a text elsewhere."""
    import asyncpg

    try:
        return await connection.prepare(_ALONE.sub(r"\1", statement))
    except (asyncpg.IndeterminateDatatypeError, asyncpg.AmbiguousFunctionError):
        return await connection.prepare(statement)


def named_parameters(query: str, named: Mapping[str, Any]) -> str:
    """A query whose `%(name)s` are templates, as {{…}} are."""
    if not _NAMED.search(query) or not (named or re.search(r"%\([^)]+\)s", query)):
        return query

    def put(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "%"
        if name not in named:
            raise ConfigError(f"the query reads %({name})s, and params has no such name")
        return f"{{{{$params[{json.dumps(name)}]}}}}"

    return _NAMED.sub(put, query)


def _address(data: Mapping[str, Any]) -> dict[str, Any]:
    if data.get("url"):
        return {"dsn": str(data["url"])}
    if data.get("urlVariable"):
        address = os.environ.get(str(data["urlVariable"]))
        if not address:
            raise ConfigError(f"the environment variable {data['urlVariable']} holds no database address")
        return {"dsn": address}
    held = credential_of({"credentialName": data.get("credentialName") or "postgres"}) or {}
    if held.get("url"):
        return {"dsn": held["url"]}
    return {
        "host": held.get("server") or held.get("host"),
        "port": int(number_of(held, "port", 5432)),
        "database": held.get("database"),
        "user": held.get("user") or held.get("username"),
        "password": held.get("password"),
    }


def _affected(status: str) -> int:
    last = status.rpartition(" ")[2]
    return int(last) if last.isdigit() else 0


async def _typed(connection: Any, kind: Any, value: Any) -> Any:
    """A value as its parameter's type needs it: PostgreSQL reads a text or a number as it reads a literal."""
    if value is None or kind.name in ("text", "varchar", "bpchar", "name"):
        return None if value is None else shown(value)
    if kind.name in ("json", "jsonb"):
        return json.dumps(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return await connection.fetchval(f'SELECT $1::text::"{kind.schema}"."{kind.name}"', shown(value))
    return value
