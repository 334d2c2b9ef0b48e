"""How long data is kept, as set by operators; unset values fall back to the configuration of the processes."""

from __future__ import annotations

from typing import Annotated

import asyncpg
import msgspec
from msgspec import Meta

from tidemill.core.codec import decode, encode
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database
from tidemill.store.transaction import Transaction

MOST_DAYS = 3650

#: The stored setting, with who set it and when.
READ_SETTING = "SELECT value, by, at FROM tidemill.setting WHERE name = 'retention'"
SET_SETTING = """
INSERT INTO tidemill.setting (name, value, by) VALUES ('retention', $1, $2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, by = excluded.by, at = now()
"""

#: The size of each family of tables, and the oldest day of finished jobs.
MEASURE = """
SELECT part.family, sum(pg_total_relation_size(c.oid))::bigint AS bytes,
       min(substring(c.relname FROM '_(\\d{8})$')) AS oldest
FROM (VALUES ('jobs', 'job_history'), ('logs', 'job_log'), ('logs', 'run_log'), ('events', 'event_log'),
             ('runs', 'run'), ('runs', 'tick'), ('runs', 'published'), ('runs', 'snapshot')) AS part(family, name)
JOIN pg_class AS p ON p.oid = to_regclass('tidemill.' || part.name)
JOIN pg_class AS c ON c.oid = p.oid OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = p.oid)
GROUP BY part.family
"""


class Retention(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """For how many days finished jobs and their logs, ended runs, and the event log are kept; None: as configured."""

    jobs: Annotated[int | None, Meta(description="Days for finished jobs and what they logged.")] = None
    runs: Annotated[int | None, Meta(description="Days for ended runs.")] = None
    events: Annotated[int | None, Meta(description="Days for the event log.")] = None

    def validate(self) -> Retention:
        for name in self.__struct_fields__:
            days = getattr(self, name)
            if days is not None and not 1 <= days <= MOST_DAYS:
                raise ConfigError(f"{name}: {days} days is out of range: choose 1 to {MOST_DAYS}")
        return self


async def read_retention(database: Database) -> tuple[Retention, asyncpg.Record | None]:
    """The current setting, with who set it and when."""
    row = await database.fetchrow(READ_SETTING)
    return (Retention(), None) if row is None else (decode(row["value"], Retention), row)


async def set_retention(tx: Transaction, wanted: Retention) -> None:
    """Set how long data is kept, from the next round of maintenance on."""
    wanted.validate()
    row = await tx.fetchrow(READ_SETTING)
    await tx.execute(SET_SETTING, encode(wanted), tx.by)
    before = None if row is None else decode(row["value"])
    await tx.audit("retention.set", "retention", before=before, after=wanted)


async def measure_kept(database: Database) -> dict[str, asyncpg.Record]:
    """How much is stored of each kind."""
    return {row["family"]: row for row in await database.fetch(MEASURE)}
