"""The schema of an empty database that is measured."""

from datetime import UTC, datetime

from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.jobs.history import partitions as history_partitions
from tidemill.store.migrate import migrate


async def install_schema(dsn: str) -> None:
    """The tables, and the partitions of today: what maintenance does first."""
    async with Database(DatabaseSettings(url=dsn)) as database:
        await migrate(database)
        await history_partitions.make_partitions(database, datetime.now(UTC).date())
