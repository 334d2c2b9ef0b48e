"""Plans of states with several inputs.

Only a plan for all states knows which of their inputs are about to be built. It is made when nothing is being built,
and now and then before that, so that no state waits for slow builds of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidemill.engine.event_wait import wait_for_event
from tidemill.pipelines.reducer.plan import BuildPlan
from tidemill.pipelines.view.pipeline_view import PipelineView

PAUSE = 0.25  # seconds between two such plans, at least
SHARE = 8  # how many times longer the pause is than making the plan


class DeferredPlans:
    """Makes plans for all states while there are states that no other plan has."""

    def __init__(
        self, pipeline_view: PipelineView, act: Callable[[BuildPlan], Awaitable[None]], on_end: Callable[[], None]
    ) -> None:
        """`on_end` is called when no plan is left to be made, or making one has failed: see `check`."""
        self._pipeline_view = pipeline_view
        self._act = act
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._next_at = 0.0
        self._error: BaseException | None = None
        self._closed = False

    @property
    def is_active(self) -> bool:
        """Whether a plan is left to be made."""
        return self._task is not None

    def start(self) -> None:
        """Make a plan soon if states of several inputs were touched."""
        if self._pipeline_view.is_deferred and self._task is None and not self._closed:
            self._task = asyncio.create_task(self._run(), name="plan for all states")
            self._task.add_done_callback(self._ended)

    def note_settled(self) -> None:
        """Nothing is being built any more."""
        self._settled.set()

    def check(self) -> None:
        """Raise the error that has stopped it, if any."""
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Make no more plans."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pipeline_view.is_deferred:
            self._settled.clear()
            if self._pipeline_view.busy:
                await wait_for_event(self._settled, max(0.0, self._next_at - loop.time()))
            began = loop.time()
            plan = self._pipeline_view.plan()
            self._next_at = loop.time() + max(PAUSE, SHARE * (loop.time() - began))
            await self._act(plan)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        self._error = self._error or task.exception()
        if self._error is None:
            self.start()  # States may have been touched while the last plan was carried out.
        self._on_end()
