"""Sealing payloads again with the newest key, in every table of an application, while it works."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.core.encoding.sealing import SEALED, reseal
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database

#: The columns of the application's tables that may hold something sealed; partitions by themselves.
PAYLOAD_COLUMNS = """
SELECT c.oid::regclass::text AS place, a.attname AS name, t.typname AS kind
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
JOIN pg_type AS t ON t.oid = a.atttypid
WHERE n.nspname = ANY ($1) AND c.relkind = 'r' AND t.typname IN ('json', 'text', 'bytea', '_bytea')
ORDER BY 1, 2
"""

#: A batch of values with something sealed, from a place in the table on; bytes as hexadecimal text.
_FIND = """
SELECT ctid AS row, {name}::text AS value FROM {place}
WHERE ctid > $1 AND {name}::text LIKE $2 ORDER BY ctid LIMIT 500
"""

#: Replaces a value, unless it has changed since.
_REPLACE = "UPDATE {place} SET {name} = $3::text::{kind} WHERE ctid = $1 AND {name}::text = $2"

_TYPES = {"json": "json", "text": "text", "bytea": "bytea", "_bytea": "bytea[]"}


class Resealed(msgspec.Struct, frozen=True):
    """How many values were sealed again, with which key; `left` were changed meanwhile by others."""

    key_id: str
    count: int
    left: int


async def reseal_payloads(database: Database) -> Resealed:
    """Seal what other keys have sealed with the newest one. Repeat it until nothing is left."""
    codec = database.codec
    newest = getattr(codec, "newest", None)
    if codec is None or newest is None:
        raise ConfigError("this application has no codec with keys: there is nothing to seal again")
    count = left = 0
    # The values are read as they are stored: a connection that opens nothing.
    connection = await database.connect_to_listen()
    try:
        schemas = list({database.schema, database.installation})
        for column in await connection.fetch(PAYLOAD_COLUMNS, schemas):
            done, missed = await _reseal_column(connection, codec, newest, column)
            count, left = count + done, left + missed
    finally:
        await connection.close()
    return Resealed(newest, count, left)


async def _reseal_column(connection: Any, codec: Any, newest: str, column: Any) -> tuple[int, int]:
    kind, names = column["kind"], {"place": column["place"], "name": f'"{column["name"]}"'}
    find, replace = _FIND.format(**names), _REPLACE.format(kind=_TYPES[kind], **names)
    mark = SEALED if kind in ("json", "text") else SEALED.encode().hex()
    done, missed, after = 0, 0, (0, 0)
    while rows := await connection.fetch(find, after, f"%{mark}%"):
        for row in rows:
            after = row["row"]
            made = _again(codec, newest, row["value"], kind)
            if made == row["value"]:
                continue
            if (await connection.execute(replace, row["row"], row["value"], made)).endswith(" 1"):
                done += 1
            else:
                missed += 1
    return done, missed


def _again(codec: Any, newest: str, value: str, kind: str) -> str:
    if kind == "bytea":
        return "\\x" + reseal(codec, newest, bytes.fromhex(value[2:])).hex()
    if kind == "_bytea":
        parts = value[1:-1].split(",") if value != "{}" else []
        made = (reseal(codec, newest, bytes.fromhex(part.strip('"').lstrip("\\")[1:])).hex() for part in parts)
        return "{" + ",".join(f'"\\\\x{each}"' for each in made) + "}"
    return reseal(codec, newest, value.encode()).decode()
