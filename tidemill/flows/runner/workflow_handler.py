"""The handle of a run in memory: await its result, stream its events, send it events, cancel it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Generator
from typing import Any, Generic

from typing_extensions import TypeVar

from tidemill.core.duration import Duration, parse_timeout
from tidemill.engine.event_wait import handle_timeout
from tidemill.flows.definition.events import Event, StopEvent, WorkflowCancelledEvent
from tidemill.flows.errors import WorkflowCancelledByUser, WorkflowRuntimeError
from tidemill.flows.runner.in_memory import FlowRun
from tidemill.flows.runner.sending import asking_event
from tidemill.flows.runner.steps.context import Context

ResultT_co = TypeVar("ResultT_co", covariant=True, default=Any)


class WorkflowHandler(Generic[ResultT_co]):
    """The handle of a run in memory; `await handler` returns the result and can be repeated."""

    def __init__(self, run: FlowRun, ctx: Context[Any]) -> None:
        self._run = run
        self.ctx = ctx

    @property
    def run_id(self) -> str:
        return self._run.run_id

    def __await__(self) -> Generator[Any, Any, ResultT_co]:
        return self._result().__await__()

    async def _result(self) -> ResultT_co:
        event: Any = await self.stop_event_result()
        return event.result if type(event) is StopEvent else event

    async def stop_event_result(self) -> StopEvent:
        """Wait for the event that ended the run. Cancelling this wait cancels the run."""
        try:
            return await asyncio.shield(self._run.result)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def get_stop_event(self) -> StopEvent | None:
        """Return the event that ended the run; None if it has not ended or has failed."""
        result = self._run.result
        if not result.done() or result.cancelled():
            return None
        if (error := result.exception()) is not None:
            return WorkflowCancelledEvent() if isinstance(error, WorkflowCancelledByUser) else None
        return result.result()

    def is_done(self) -> bool:
        return self._run.result.done()

    done = is_done

    def exception(self) -> BaseException | None:
        """Return the exception of the run; raises asyncio.InvalidStateError while it runs."""
        return None if self._run.result.cancelled() else self._run.result.exception()

    def cancelled(self) -> bool:
        result = self._run.result
        if not result.done():
            return False
        return result.cancelled() or isinstance(result.exception(), WorkflowCancelledByUser)

    def cancel(self) -> bool:
        """Cancel the run as if its task had been cancelled."""
        if self._run.result.done():
            return False
        self._run.result.cancel()
        self._run.cancel()
        return True

    async def cancel_run(self, *, timeout: Duration | None = 5.0) -> None:
        """Cancel the run and wait until it has ended."""
        if self._run.is_running:
            self._run.cancel()
            await asyncio.wait([self._run.result], timeout=parse_timeout(timeout))

    def stream_events(self, expose_internal: bool = False) -> AsyncGenerator[Any, None]:
        """Stream the published events until the run ends. Can be called once."""
        return self._run.stream(expose_internal=expose_internal)

    async def send_event(self, event: Event, step: str | None = None) -> None:
        """Send an event to the run."""
        self._run.check_target(event, step)
        self._run.receive(event, step)
        await asyncio.sleep(0)  # A caller that sends in a loop lets the event loop process the events.

    async def ask(self, event: Event, step: str | None = None, *, timeout: Duration | None = None) -> Any:
        """Send an event to the run and return the reply that a step gives to it with `ctx.reply(...)`."""
        token = secrets.token_urlsafe(8)
        with self._run.expecting_reply(token) as reply:
            async with handle_timeout(timeout, "the run has not replied"):
                await self.send_event(asking_event(event, token), step)
                await asyncio.wait([reply, self._run.result], return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise WorkflowRuntimeError(f"the run has ended without a reply to {type(event).__name__}")
        return reply.result()
