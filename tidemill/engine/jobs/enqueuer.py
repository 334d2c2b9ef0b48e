"""Enqueueing from one process: concurrent calls are batched.

A single call is one statement. While it runs, further calls wait and then share the next statement, so sixteen callers
need a few round trips, not sixteen. Every caller still gets its own answer, and an error of one call is not raised in
the others. Jobs without keys never wait for a transaction that holds a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import asyncpg

from tidemill.core.errors import StoreError
from tidemill.core.jobs.batch import BatchRef, NewBatch
from tidemill.core.jobs.job import JobRef, NewJob
from tidemill.engine.jobs.bulk import ManyJobs
from tidemill.store.database import Connection, Database, Executor
from tidemill.store.database_errors import is_safe_to_retry, is_unavailable
from tidemill.store.jobs.batches.batch_end import end_batches
from tidemill.store.jobs.batches.batches import ADD_TO_TOTAL, hold_statements, new_batch_statements
from tidemill.store.jobs.insert import (
    SOON,
    debounce_waiting,
    insert_alike,
    insert_jobs,
    insert_one,
    run_statements,
    wake_of,
)
from tidemill.store.notify import Notifier

MAX_BATCH = 500
MANY_CHUNK = 10_000
_TRIES = 3


class Enqueuer:
    """Stores jobs for this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.notifier = Notifier(database)
        self._plain = _Sender(database, self.notifier)
        self._keyed = _Sender(database, self.notifier)  # They may wait for a transaction that holds their key.

    async def put(self, job: NewJob) -> JobRef:
        """Store one job; returns when it is committed."""
        return await (self._keyed if job.keyed else self._plain).put(job)

    async def put_many(self, many: ManyJobs) -> list[JobRef]:
        """Store all jobs or none, in one transaction."""
        if not many.calls:
            return []
        refs: list[JobRef] = []
        try:
            async with self._database.transaction(patience=30.0) as connection:
                for start in range(0, len(many.calls), MANY_CHUNK):
                    refs += await self._insert_chunk(connection, many, slice(start, start + MANY_CHUNK))
        except asyncpg.PostgresError as error:
            raise _explained(error) from error
        return refs

    async def put_batch(self, new: NewBatch, chunks: Callable[[int], Iterable[ManyJobs]]) -> BatchRef:
        """Store a batch with its jobs, all or none, in one transaction. If its key is taken, nothing is stored."""
        try:
            async with self._database.transaction(patience=30.0) as connection:
                ref = await run_statements(self._database, connection, new_batch_statements(self._database, new))
                if ref.created:
                    await self._add(connection, ref.id, chunks(ref.id))
                    await end_batches(self._database, [ref.id], connection)
        except asyncpg.PostgresError as error:
            raise _explained(error) from error
        return ref

    async def add_to_batch(self, batch: int, chunks: Iterable[ManyJobs]) -> int:
        """Store more jobs of a batch, all or none; returns how many."""
        try:
            async with self._database.transaction(patience=30.0) as connection:
                await run_statements(self._database, connection, hold_statements(batch))
                added = await self._add(connection, batch, chunks)
        except asyncpg.PostgresError as error:
            raise _explained(error) from error
        except Exception:  # A wrong call, or an error of the caller's generator.
            await self._end_held(batch)
            raise
        await self._end_held(batch)
        return added

    async def _end_held(self, batch: int) -> None:
        """End a batch whose other jobs have ended while it was held: workers leave a held batch to its holder."""
        await end_batches(self._database, [batch])

    async def _add(self, connection: Executor, batch: int, chunks: Iterable[ManyJobs]) -> int:
        added = 0
        for many in chunks:
            added += sum(ref.created for ref in await self._insert_chunk(connection, many, slice(None)))
        await connection.execute(self._database.sql(ADD_TO_TOTAL), batch, added)
        return added

    async def _insert_chunk(self, connection: Executor, many: ManyJobs, chunk: slice) -> list[JobRef]:
        if many.alike:
            return await insert_alike(self._database, connection, many.first(), many.arguments[chunk], notify=True)
        jobs = many.each(chunk)
        if not any(job.keyed for job in jobs):
            return await insert_jobs(self._database, connection, jobs, notify=True)
        tries_left = _TRIES
        while True:
            tries_left -= 1
            try:
                async with connection.transaction():
                    return await insert_jobs(self._database, connection, jobs, notify=True)
            except asyncpg.DeadlockDetectedError:  # With a transaction that takes the same keys in another order.
                if not tries_left:
                    raise

    async def close(self) -> None:
        """Finish the calls in progress."""
        for sender in (self._plain, self._keyed):
            await sender.finish()
        await self.notifier.close()
        for sender in (self._plain, self._keyed):
            await sender.close()


