"""Stores the outbox of a message with its completion: jobs, log entries, statements, events, states, sinks' items."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

import msgspec

from tidemill.core.codec import encode, storable
from tidemill.core.errors import ConfigError, NotFoundError, TidemillError
from tidemill.core.jobs.job import NewJob
from tidemill.store.database import Database, Executor
from tidemill.store.database_errors import is_full, is_unavailable
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.runs.inbox import HAS_ARRIVED, SEND
from tidemill.store.states.origins import FileOrigin
from tidemill.store.streams import event_log
from tidemill.store.streams.outbox import add_items
from tidemill.streams.definition.message import OutboxItem

#: How long a repeated message cannot enqueue the same job again.
IDEMPOTENT_FOR = 86_400.0


class InterruptedStatementError(TidemillError):
    """The connection was lost during a statement of a message: the database has ended it, or the statement."""


class StateWriter(Protocol):
    """Writes states of pipelines; an application gives its streams one."""

    def check(self, pipeline: str | None, path: str) -> str:
        """The pipeline of the path; an error if that pipeline does not take the path from outside."""
        ...

    async def write(
        self, database: Database, connection: Executor, pipeline: str, states: dict[FileOrigin, bytes]
    ) -> None:
        """Write contents of files, in the connection's transaction if the pipeline keeps states in the database."""
        ...


async def store_outbox(
    database: Database,
    connection: Executor,
    stream: str,
    outbox: Sequence[OutboxItem],
    *,
    exact: bool,
    states: StateWriter | None,
) -> list[int]:
    """Store all items; returns the ids of the jobs, in their order.

    `exact`: the position of the source is stored in the same transaction, so no keys are needed.
    """
    jobs = [_job(each, exact=exact) for each in outbox if each.kind == "job"]
    stored = await insert_jobs(database, connection, jobs, notify=True) if jobs else []
    entries = [
        event_log.Entry(each.name, each.body, each.key, None if each.headers is None else encode(each.headers), each.id)
        for each in outbox
        if each.kind == "log"
    ]
    await event_log.append(database, connection, entries)
    if items := [_sink_row(stream, each) for each in outbox if each.kind == "sink"]:
        await add_items(database, connection, items)
    statements = [each for each in outbox if each.kind == "sql"]
    for statement, some in groupby(statements, key=attrgetter("name")):
        try:
            await connection.executemany(statement, [msgspec.json.decode(each.body) for each in some])
        except Exception as error:
            if not is_unavailable(error) or is_full(error):
                raise
            raise InterruptedStatementError(f"{error}, which was lost during {statement[:200]}") from error
        if not connection.is_in_transaction():
            raise ConfigError(f"a statement has ended the transaction that other messages share: {statement[:200]}")
    for each in outbox:
        if each.kind == "event":
            await _send(database, connection, each)
    # Files are written last, because they are not rolled back: everything else that can fail has run by now.
    written: dict[str, dict[str, OutboxItem]] = {}
    for each in outbox:
        if each.kind == "state":
            written.setdefault(each.name, {})[str(each.key)] = each
    for pipeline, contents in written.items():
        if states is None:
            raise ConfigError("states are written by streams that an application declares: app.stream(...)")
        origins = {_file_origin(path, item): item.body for path, item in contents.items()}
        await states.write(database, connection, pipeline, origins)
    return [job.id for job in stored]


def _job(outbox: OutboxItem, *, exact: bool) -> NewJob:
    job = msgspec.json.decode(outbox.body, type=NewJob)
    if exact or outbox.key is None:
        return job
    return msgspec.structs.replace(job, unique_key=outbox.key, unique_for=IDEMPOTENT_FOR)


def _file_origin(path: str, item: OutboxItem) -> FileOrigin:
    return FileOrigin(path, item.id, (item.headers or {}).get("traceparent"))


def _sink_row(stream: str, outbox: OutboxItem) -> tuple[Any, ...]:
    """A row of the outbox; the id of an item begins with the stream, source, place and plan that it comes from."""
    id = str(outbox.id)
    message, place, plan, _ = id.rsplit("/", 3)
    source = message[len(stream) + 1 :]
    headers = None if outbox.headers is None else storable(encode(outbox.headers).decode())
    key = None if outbox.key is None else storable(outbox.key)
    return stream, outbox.name, storable(id), source, place, plan, key, headers, outbox.body


async def _send(database: Database, connection: Executor, outbox: OutboxItem) -> None:
    run = int(outbox.name)
    if await connection.fetch(database.sql(HAS_ARRIVED), run, outbox.key):
        return
    if not await connection.fetch(database.sql(SEND), run, outbox.body):
        raise NotFoundError(f"run {run} does not exist or has ended: it takes no event")
