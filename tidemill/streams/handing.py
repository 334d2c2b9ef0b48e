"""What messages hand over: jobs, log entries, statements, events, stored in one transaction with their completion."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill.core.errors import NotFoundError
from tidemill.core.job import NewJob
from tidemill.store import eventlog
from tidemill.store.database import Database, Executor
from tidemill.store.jobs import insert_jobs
from tidemill.store.runs import HAS_ARRIVED, SEND
from tidemill.streams.message import HandOver

#: How long a job that was handed over cannot be handed over again by a repetition of its message.
IDEMPOTENT_FOR = 86_400.0


async def store_handed(database: Database, connection: Executor, handed: Sequence[HandOver], *, exact: bool) -> None:
    """Store all of it. `exact`: the source's position is stored in the same transaction, so no keys are needed."""
    jobs = [_job(each, exact=exact) for each in handed if each.kind == "job"]
    if jobs:
        await insert_jobs(database, connection, jobs, notify=True)
    entries = [eventlog.Entry(each.name, each.body, each.key) for each in handed if each.kind == "log"]
    await eventlog.append(connection, database.schema, entries)
    for each in handed:
        if each.kind == "sql":
            await connection.execute(each.name, *msgspec.json.decode(each.body))
        elif each.kind == "event":
            await _send(database, connection, each)


def _job(handed: HandOver, *, exact: bool) -> NewJob:
    job = msgspec.json.decode(handed.body, type=NewJob)
    if exact or handed.key is None:
        return job
    return msgspec.structs.replace(job, unique_key=handed.key, unique_for=IDEMPOTENT_FOR)


async def _send(database: Database, connection: Executor, handed: HandOver) -> None:
    run = int(handed.name)
    if await connection.fetch(database.sql(HAS_ARRIVED), run, handed.key):
        return
    if not await connection.fetch(database.sql(SEND), run, handed.body):
        raise NotFoundError(f"run {run} does not exist or has ended: it takes no event")
