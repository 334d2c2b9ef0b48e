"""Values that are too large for an answer: their beginning in place of them, and the whole in pieces.

A statement that shows values to people selects `cut(column, place)` in place of the column. A value of more than 64 kB
then is `{"$cut": {"first": its first characters, "bytes": its size, "whole": where the rest is}}`, and never leaves the
database as a whole. Of a value that holds a secret or is sealed, no beginning is shown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import msgspec

from tidemill.core.codec import SECRET, decode, encode, mask_secrets
from tidemill.core.encoding.sealing import SEALED
from tidemill.core.errors import ConflictError, NotFoundError
from tidemill.store.database import Database

SHOWN_BYTES = 65_536
PIECE_BYTES = 4 << 20
SHORT_BYTES = 2000
SHORT_CHARACTERS = 200
CUT = "$cut"
VALUES = "/api/v1/values"

#: What means something in the path of a URL, and in the ids of entities and events.
_ENCODED = "replace(replace(replace(replace({0}::text, '%', '%25'), '/', '%2F'), '?', '%3F'), '#', '%23')"
#: Whether a value has to be read as a whole: it holds a secret, or something sealed.
_SECRET = f'''(position('"{SECRET}"' in {{column}}::text) + position('{SEALED}' in {{column}}::text) > 0)'''


def cut(column: str, place: str) -> str:
    """SQL for a JSON column, or for its beginning; `place` is SQL for the place of the whole, as in `PLACES`."""
    secret = _SECRET.format(column=column)
    return (
        f"CASE WHEN octet_length({column}::text) > {SHOWN_BYTES} THEN json_build_object('{CUT}', "
        f"json_build_object('first', CASE WHEN {secret} THEN '' ELSE left({column}::text, {SHOWN_BYTES}) END, "
        f"'bytes', octet_length({column}::text), 'whole', '{VALUES}/' || {place})) ELSE {column} END"
    )


def shortened(column: str) -> str:
    """SQL for the beginning of a JSON column as text; null if it is large, holds a secret or is sealed."""
    secret = _SECRET.format(column=column)
    # The stored size is known without reading a large value.
    return (
        f"CASE WHEN pg_column_size({column}) <= {SHORT_BYTES} AND NOT {secret} "
        f"THEN left({column}::text, {SHORT_CHARACTERS}) END"
    )


def place_of(where: str, *ids: str) -> str:
    """SQL for the place of a value: the columns of its ids after its kind and its field, each encoded for a URL."""
    joined = " || '/' || ".join(_ENCODED.format(each) for each in ids)
    return f"'{where}/' || {joined}"


def cut_value(value: Any, whole: str) -> Any:
    """The same for a value that is computed: `whole` is where it is shown in full."""
    text = encode(value)
    if len(text) <= SHOWN_BYTES:
        return value
    return {CUT: {"first": text[:SHOWN_BYTES].decode(errors="ignore"), "bytes": len(text), "whole": whole}}


def value_place(text: str) -> tuple[str, str, str]:
    """The kind, field and key in the place of a value, or in the address that an answer names."""
    kind, _, rest = text.removeprefix(VALUES).strip("/").partition("/")
    field, _, key = rest.partition("/")
    if not (kind and field and key):
        raise NotFoundError(f"{text!r} is not the place of a value, such as job/result/7")
    return kind, field, unquote(key) if text.startswith(VALUES) else key


class CutValue(msgspec.Struct, frozen=True):
    """The beginning of a value, its size, and where the whole is."""

    first: str
    bytes: int
    whole: str


def find_cut(value: Any) -> CutValue | None:
    """What is known of a value that was cut; None if it is whole."""
    if not isinstance(value, dict) or set(value) != {CUT} or not isinstance(value[CUT], dict):
        return None
    return msgspec.convert(value[CUT], CutValue)


_JOB = """
SELECT {0}::text AS value, xmin::text AS version FROM tidemill.job WHERE id = $1::text::bigint
UNION ALL SELECT {0}::text, '' FROM tidemill.job_history WHERE id = $1::text::bigint
"""
_PAST_JOB = "SELECT {0}::text AS value, '' AS version FROM tidemill.job_history WHERE id = $1::text::bigint"
_RUN = "SELECT {0}::text AS value, xmin::text AS version FROM tidemill.run WHERE id = $1::text::bigint"
_AUDIT = "SELECT {0}::text AS value, '' AS version FROM installation.audit WHERE id = $1::text::bigint"
_OF_RUN = """
SELECT data::text AS value, '' AS version FROM tidemill.{0} WHERE run_id = $1::text::bigint AND seq = $2::text::bigint
"""

#: Every value that an answer may cut, by its place: `job/result/ID`, `tick/data/RUN/SEQ`. Ids are the parameters.
PLACES: dict[tuple[str, str], str] = {
    ("job", "args"): _JOB.format("args"),
    ("job", "errors"): _JOB.format("errors"),
    ("job", "result"): _PAST_JOB.format("result"),
    ("run", "input"): _RUN.format("input"),
    ("run", "result"): _RUN.format("result"),
    ("run", "error"): _RUN.format("error"),
    ("tick", "data"): _OF_RUN.format("tick"),
    ("published", "data"): _OF_RUN.format("published"),
    ("entity", "state"): """
