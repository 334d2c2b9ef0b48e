"""The claimer: claims jobs and writes results, the worker's only database access on the hot path.

A turn writes the results of ended jobs and claims new ones in one round trip. Claimed jobs keep running during a turn,
so a busy worker and the database work at the same time, and results that arrive meanwhile are batched into the next
turn.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable

import structlog

from tidemill.core.clock import Clock
from tidemill.core.jobs.job import Finish, Requeue
from tidemill.engine.models.affinity import Affinity
from tidemill.engine.worker.job_runner import JobRunner
from tidemill.engine.worker.queue_sharing import JobPrefetch, share_slots
from tidemill.store.database import Database
from tidemill.store.database_errors import CLASHES, is_full, is_unavailable
from tidemill.store.jobs.claims.claims import Claims, Turn
from tidemill.store.jobs.claims.fair_claims import FairClaims
from tidemill.store.jobs.claims.model_claims import ModelClaims
from tidemill.store.jobs.log import write_logs

log = structlog.get_logger("tidemill.worker")

SAFETY_POLL = 30.0
POLL_WITHOUT_WAKE_UPS = 5.0
BACKLOG_CHECK = 0.5
FULL_PAUSE = 1.0
SHORTEST_WAIT = 0.002
CONTESTED = 0.05
SUSPECTS_WAIT = 10.0  # seconds that suspects and other jobs wait for each other, without a quarantine process

#: Seconds after a lost connection at which to check again: the server may complete the last claim late.
UNHELD_CHECK_DELAYS = (2.0, 10.0, 60.0)


class Claimer:
    """Moves jobs between the database and the job runner."""

    def __init__(
        self,
        database: Database,
        runner: JobRunner,
        queues: tuple[str, ...],
        clock: Clock,
        wakeup: asyncio.Event,
        open_queues: Callable[[], list[str]],
        affinity: Affinity | None = None,
        *,
        lowest_first: bool = False,
        on_no_suspects: Callable[[], None] | None = None,
    ) -> None:
        """With `on_no_suspects` it claims only suspects, and calls that when there are none."""
        self.limited: dict[str, float] = {}
        self._on_no_suspects = on_no_suspects
        self._takes_suspects = on_no_suspects is not None
        self._has_suspects = False
        self._suspects_due_at = self._suspects_since = 0.0
        self._affinity = affinity
        self._lowest_first = lowest_first
        self._model_claims: ModelClaims | None = None
        self._fair_claims: FairClaims | None = None
        self.weights: dict[str, dict[str, int]] = {}
        self._database = database
        self._runner = runner
        self._queues = queues
        self._clock = clock
        self._wakeup = wakeup
        self._open_queues = open_queues
        self._prefetch = JobPrefetch()
        self._turn = 0
        # Whether a claim may find jobs now, and when to try again without a notification.
        self._may_find_jobs = True
        self._claim_again_at = math.inf
        self._dry: set[str] = set()  # queues that returned fewer jobs than requested, until a notification
        self._claimable: list[str] = []  # all queues that the last turn could have claimed from
        self._over_limit: list[str] = []  # queues that the last turn left out because of their rate limit
        self._check_unheld_at: list[float] = []
        self._closing = False

    def claim_soon(self, queue: str | None = None, lane: str | None = None) -> None:
        """Claim at the next turn: there may be new jobs, in any queue, in one, or in one lane of it."""
        if queue is None:
            self._dry.clear()
        else:
            self._dry.discard(queue)
        if self._fair_claims is not None:
            if queue is None:
                self._fair_claims.wake_all()
            else:
                self._fair_claims.wake(queue, lane)
        self._may_find_jobs = True
        self._wakeup.set()

    def weigh(self, weights: dict[str, dict[str, int]]) -> None:
        """Share queues by these weights of their fair keys."""
        self.weights = weights
        if self._fair_claims is not None:
            self._fair_claims.weigh(weights)

    def take_suspects(self) -> None:
        """Claim suspects as soon as there is nothing else to run."""
        if not self._takes_suspects:
            self._takes_suspects, self._suspects_due_at = True, self._clock.monotonic()
        self._wakeup.set()

    def close(self) -> None:
        """Stop claiming, and end when all results are written."""
        self._closing = True
        self._wakeup.set()

    async def run(self, worker_id: int) -> None:
        """Run turns until closed, across any number of lost connections."""
        claims: Claims | None = None
        unwritten: tuple[list[Finish], list[Requeue]] = ([], [])
        try:
            while True:
                self._wakeup.clear()
                unwritten = _joined(unwritten, self._runner.take_ended())
                if self._closing and not any(unwritten):
                    return
                try:
                    if claims is None:
                        claims = await self._connect(worker_id, unwritten)
                    elif self._check_unheld_at and self._clock.monotonic() >= self._check_unheld_at[0]:
                        self._check_unheld_at.pop(0)
                        await self._release_unheld(claims, unwritten)
                    if self._fair_claims is None:
                        self._fair_claims = FairClaims(claims, self.weights)
                    unwritten = await self._take_turn(claims, self._fair_claims, unwritten)
                except CLASHES as error:
                    log.info("deadlock or serialization failure: retrying", error=str(error))
                    self._check_unheld_at = [
                        self._clock.monotonic()
                    ]  # The turn may have claimed jobs before it failed.
                    self.claim_soon()
                except Exception as error:
                    if not (is_unavailable(error) or is_full(error)):
                        raise
                    log.warning("the database is unavailable", error=str(error), in_hand=self._runner.count)
                    if claims is not None:
                        claims.connection.terminate()
                        claims = None
                        now = self._clock.monotonic()
                        self._check_unheld_at = [now + later for later in UNHELD_CHECK_DELAYS]
                    if is_full(error):
                        await asyncio.sleep(FULL_PAUSE)
                    self.claim_soon()
        finally:
            if claims is not None:
                claims.connection.terminate()

    async def _connect(self, worker_id: int, unwritten: tuple[list[Finish], list[Requeue]]) -> Claims:
        """A new connection; releases jobs whose claim was lost with the old one."""
        connection = await self._database.connect_to_look_up()
        claims = Claims(self._database, connection, worker_id, self._queues, lowest_first=self._lowest_first)
        self._fair_claims = None
        if self._affinity is not None:
            self._model_claims = ModelClaims(claims, list(self._affinity.models.specs))
        await self._release_unheld(claims, unwritten)
        return claims

    async def _release_unheld(self, claims: Claims, unwritten: tuple[list[Finish], list[Requeue]]) -> None:
        """Release jobs that the table says are ours but that we do not hold: the response to their claim was lost."""
        held = self._runner.held_ids() + [job.id for group in unwritten for job in group]
        unheld = await claims.release_unheld(held)
        if unheld:
            log.warning("released jobs whose claim was lost with the connection", jobs=len(unheld))

    async def _take_turn(
        self, claims: Claims, fair_claims: FairClaims, unwritten: tuple[list[Finish], list[Requeue]]
    ) -> tuple[list[Finish], list[Requeue]]:
        finished, requeues = unwritten
        if logs := list(self._runner.logs):  # Before the end of their jobs, so that a reader of the end finds them.
            await write_logs(self._database, claims.connection, logs)
            del self._runner.logs[: len(logs)]
        if requeues:
            await claims.requeue(requeues)
        if self._takes_suspects and not finished and self._may_take_suspects():
            await self._claim_suspects(claims)
        await fair_claims.look_for_queues(self._queues, self._clock.monotonic())
        wanted = self._wanted()
        if not finished and not requeues and not (wanted and self._may_find_jobs):
            await self._wait(claims, fair_claims, wanted)
            return [], []
        self._may_find_jobs = False
        now = self._clock.monotonic()
        plain = {queue: room for queue, room in wanted.items() if queue not in self.limited}
        fair = {queue: plain.pop(queue) for queue in wanted if queue in plain and queue in fair_claims}
        by_model: dict[str, int] = {}
        if self._affinity is not None:
            plain, by_model = {}, plain
        if self._claim_again_at <= now:
            self._claim_again_at = math.inf
        for queue, room in fair.items():
            turn = await fair_claims.turn(finished, queue, room, list(self._runner.unknown), now)
            self._take_in(turn, finished, {queue: room})
            finished = []
        if finished or plain:
            turn = await claims.turn(finished, plain, list(self._runner.unknown), now)
            self._take_in(turn, finished, plain)
            self._claim_again_at = turn.look_again_at
        if by_model and self._affinity is not None and self._model_claims is not None:
            await self._claim_by_model(self._affinity, self._model_claims, by_model)
        for queue in wanted.keys() & self.limited.keys():
            unknown = list(self._runner.unknown)
            if queue in fair_claims:
                jobs, wait = await fair_claims.limited_turn(queue, wanted[queue], unknown, now)
            else:
                jobs, wait = await claims.claim_limited(queue, wanted[queue], unknown)
            self.limited[queue] = self._clock.monotonic() + wait
            self._may_find_jobs = self._may_find_jobs or (bool(jobs) and wait == 0)
            self._runner.take_in(jobs)
        self._may_find_jobs = self._may_find_jobs or fair_claims.has_work
        return [], []

    def _take_in(self, turn: Turn, finished: list[Finish], asked: dict[str, int]) -> None:
        if turn.refused:
            log.warning("late results were rejected", refused=turn.refused, worker=self._runner.worker)
        self._prefetch.finished(len(finished), self._clock.monotonic())
        self._learn(asked, [job.queue for job in turn.jobs])
        self._may_find_jobs = self._may_find_jobs or len(turn.jobs) >= sum(asked.values()) > 0
        self._runner.take_in(turn.jobs, turn.ahead)

    def _may_take_suspects(self) -> bool:
        """Whether nothing else runs, or suspects have waited for that for too long."""
        if self._on_no_suspects is not None or self._runner.count == 0:
            return self._runner.count == 0
        return self._clock.monotonic() - self._suspects_due_at > SUSPECTS_WAIT

    async def _claim_suspects(self, claims: Claims) -> None:
        """Claim suspects; nothing else is claimed while they run."""
        self._takes_suspects = self._on_no_suspects is not None
        queues = self._open_queues()
        jobs = await claims.claim_suspects(queues, list(self._runner.unknown)) if queues else []
        self._has_suspects, self._suspects_since = bool(jobs), self._clock.monotonic()
        if jobs:
            self._runner.take_in(jobs)
        elif self._on_no_suspects is not None:
            self._on_no_suspects()

    async def _claim_by_model(self, affinity: Affinity, claims: ModelClaims, wanted: dict[str, int]) -> None:
        """Claim jobs whose models are loaded, or of the model that is next."""
        unknown = list(self._runner.unknown)
        heads = await claims.look_for_models(list(wanted), unknown)
        left, got = dict(wanted), 0
        chosen = affinity.choose(heads, self._runner.needed_models())
        for head in chosen:
            if left[head.queue] > 0:
                # Without patience no job is overtaken: claim one job, then choose again.
                jobs = await claims.claim(head, left[head.queue] if affinity.patience else 1, unknown)
                if jobs:
                    affinity.claimed(head.model)
                    self._runner.take_in(jobs)
                left[head.queue] -= len(jobs)
                got += len(jobs)
        self._learn(wanted, [queue for queue, room in wanted.items() for _ in range(room - left[queue])])
        self._may_find_jobs = got > 0
        # Another worker has claimed the chosen jobs: do not wait for the safety poll.
        self._claim_again_at = math.inf if got or not chosen else self._clock.monotonic() + CONTESTED

    def _wanted(self) -> dict[str, int]:
        """How many jobs to request from each queue now."""
        self._over_limit = []
        if self._closing or self._runner.closed is not None or self._on_no_suspects is not None:
            return {}
        is_patient = self._clock.monotonic() - self._suspects_since < SUSPECTS_WAIT
        if self._has_suspects and is_patient and self._runner.count:
            return {}
        self._has_suspects = False
        now = self._clock.monotonic()
        opened = self._open_queues()
        queues = [queue for queue in opened if self.limited.get(queue, 0.0) <= now]
        self._over_limit = [queue for queue in self.limited if self.limited[queue] > now and queue in opened]
        self._claimable = queues
        room = self._runner.max_concurrency + self._prefetch.extra - self._runner.count
        self._turn += 1
        return share_slots(room, queues, self._dry, self._turn) if queues else {}

    def _learn(self, asked: dict[str, int], got: list[str]) -> None:
        if len(asked) > 1:
            counts = Counter(got)
            for queue, room in asked.items():
                if counts[queue] < room:
                    self._dry.add(queue)
                else:
                    self._dry.discard(queue)

    async def _wait(self, claims: Claims, fair_claims: FairClaims, wanted: dict[str, int]) -> None:
        """Wait for a notification, the next delayed job, or the safety poll."""
        if self._runner.held_too_long():
            self._prefetch.slow_down()
            self._runner.give_back_unstarted("its worker was busy with other jobs")
            return
        await asyncio.sleep(0)  # Jobs that have just started may end at once: their results come first.
        if self._wakeup.is_set():
            return
        timeout = SAFETY_POLL if self._database.can_listen else POLL_WITHOUT_WAKE_UPS
        if self._has_suspects:
            timeout = SUSPECTS_WAIT
        if self._runner.backlog:
            timeout = BACKLOG_CHECK
        elif wanted:
            due = await (self._model_claims or claims).next_due(self._claimable, list(self._runner.unknown))
            if due is not None:
                timeout = min(timeout, max(due, SHORTEST_WAIT))
        now = self._clock.monotonic()
        if wanted:
            again_at = min(self._claim_again_at, fair_claims.next_at(self._claimable))
            timeout = min(timeout, max(again_at - now, SHORTEST_WAIT))
        for queue in self._over_limit:  # A limit may have passed since, so it must not wait for the safety poll.
            timeout = min(timeout, max(self.limited.get(queue, 0.0) - now, SHORTEST_WAIT))
        try:
            async with asyncio.timeout(timeout):
                await self._wakeup.wait()
        except TimeoutError:
            self._dry.clear()
            self._may_find_jobs = True


def _joined(
    first: tuple[list[Finish], list[Requeue]], second: tuple[list[Finish], list[Requeue]]
) -> tuple[list[Finish], list[Requeue]]:
    return (first[0] + second[0], first[1] + second[1]) if any(first) else second
