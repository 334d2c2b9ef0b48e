"""The builds of one stage that run in this process.

Fast plain functions run in batches in a thread; async ones run concurrently on the event loop. Results are passed on in
batches as they arrive: a slow build does not delay a fast one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial

from tidemill.engine.containment.crash_record import RefusedCallError
from tidemill.pipelines.definition.pipeline import Stage
from tidemill.pipelines.reducer.facts import PipelineFacts
from tidemill.pipelines.reducer.plan import BuildStep
from tidemill.pipelines.runner.build import Result, StageCaller, build_threads, files_of, open_inputs
from tidemill.pipelines.runner.build_containment import BuildContainment, build_name
from tidemill.pipelines.runner.commit import Build
from tidemill.pipelines.runner.slots import Slots
from tidemill.pipelines.stores.base import States, StateStoreError
from tidemill.pipelines.stores.files import FileStates

Claim = Callable[[Stage, Sequence[BuildStep]], Awaitable[Sequence[BuildStep]]]
Commit = Callable[[Stage, Sequence[Build]], Awaitable[None]]

MOST = 500  # results in a commit
ASYNC_AT_ONCE = 64
QUICK = 0.1  # seconds that one batch of plain calls may take
#: How many times longer a batch may take than to claim and to commit it: on a busy machine all three take longer.
WORTH = 3.0
SHORTEST = 0.02  # seconds of building that are not divided between builders


class LocalBuilder:
    """The builds of one stage in this process."""

    def __init__(
        self,
        stage: Stage,
        states: States,
        world: PipelineFacts,
        claim: Claim,
        commit: Commit,
        on_break: Callable[[], None],
        slots: Slots,
        containment: BuildContainment,
    ) -> None:
        """
        claim      leases steps, and returns those that may be built here
        commit     gets results as they arrive
        on_break   is called when the builder fails: see `check`
        """
        self.taken: set[str] = set()
        self.running = 0  # how many builds run now
        self._caller = StageCaller(stage)
        self._stage = stage
        self._states = states
        self._world = world
        self._claim = claim
        self._commit = commit
        self._on_break = on_break
        self._slots = slots
        self._containment = containment
        self._todo: deque[BuildStep] = deque()
        self._done: list[Build] = []
        self._running: set[asyncio.Task[None]] = set()
        self._claiming: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._chunk = 1
        self._overhead = 0.0  # seconds that it took lately to claim and to commit a batch
        self._pace = 0.0  # seconds that one build of a batch took lately
        self._is_shared = False  # whether another builder has built states of this stage meanwhile
        self._closing = False
        self._broken: BaseException | None = None

    def put(self, steps: Iterable[BuildStep]) -> None:
        """Build steps; those that are being built already are skipped."""
        for step in steps:
            if step.entity not in self.taken:
                self.taken.add(step.entity)
                self._todo.append(step)
        self._start()

    def release(self, entities: Iterable[str]) -> None:
        """Mark entities as done, so that they can be built again."""
        self.taken.difference_update(entities)

    def skip_ahead(self) -> None:
        """Go on in the middle of what is left: another builder works at its beginning."""
        self._is_shared = True
        self._todo.rotate(-(len(self._todo) // 2))

    @property
    def left(self) -> Collection[BuildStep]:
        """The steps that have not started."""
        return self._todo

    def withdraw(self, entities: Collection[str]) -> None:
        """Take back steps that have not started: another builder has built them."""
        self._is_shared = True
        self._todo = deque(step for step in self._todo if step.entity not in entities)

    def check(self) -> None:
        """Raise the error that has stopped the builder, if any."""
        if self._broken is not None:
            raise self._broken

    async def close(self) -> None:
        """Drop what has not started, and wait for the rest."""
        self._closing = True
        self.release(step.entity for step in self._todo)
        self._todo.clear()
        while waiting := [*self._running, *(task for task in (self._claiming, self._committing) if task is not None)]:
            await asyncio.wait(waiting)
        self.check()

    def _start(self) -> None:
        if self._claiming is None and self._room() and self._broken is None:
            self._claiming = asyncio.create_task(self._claim_and_run())
            self._claiming.add_done_callback(self._claimed)

    @property
    def _most(self) -> int:
        return self._stage.options.max_concurrency or (ASYNC_AT_ONCE if self._stage.is_async else 1)

    def _room(self) -> int:
        """How many steps can start now."""
        if not self._todo or self._closing or len(self._running) >= self._most or len(self._done) >= MOST:
            return 0
        if self._containment.has_suspects():
            return 1
        if not self._builds_together:
            return self._most - len(self._running)
        if not self._is_shared:
            return self._chunk
        # Of the last states the other builder gets its share.
        return min(self._chunk, max((len(self._todo) + 1) // 2, int(SHORTEST / max(self._pace, 1e-6))))

    @property
    def _builds_together(self) -> bool:
        """Whether several plain calls share a thread; one with a budget has its own."""
        return self._most == 1 and not self._stage.is_async and self._stage.options.budget is None

    async def _claim_and_run(self) -> None:
        """Start as many steps as there is room for: no more are claimed, so that other builders get the rest."""
        while room := self._room():
            steps = [self._todo.popleft() for _ in range(min(room, len(self._todo)))]
            began = asyncio.get_running_loop().time()
            mine = list(await self._claim(self._stage, steps))
            if len(mine) == len(steps):
                self._note_overhead(asyncio.get_running_loop().time() - began)
            for group in [mine] if self._builds_together and mine else [[step] for step in mine]:
                task = asyncio.create_task(self._run(group))
                self._running.add(task)
                task.add_done_callback(self._ended)

    def _claimed(self, task: asyncio.Task[None]) -> None:
        self._claiming = None
        self._note(task)
        self._start()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._note(task)
        self._start()

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._broken = self._broken or task.exception()
            self._on_break()

    async def _run(self, steps: list[BuildStep]) -> None:
        options = self._stage.options
        self.running += len(steps)
        try:
            async with (
                self._slots.hold(options.concurrency_key, options.max_concurrency or 1),
                self._containment.apart(steps[0]),
            ):
                done = [(steps[0], await self._build(steps[0]))] if self._stage.is_async else await self._some(steps)
        finally:
            self.running -= len(steps)
        self._give(done)

    async def _build(self, step: BuildStep) -> Result:
        """One build by any function, on any state store."""
        needs = self._needs(step)
        try:
            source = await open_inputs(self._states, self._caller, step.paths)
        except FileNotFoundError as error:
            return Result({}, 0.0, error=f"an input is gone: {error}", needs=needs)
        except (OSError, StateStoreError) as error:
            return Result({}, 0.0, error=f"an input cannot be read: {error}", needs=needs)
        files = files_of(step.paths, source)
        try:
            with self._containment.noted(step, on_loop=self._stage.is_async):
                result = await self._caller.run_async(self._stage.entity(step.entity), files, step.traces)
        except RefusedCallError as error:
            result = Result({}, 0.0, error=str(error))
        result.needs = needs
        return result

    async def _some(self, steps: list[BuildStep]) -> list[Build]:
        """A batch of plain calls, in one thread if the functions can read their inputs directly."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if isinstance(self._states, FileStates):
            results = await self._in_thread(steps, self._states)
        else:
            results = [(step, await self._build(step)) for step in steps]
        took, worth = loop.time() - began, max(QUICK, WORTH * self._overhead)
        self._pace = took / len(steps)
        if took < worth and len(steps) == self._chunk:
            self._chunk = min(MOST, self._chunk * 4)
        elif took > worth * 4:
            self._chunk = max(1, self._chunk // 4)
        return results

    def _note_overhead(self, seconds: float) -> None:
        self._overhead += (2 * seconds - self._overhead) / 4  # A commit takes about as long as a claim, or longer.

    async def _in_thread(self, steps: list[BuildStep], states: FileStates) -> list[Build]:
        """A batch of plain calls in one thread, or one call with a budget."""
        budget, name = self._stage.options.budget, build_name(self._stage, steps[0].entity)
        try:
            return await build_threads().run(partial(self._call_all, steps, states), name, budget)
        except TimeoutError:
            error = f"it took longer than its budget of {budget:g} s"
            return [(step, Result({}, budget or 0.0, error=error, needs=self._needs(step))) for step in steps]

    def _call_all(self, steps: list[BuildStep], states: FileStates) -> list[Build]:
        results: list[Build] = []
        with self._containment.noted_in_turn() as calls:
            for step in steps:
                needs = self._needs(step)
                try:
                    calls.begin(step)
                except RefusedCallError as error:
                    result = Result({}, 0.0, error=str(error))
                else:
                    entity, files = self._stage.entity(step.entity), files_of(step.paths, states)
                    result = self._caller.run(entity, files, step.traces)
                    calls.end()
                result.needs = needs
                results.append((step, result))
        return results

    def _needs(self, step: BuildStep) -> dict[str, int]:
        """The known signatures of a build's inputs at its start."""
        files = self._world.files
        return {path: files[path].signature if path in files else 0 for group in step.paths for path in group}

    def _give(self, results: list[Build]) -> None:
        self._done += results
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())
            self._committing.add_done_callback(self._committed)

    async def _commit_all(self) -> None:
        while self._done:
            batch, self._done = self._done[:MOST], self._done[MOST:]
            self._start()  # There is room again: results wait in no more than one batch beside this one.
            await self._commit(self._stage, batch)

    def _committed(self, task: asyncio.Task[None]) -> None:
        self._committing = None
        self._note(task)
        if self._done:
            self._give([])