SELECT state::text AS value, xmin::text AS version FROM tidemill.monitor_entity WHERE monitor = $1 AND entity = $2
""",
    ("audit", "before"): _AUDIT.format("before"),
    ("audit", "after"): _AUDIT.format("after"),
    ("event", "data"): """
SELECT data::text AS value, '' AS version FROM tidemill.monitor_event
WHERE monitor = $1 AND tick = $2::text::bigint AND source_id = $3
""",
}
_IDS = {"tick": 2, "published": 2, "entity": 2, "event": 3}

#: A piece of a value: its size, whether it holds a secret, and the bytes from `$n` on.
_PIECE = """
SELECT octet_length(value) AS bytes, false AS sealed, {secret} AS secret, version,
       '\\x00'::bytea || substring(convert_to(value, 'UTF8') FROM ${start}::int FOR {piece}) AS piece
FROM ({value}) AS found
"""

#: A dead letter's payload need not be text.
_DEAD_LETTER = """
SELECT octet_length(payload) AS bytes, substring(payload FOR 8) = '$sealed:' AS sealed, false AS secret, '' AS version,
       '\\x00'::bytea || substring(payload FROM $2::int FOR {piece}) AS piece
FROM tidemill.dead_letter WHERE id = $1::text::bigint
"""


def _statement(kind: str, field: str) -> str | None:
    if (kind, field) == ("dead-letter", "payload"):
        return _DEAD_LETTER.format(piece=PIECE_BYTES)
    if (kind, field) not in PLACES:
        return None
    start = _IDS.get(kind, 1) + 1
    secret = _SECRET.format(column="value")
    return _PIECE.format(secret=secret, start=start, piece=PIECE_BYTES, value=PLACES[kind, field])


async def read_whole(database: Database, kind: str, field: str, key: str) -> AsyncIterator[bytes]:
    """A value in pieces, of which no two are held at once; secrets are masked, for which such a value is read whole."""
    statement = _statement(kind, field)
    ids = key.split("/", _IDS.get(kind, 1) - 1)
    numbers = [each for at, each in enumerate(ids) if kind not in ("entity", "event") or (kind == "event" and at == 1)]
    if statement is None or len(ids) != _IDS.get(kind, 1) or not all(_is_id(each) for each in numbers):
        raise NotFoundError(f"there is no value {kind}/{field}/{key}")
    start, version, whole = 1, None, bytearray()
    while True:
        row = await database.fetchrow(statement, *ids, start)
        if row is None or row["piece"] is None:
            raise NotFoundError(f"there is no value {kind}/{field}/{key}")
        if version not in (None, row["version"]):
            raise ConflictError(f"{kind}/{field}/{key} was changed while it was read: read it again")
        version, piece = row["version"], row["piece"][1:]  # The byte before it keeps a sealed one from being opened.
        start += len(piece)
        done = start > row["bytes"]
        if not (row["secret"] or row["sealed"]):
            yield piece
        else:
            whole += piece
            if done and row["sealed"]:
                yield (database.open_bytes(bytes(whole)) if database.opens else None) or bytes(whole)
            elif done:
                text = database.open_json(bytes(whole)) if database.opens else bytes(whole)
                yield encode(mask_secrets(decode(text)))
        if done:
            return


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18
