"""A transaction of outcomes whose answer is lost is repeated, and happens once: no id of the cluster is needed."""

from __future__ import annotations

import asyncio

from tests.support import eventually, value
from tidemill.store.database import Database
from tidemill.store.streams.commits import OnceCommitter, drop_committers


async def begin(database: Database, committer: OnceCommitter) -> bool:
    async with database.transaction() as connection:
        return await committer.is_new(database, connection)


async def test_a_committed_transaction_is_known_and_one_that_was_rolled_back_is_new(database: Database) -> None:
    committer = OnceCommitter()
    committer.next()
    try:
        async with database.transaction() as connection:
            assert await committer.is_new(database, connection)
            raise RuntimeError("rolled back")
    except RuntimeError:
        pass
    assert await begin(database, committer)
    assert not await begin(database, committer)
    committer.next()
    assert await begin(database, committer)


async def test_a_repetition_waits_for_the_transaction_that_has_not_ended(database: Database) -> None:
    committer = OnceCommitter()
    committer.next()
    async with database.transaction() as connection:
        assert await committer.is_new(database, connection)
        again = asyncio.create_task(begin(database, committer))
        waiting = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'stream_commit'"
        await eventually(lambda: value(database, waiting))
        assert not again.done()
    assert not await again


async def test_a_cluster_that_has_lost_the_transaction_gets_it_again(database: Database) -> None:
    committer = OnceCommitter()
    committer.next()
    assert await begin(database, committer)
    await drop_committers(database, [committer.id])  # as in a standby that was promoted without it
    assert await begin(database, committer)
