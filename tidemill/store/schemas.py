"""The schemas of an installation and of its applications: their names, and how statements and channels name them."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from tidemill.core.errors import ConfigError

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,30}\Z")
_CHANNELS = "jobs|control|schedules|runs|hosts|accounts|streams|states|changes|monitors"
SHARED_CHANNELS = frozenset({"hosts", "accounts"})
#: Where a statement names a schema or a channel in it.
SCHEMA_NAMES = re.compile(rf"\b(tidemill|installation)(?=\.|_(?:{_CHANNELS})')")
_LONGEST_SCHEMA = 48  # A channel is the schema plus a suffix, at most 63 bytes.


@lru_cache(512)
def in_schema(statement: str, schema: str, installation: str | None = None) -> str:
    """Replace `tidemill` and `installation`, and their channels, with these schemas."""
    return SCHEMA_NAMES.sub(lambda found: schema if found[1] == "tidemill" else installation or schema, statement)


#: The words of SQL that PostgreSQL takes for a name only in quotes.
RESERVED = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation
    column concurrently constraint create cross current_catalog current_date current_role current_schema
    current_time current_timestamp current_user default deferrable desc distinct do else end except false fetch for
    foreign freeze from full grant group having ilike in initially inner intersect into is isnull join lateral
    leading left like limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps
    placing primary references returning right select session_user similar some symmetric system_user table
    tablesample then to trailing true union unique user using variadic verbose when where window with
    """.split()  # noqa: SIM905 - a list of strings would fill a page
)


def check_schema_name(name: str) -> str:
    """Reject a name that would need quoting."""
    if name in RESERVED or name.startswith("pg_"):
        raise ConfigError(f"schema {name!r} is not usable: PostgreSQL reserves this name")
    if not _SCHEMA_NAME.match(name):
        raise ConfigError(f"schema {name!r} is not usable: use up to 31 lower-case letters, digits and underscores")
    return name


def identifier(name: str, longest: int = 31) -> str:
    """Turn an application's name into a schema name that needs no quotes; long names are cut and get a hash."""
    made = re.sub(r"[^a-z0-9_]+", "_", name.lower())
    made = made if re.match(r"[a-z_]", made) else f"_{made}"
    return made if len(made) <= longest else f"{made[: longest - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def schema_of(application: str, installation: str) -> str:
    """The schema of an application that is not the first of its installation."""
    return identifier(f"{installation}_{application}", _LONGEST_SCHEMA)
