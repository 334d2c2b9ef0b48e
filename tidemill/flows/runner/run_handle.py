"""The handle of a durable flow run, usable in any process: await its result, stream its events, send, cancel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Generic, Literal, overload

from typing_extensions import Unpack

from tidemill.core.codec import decode
from tidemill.core.duration import Duration
from tidemill.core.errors import ConfigError
from tidemill.core.ticks import CancelAsked
from tidemill.engine.application.connections import Connections
from tidemill.engine.event_wait import handle_timeout, wait_until_done
from tidemill.engine.runs.run_waits import run_waits
from tidemill.flows.definition.events import Event, ReplyEvent, StopEvent
from tidemill.flows.definition.workflow import AnyWorkflow
from tidemill.flows.encoding.events import qualified_name
from tidemill.flows.encoding.exceptions import exception_of
from tidemill.flows.encoding.journal import encode_tick
from tidemill.flows.encoding.values import unpack
from tidemill.flows.errors import (
    RunNeedsAttentionError,
    WorkflowCancelledByUser,
    WorkflowRuntimeError,
    WorkflowTimeoutError,
)
from tidemill.flows.runner.follow import NumberedEvent, RunFollower
from tidemill.flows.runner.sending import (
    SendOptions,
    asking_event,
    check_is_known,
    check_step,
    event_tick,
    read_send_options,
)
from tidemill.flows.runner.workflow_handler import ResultT_co
from tidemill.store.connection.caller_connection import run_async, run_sync
from tidemill.store.database import Database
from tidemill.store.runs.inbox import cancel_run, send_statements, send_to_run
from tidemill.store.runs.published import last_published, read_published
from tidemill.store.runs.runs import find_runs, known_events, new_token, show_run


class RunHandle(Generic[ResultT_co]):
    """The handle of a durable run; `await handle` returns its result or raises its exception."""

    def __init__(
        self,
        database: Database,
        number: int,
        *,
        created: bool = True,
        near: asyncio.Future[StopEvent] | None = None,
        find_workflow: Callable[[str], AnyWorkflow] | None = None,
        connections: Connections | None = None,
    ) -> None:
        self.id = number
        self.created = created
        self._database = database
        self._near = near
        self._find_workflow = find_workflow
        self._connections = connections
        self._known: set[type] = set()

    def __repr__(self) -> str:
        return f"<run r{self.id}>"

    def __await__(self) -> Generator[Any, Any, ResultT_co]:
        return self.result().__await__()

    async def result(self, *, timeout: Duration | None = None) -> ResultT_co:
        """Wait for the end of the run and return its result. Raises TimeoutError after `timeout`.

        A run that cannot go on by itself raises a `RunNeedsAttentionError` with the reason.
        """
        if timeout is None:
            return await self._result()
        async with handle_timeout(timeout, f"run r{self.id} has not ended", f"r{self.id}"):
            return await self._result()

    async def _result(self) -> ResultT_co:
        if self._near is not None:
            await wait_until_done(self._near)
            if not self._near.cancelled():
                event: Any = self._near.result()
                return event.result if type(event) is StopEvent else event
            self._near = None  # Another process owns the run now.
        row = await run_waits(self._database).end_of(self._database, self.id)
        self._check_attention(row)
        result, error = (None if row[name] is None else decode(row[name]) for name in ("result", "error"))
        return result_of(row["state"], result, error, row["note"])

    async def state(self) -> str:
        """Return the state of the run: running, needs_attention, succeeded, failed, cancelled,
        timed_out or expired."""
        return (await show_run(self._database, self.id))["state"]

    async def send_event(
        self,
        event: Event,
        step: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        """Send an event to the run; it is stored when this returns.

        Its class must be one that the application of the run workers has: they take no other. With `delay` or `at`, the
        run receives it not before then. `conn` is your own open connection: the event is sent if and only if your
        transaction commits.
        """
        conn, later = read_send_options(event, options)
        if step is not None:
            await self._check_step(step)
        if (kind := type(event)) not in self._known:
            check_is_known(qualified_name(kind), await known_events(self._database, self.id))
            self._known.add(kind)
        token = new_token()
        tick = event_tick(event, step, token)
        if conn is None and later["delay"] is None and later["at"] is None:
            await send_to_run(self._database, self.id, tick, token=token)
            return
        statements = send_statements(self._database, self.id, tick, **later)
        if conn is not None:
            await run_async(self._database, conn, statements)
            return
        async with self._database.transaction(patience=30.0) as connection:
            await run_async(self._database, connection, statements)

    def send_event_sync(
        self,
        event: Event,
        step: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        """`send_event` for plain code; `conn` is then a plain connection."""
        if self._connections is None:
            raise ConfigError("plain code sends events to runs that it has from `app.start_sync` or `app.runs`")
        conn, later = read_send_options(event, options)
        if conn is not None:
            unopened, tick = self._connections.unopened, event_tick(event, step, new_token())
            run_sync(unopened, conn, send_statements(unopened, self.id, tick, **later))
            return

        async def send(opened: Any) -> None:
            handle = RunHandle(opened.database, self.id, created=False, find_workflow=self._find_workflow)
            await handle.send_event(event, step, **options)

        self._connections.call(send)

    async def _check_step(self, step: str) -> None:
        """Raise if the run's workflow has no step of this name; a run of an open transaction is not seen yet."""
        if self._find_workflow is not None and (found := await find_runs(self._database, [self.id], missing_ok=True)):
            check_step(self._find_workflow(found[0]["kind"]), step)

    async def ask(self, event: Event, step: str | None = None, *, timeout: Duration | None = None) -> Any:
        """Send an event to the run and return the reply that a step gives to it with `ctx.reply(...)`.

        Raises TimeoutError after `timeout`, and a `WorkflowRuntimeError` if the run ends without a reply.
        """
        token = new_token()
        after = await last_published(self._database, self.id)
        async with handle_timeout(timeout, f"run r{self.id} has not replied", f"r{self.id}"):
            await self.send_event(asking_event(event, token), step)
            async for shown in self.stream_events(after=after):
                if isinstance(shown, ReplyEvent) and shown.to == token:
                    return shown.value
        raise WorkflowRuntimeError(f"run r{self.id} has ended without a reply to {type(event).__name__}")

    async def cancel(self, reason: str = "cancelled by the user") -> None:
        """Request the cancellation of the run."""
        await cancel_run(self._database, self.id, encode_tick(CancelAsked(time.time(), reason)), reason=reason)

    @overload
    def stream_events(
        self, expose_internal: bool = False, *, after: int = 0, numbered: Literal[False] = False
    ) -> AsyncIterator[Any]: ...

    @overload
    def stream_events(
        self, expose_internal: bool = False, *, after: int = 0, numbered: Literal[True]
    ) -> AsyncIterator[tuple[int, Any]]: ...

    async def stream_events(
        self, expose_internal: bool = False, *, after: int = 0, numbered: bool = False
    ) -> AsyncIterator[Any]:
        """Stream the published events after event number `after`, until the run ends.

        With `numbered=True`, yields `(number, event)`: a later stream resumes with `after=number`, in any process. With
        `expose_internal=True`, internal events are among them: `StepStateChanged`, `WorkflowIdleEvent` and
        `UnhandledEvent`. A run that cannot go on by itself raises a `RunNeedsAttentionError` after its last event.
        """
        follower: RunFollower | None = None
        async with run_waits(self._database).watching(self._database) as watch:
            while True:
                row = await show_run(self._database, self.id)
                is_new = False
                if expose_internal:
                    follower = follower or self._follower(row["workflow"], after)
                    events = follower.news(row["seq"])
                else:
                    events = self._published(after)
                async for after, event in events:
                    is_new = True
                    yield (after, event) if numbered else event
                if is_new:
                    watch.reset()
                elif row["state"] == "running":
                    await watch.changed()
                else:
                    self._check_attention(row)
                    return

    async def _published(self, after: int) -> AsyncIterator[NumberedEvent]:
        for each in await read_published(self._database, self.id, after=after):
            yield each["number"], unpack(decode(each["data"]))

    def _follower(self, workflow: str, after: int) -> RunFollower:
        if self._find_workflow is None:
            raise ConfigError(
                f"the internal events of run r{self.id} are rebuilt by its workflow {workflow}: get the run from an "
                "application that declares it, `app.runs.get(id)`"
            )
        return RunFollower(self._database, self.id, self._find_workflow(workflow), after=after)

    def _check_attention(self, row: Any) -> None:
        if row["state"] == "needs_attention":
            raise RunNeedsAttentionError(f"run r{self.id} needs attention: {row['note'] or 'the reason is unknown'}")


def result_of(state: str, result: Any, error: Any, note: str | None) -> Any:
    """Return the result of a run that has ended, or raise its exception."""
    match state:
        case "succeeded":
            event = unpack(result)
            return event.result if type(event) is StopEvent else event
        case "failed":
            raise exception_of(error["kind"], error["message"], error.get("detail"))
        case "timed_out":
            raise WorkflowTimeoutError(note or "the run took longer than its timeout")
        case "cancelled":
            raise WorkflowCancelledByUser("the run was cancelled")
        case "expired":
            raise WorkflowTimeoutError(note or "the deadline of the run passed before it began")
    raise WorkflowRuntimeError(f"the run has not ended: it is {state}")
