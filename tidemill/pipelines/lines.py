"""A line: the builds of one stage that run in this process.

Plain functions run in a thread, many in one go when each is quick; async ones run together on the event loop. Results
are handed on as they come, together with whatever else has come by then: a slow build keeps no quick one waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from tidemill.pipelines.build import Caller, Result, files_of
from tidemill.pipelines.files import FileStates
from tidemill.pipelines.model import Stage
from tidemill.pipelines.plan import Step
from tidemill.pipelines.states import States
from tidemill.pipelines.world import World

Commit = Callable[[Stage, Sequence[tuple[Step, Result]]], Awaitable[None]]

MOST = 500  # results in a commit
ASYNC_AT_ONCE = 64
QUICK = 0.1  # seconds that one go of plain calls may take


class StageLine:
    """The builds of one stage in this process."""

    def __init__(self, stage: Stage, states: States, world: World, commit: Commit) -> None:
        self.taken: set[str] = set()
        self._caller = Caller(stage)
        self._stage = stage
        self._states = states
        self._root = states.root if isinstance(states, FileStates) else None
        self._world = world
        self._commit = commit
        self._todo: deque[Step] = deque()
        self._done: list[tuple[Step, Result]] = []
        self._news = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._committing: asyncio.Task[None] | None = None
        self._chunk = 1
        self._closing = False
        self._failed: BaseException | None = None

    def put(self, steps: Iterable[Step]) -> None:
        """Have steps built; those that are being built already are left out."""
        for step in steps:
            if step.entity not in self.taken:
                self.taken.add(step.entity)
                self._todo.append(step)
        self._start()

    def release(self, entities: Iterable[str]) -> None:
        """These are done with, and may come again."""
        self.taken.difference_update(entities)

    async def close(self) -> None:
        """Drop what has not begun, and wait for the rest."""
        self._closing = True
        self.release(step.entity for step in self._todo)
        self._todo.clear()
        while self._running or self._committing is not None:
            waiting = [*self._running, *([self._committing] if self._committing else [])]
            await asyncio.wait(waiting)
        if self._failed is not None:
            raise self._failed

    def _start(self) -> None:
        most = self._stage.options.parallel or (ASYNC_AT_ONCE if self._stage.is_async else 1)
        while self._todo and len(self._running) < most and not self._closing:
            if self._stage.is_async:
                work = self._one(self._todo.popleft())
            else:
                room = self._chunk if most == 1 else 1
                work = self._some([self._todo.popleft() for _ in range(min(room, len(self._todo)))])
            task = asyncio.create_task(work)
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._note(task)
        self._start()

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failed = self._failed or task.exception()

    async def _one(self, step: Step) -> None:
        data = await self._read(step)
        if isinstance(data, Result):
            return self._give([(step, data)])
        entity = self._stage.entity(step.entity)
        return self._give([(step, await self._caller.run_async(entity, files_of(step.paths, self._root, data)))])

    async def _some(self, steps: list[Step]) -> None:
        """Plain calls, in one go in a thread."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if isinstance(self._states, FileStates):
            results = await asyncio.to_thread(self._call_all, steps, self._states)
        else:
            results = []
            for step in steps:
                data = await self._read(step)
                if not isinstance(data, Result):
                    entity, files = self._stage.entity(step.entity), files_of(step.paths, None, data)
                    data = await asyncio.to_thread(self._caller.run, entity, files)
                results.append((step, data))
        took = loop.time() - began
        if took < QUICK and len(steps) == self._chunk:
            self._chunk = min(MOST, self._chunk * 4)
        elif took > QUICK * 4:
            self._chunk = max(1, self._chunk // 4)
        self._give(results)

    def _call_all(self, steps: list[Step], states: FileStates) -> list[tuple[Step, Result]]:
        results: list[tuple[Step, Result]] = []
        for step in steps:
            files = files_of(step.paths, states.root, {})
            results.append((step, self._caller.run(self._stage.entity(step.entity), files)))
        return results

    async def _read(self, step: Step) -> dict[str, bytes] | Result:
        """The inputs' bytes, where a function could not read them by itself."""
        if self._root is not None:
            return {}
        try:
            return {path: await self._states.read(path) for group in step.paths for path in group}
        except FileNotFoundError as error:
            return Result({}, 0.0, "", f"an input is gone: {error}")

    def _give(self, results: list[tuple[Step, Result]]) -> None:
        self._done += results
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())
            self._committing.add_done_callback(self._committed)

    async def _commit_all(self) -> None:
        while self._done:
            batch, self._done = self._done[:MOST], self._done[MOST:]
            await self._commit(self._stage, batch)

    def _committed(self, task: asyncio.Task[None]) -> None:
        self._committing = None
        self._note(task)
        if self._done:
            self._give([])
