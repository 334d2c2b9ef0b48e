"""Stores the outbox of a message with its completion: jobs, log entries, statements, events, states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol

import msgspec

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.job import NewJob
from tidemill.store.database import Database, Executor
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.runs.inbox import HAS_ARRIVED, SEND
from tidemill.store.streams import event_log
from tidemill.streams.definition.message import OutboxItem

#: How long a repeated message cannot enqueue the same job again.
IDEMPOTENT_FOR = 86_400.0


class StateWriter(Protocol):
    """Writes states of pipelines; an application gives its streams one."""

    def check(self, pipeline: str | None, path: str) -> str:
        """The pipeline of the path; an error if that pipeline does not take the path from outside."""
        ...

    async def write(self, database: Database, connection: Executor, pipeline: str, states: dict[str, bytes]) -> None:
        """Write contents by path, in the connection's transaction if the pipeline keeps states in the database."""
        ...


async def store_outbox(
    database: Database,
    connection: Executor,
    outbox: Sequence[OutboxItem],
    *,
    exact: bool,
    states: StateWriter | None = None,
) -> None:
    """Store all items. `exact`: the position of the source is stored in the same transaction, so no keys are needed."""
    jobs = [_job(each, exact=exact) for each in outbox if each.kind == "job"]
    if jobs:
        await insert_jobs(database, connection, jobs, notify=True)
    entries = [event_log.Entry(each.name, each.body, each.key) for each in outbox if each.kind == "log"]
    await event_log.append(connection, database.schema, entries)
    statements = [each for each in outbox if each.kind == "sql"]
    for statement, some in groupby(statements, key=attrgetter("name")):
        await connection.executemany(statement, [msgspec.json.decode(each.body) for each in some])
    for each in outbox:
        if each.kind == "event":
            await _send(database, connection, each)
    # Last, because a written file is not rolled back: everything else that can fail has run by now.
    written: dict[str, dict[str, bytes]] = {}
    for each in outbox:
        if each.kind == "state":
            written.setdefault(each.name, {})[str(each.key)] = each.body
    for pipeline, contents in written.items():
        if states is None:
            raise ConfigError("states are written by streams that an application declares: app.stream(...)")
        await states.write(database, connection, pipeline, contents)


def _job(outbox: OutboxItem, *, exact: bool) -> NewJob:
    job = msgspec.json.decode(outbox.body, type=NewJob)
    if exact or outbox.key is None:
        return job
    return msgspec.structs.replace(job, unique_key=outbox.key, unique_for=IDEMPOTENT_FOR)


async def _send(database: Database, connection: Executor, outbox: OutboxItem) -> None:
    run = int(outbox.name)
    if await connection.fetch(database.sql(HAS_ARRIVED), run, outbox.key):
        return
    if not await connection.fetch(database.sql(SEND), run, outbox.body):
        raise NotFoundError(f"run {run} does not exist or has ended: it takes no event")
