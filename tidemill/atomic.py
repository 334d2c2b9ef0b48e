"""Several things in one transaction on the caller's own connection: all of them, or none.

async with app.atomic(connection) as tx:
    await connection.execute("INSERT INTO orders VALUES (7)")
    await tx.enqueue(send_receipt.call(order_id=7))
    await tx.start(Delivery, order_id=7)
    await tx.publish("orders", {"id": 7})
    await tx.write_state("orders/{id}.json", {"id": "7"}, '{"sum": 12}')
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from tidemill.store.connection.caller_connection import nested_async, nested_sync

if TYPE_CHECKING:
    from tidemill.answers import SubmitOptions
    from tidemill.app import App
    from tidemill.engine.jobs.enqueue_options import EnqueueOptions, ManyOptions
    from tidemill.engine.jobs.job_handle import JobHandle
    from tidemill.engine.jobs.task import Call, R
    from tidemill.flows.runner.sending import Later
    from tidemill.start_calls import StartSync, StartWithin
    from tidemill.streaming import MessageOptions


class Atomic:
    """Starts work in the caller's transaction; each method is that of the application, with `conn=`."""

    def __init__(self, app: App, connection: Any) -> None:
        self.connection = connection
        self._app = app

    async def enqueue(self, call: Call[R], /, **options: Unpack[EnqueueOptions]) -> JobHandle[R]:
        """Store a job: see `App.enqueue`."""
        return await self._app.enqueue(call, conn=self.connection, **options)

    async def enqueue_many(self, calls: Iterable[Call[R]], /, **options: Unpack[ManyOptions]) -> list[JobHandle[R]]:
        """Store the jobs of many calls: see `App.enqueue_many`."""
        return await self._app.enqueue_many(calls, conn=self.connection, **options)

    if TYPE_CHECKING:
        start: StartWithin
    else:

        async def start(self, what: Any, given: Any = None, /, **more: Any) -> Any:
            """Start a durable run: see `App.start`."""
            return await self._app.start(what, given, conn=self.connection, **more)

    async def send_event(self, run: Any, event: Any, /, step: str | None = None, **later: Unpack[Later]) -> None:
        """Send an event to a run: see `RunHandle.send_event`."""
        await run.send_event(event, step, conn=self.connection, **later)

    async def publish(self, topic: str, value: Any, **options: Unpack[MessageOptions]) -> None:
        """Append a message to a topic: see `App.publish`."""
        await self._app.publish(topic, value, conn=self.connection, **options)

    async def submit(self, run: Any, node: str, value: Any, /, **options: Unpack[SubmitOptions]) -> bool:
        """Answer what a run asks people: see `App.submit`."""
        return await self._app.submit(run, node, value, conn=self.connection, **options)

    async def write_state(
        self, pattern: str, entity: Mapping[str, str], content: str | bytes, *, pipeline: Any = None
    ) -> str:
        """Write a state of a pipeline, or of the only one: see `App.states`."""
        return await self._app.states(pipeline).write(pattern, entity, content, conn=self.connection)


class AtomicSync:
    """`Atomic` for plain code."""

    def __init__(self, app: App, connection: Any) -> None:
        self.connection = connection
        self._app = app

    def enqueue(self, call: Call[R], /, **options: Unpack[EnqueueOptions]) -> JobHandle[R]:
        """Store a job: see `App.enqueue_sync`."""
        return self._app.enqueue_sync(call, conn=self.connection, **options)

    def enqueue_many(self, calls: Iterable[Call[R]], /, **options: Unpack[ManyOptions]) -> list[JobHandle[R]]:
        """Store the jobs of many calls: see `App.enqueue_many`."""
        return self._app.jobs.enqueue_many_sync(calls, conn=self.connection, **options)

    if TYPE_CHECKING:
        start: StartSync
    else:

        def start(self, what: Any, given: Any = None, /, **more: Any) -> Any:
            """Start a durable run: see `App.start_sync`."""
            return self._app.start_sync(what, given, conn=self.connection, **more)

    def send_event(self, run: Any, event: Any, /, step: str | None = None, **later: Unpack[Later]) -> None:
        """Send an event to a run: see `RunHandle.send_event_sync`."""
        run.send_event_sync(event, step, conn=self.connection, **later)

    def publish(self, topic: str, value: Any, **options: Unpack[MessageOptions]) -> None:
        """Append a message to a topic: see `App.publish_sync`."""
        self._app.publish_sync(topic, value, conn=self.connection, **options)

    def submit(self, run: Any, node: str, value: Any, /, **options: Unpack[SubmitOptions]) -> bool:
        """Answer what a run asks people: see `App.submit_sync`."""
        return self._app.submit_sync(run, node, value, conn=self.connection, **options)

    def write_state(
        self, pattern: str, entity: Mapping[str, str], content: str | bytes, *, pipeline: Any = None
    ) -> str:
        """Write a state of a pipeline, or of the only one: see `App.states`."""
        return self._app.states(pipeline).write_sync(pattern, entity, content, conn=self.connection)


@asynccontextmanager
async def atomic(app: App, connection: Any) -> AsyncIterator[Atomic]:
    """A block whose writes on an async connection commit together: a savepoint, if a transaction is open already."""
    async with nested_async(connection):
        yield Atomic(app, connection)


@contextmanager
def atomic_sync(app: App, connection: Any) -> Iterator[AtomicSync]:
    """The same on a plain connection."""
    with nested_sync(connection):
        yield AtomicSync(app, connection)