class _Sender:
    """Stores single jobs: those that come while a statement runs share the next one."""

    def __init__(self, database: Database, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier
        self._waiting: list[tuple[NewJob, asyncio.Future[JobRef]]] = []
        self._sender: asyncio.Task[None] | None = None
        self._alone = False
        self._connection: Connection | None = None

    async def put(self, job: NewJob) -> JobRef:
        """Store one job; returns when it is committed."""
        if self._sender is None and not self._alone:
            self._alone = True
            try:
                return (await self._store([job]))[0]
            finally:
                self._alone = False
                self._send_waiting()
        answer: asyncio.Future[JobRef] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, answer))
        return await answer

    async def finish(self) -> None:
        """Finish the calls in progress."""
        if self._sender is not None:
            await self._sender

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def _send_waiting(self) -> None:
        if self._waiting and self._sender is None:
            self._sender = asyncio.create_task(self._send(), name="tidemill-enqueuer")

    async def _send(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                await self._answer(batch)
        finally:
            self._sender = None

    async def _answer(self, batch: list[tuple[NewJob, asyncio.Future[JobRef]]]) -> None:
        try:
            refs = await self._store([job for job, _ in batch])
        except StoreError as error:
            if len(batch) == 1 or error.__cause__ is None or is_unavailable(error.__cause__):
                for _, answer in batch:
                    _give(answer, error)
                return
            for one in batch:  # One job caused the error and nothing was stored: try each alone.
                await self._answer([one])
            return
        except BaseException as error:
            for _, answer in batch:
                _give(answer, error)
            raise
        for (_, answer), ref in zip(batch, refs, strict=True):
            _give(answer, ref)

    async def _store(self, jobs: Sequence[NewJob]) -> list[JobRef]:
        inside = self._notifier.may_notify_inside()
        for tries_left in reversed(range(_TRIES)):
            try:
                refs = await self._insert(jobs, notify=inside)
                break
            except Exception as error:
                if tries_left and is_safe_to_retry(error):
                    continue  # The kept connection was closed while it was idle.
                if isinstance(error, asyncpg.PostgresError) or is_unavailable(error):
                    raise _explained(error) from error
                raise
        if inside:
            # Jobs that are due later, or whose key was taken, have notified nothing.
            stored = [job for job, ref in zip(jobs, refs, strict=True) if ref.created]
            self._notifier.notified_inside({wake_of(job) for job in stored if job.at is None and job.delay <= SOON})
        else:
            self._notifier.notify_soon({wake_of(job) for job in jobs})
        return refs

    async def _insert(self, jobs: Sequence[NewJob], *, notify: bool) -> list[JobRef]:
        """Store jobs on the connection for single jobs, which is kept open and used by one call at a time."""
        connection = self._connection
        if connection is None or connection.is_closed():
            connection = self._connection = await self._database.connect(patience=30.0)
        try:
            if len(jobs) == 1 and jobs[0].debounce is not None:
                ref = await debounce_waiting(self._database, connection, jobs[0])
                if ref is not None:
                    return [ref]
            if any(job.keyed for job in jobs):
                async with connection.transaction():
                    return await insert_jobs(self._database, connection, jobs, notify=notify)
            if len(jobs) == 1 and jobs[0].lane is None:
                return [await insert_one(self._database, connection, jobs[0], notify=notify)]
            return await insert_jobs(self._database, connection, jobs, notify=notify)
        except BaseException as error:
            # After any error but a plain refusal the connection's state is unknown.
            if not isinstance(error, asyncpg.PostgresError) or is_unavailable(error):
                connection.terminate()
                self._connection = None
            raise


def _give(answer: asyncio.Future[JobRef], what: JobRef | BaseException) -> None:
    if answer.done():
        return
    if isinstance(what, BaseException):
        answer.set_exception(what)
    else:
        answer.set_result(what)


def _explained(error: BaseException) -> StoreError:
    if is_unavailable(error):
        return StoreError(
            f"the connection to the database broke while jobs were being stored ({error}): they may or may not be "
            "there; give a unique_key= to be able to enqueue again safely"
        )
    return StoreError(f"the database did not store the job: {error}")
