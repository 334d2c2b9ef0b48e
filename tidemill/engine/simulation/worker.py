"""A simulated worker: a real job runner with real tasks, whose jobs are claimed from the model of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidemill.core.jobs.job import Finish, Requeue
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.simulation.store import HEARTBEAT, LEASE, SimulatedRunStore
from tidemill.engine.simulation.world import Process
from tidemill.engine.worker.isolation import Children
from tidemill.engine.worker.job_runner import JobRunner
from tidemill.store.jobs.workers import WorkerCard

if TYPE_CHECKING:
    from tidemill.engine.simulation.simulation import Simulation

LOOK_EVERY = 1.0


class SimulatedWorker:
    """A worker: a real job runner with real tasks, whose jobs are claimed from the model."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self._simulation = simulation
        self._process = process
        self._runs = SimulatedRunStore(simulation, process)
        self._model = simulation.model

    async def run(self) -> None:
        news = asyncio.Event()
        tasks = self._simulation.tasks(self._runs)
        queues = sorted({task.options.queue for task in tasks.values()} | {"default"})
        runner = JobRunner(tasks, 4, Children(None), self._simulation.clock, news.set)
        card = WorkerCard("simulated", 0, tuple(queues), tuple(tasks), 4, {})
        lease = self._runs.lease(lambda: card, lease_seconds=LEASE, heartbeat_seconds=HEARTBEAT)
        worker = await lease.take(self._fenced)
        self._simulation.listen(self._process, "jobs", lambda payload: news.set())
        has_suspects = False
        while True:
            finished, requeues = runner.take_ended()
            await self._settle(worker, finished, requeues)
            if runner.slots:
                await self._cancel(runner, list(runner.slots))
            if runner.count == 0 or (not has_suspects and runner.count < 4):
                has_suspects = await self._claim(worker, runner, 4 - runner.count)
            if not await wait_for_event(news, LOOK_EVERY):
                held = runner.held_ids()
                await self._ask("strays", lambda held=held: self._model.release_unheld(worker, held))
            news.clear()

    async def _cancel(self, runner: JobRunner, held: list[int]) -> None:
        for job, attempt, reason in await self._ask("cancels", lambda: self._model.find_cancels(held)):
            runner.cancel(job, attempt, reason)

    async def _claim(self, worker: int, runner: JobRunner, room: int) -> bool:
        """Claim jobs, or suspects if nothing else runs; returns whether they are suspects."""
        idle = runner.count == 0
        try:
            jobs = await self._simulation.ask(
                self._process,
                "claim jobs",
                lambda view: self._model.claim_jobs(worker, self._all_queues(), room, suspects=idle),
            )
        except ConnectionError:
            return False  # What was claimed in an answer that never arrived is given back on the next round.
        runner.take_in(jobs)
        return any(job.suspicions for job in jobs)

    async def _settle(self, worker: int, finished: list[Finish], requeues: list[Requeue]) -> None:
        if finished:
            await self._ask("finish", lambda: self._model.finish(worker, finished))
        if requeues:
            await self._ask("requeue", lambda: self._model.requeue(worker, requeues))

    def _all_queues(self) -> list[str]:
        """The queues of all jobs: a node or a step may name another one than its task."""
        return sorted({job.queue for job in self._model.jobs.values()})

    def _fenced(self, why: str) -> None:
        self._simulation.process_ended(self._process)

    def _ask(self, name: str, statement: Callable[[], Any]) -> Awaitable[Any]:
        return self._runs.ask(name, statement)
