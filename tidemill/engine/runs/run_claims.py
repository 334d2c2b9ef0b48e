"""Claiming runs: wake those for which something is due, claim those that need an owner, load them, and let them go on.

Suspects, which may have ended their process, are claimed apart from all others: see `core.blame`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog

from tidemill.core.blame import group_size
from tidemill.core.codec import storable
from tidemill.core.errors import PayloadError
from tidemill.core.ticks import Tick
from tidemill.engine.runs.durable_run import DurableRun, Unopened
from tidemill.engine.runs.run_inbox import RunInbox, is_urgent
from tidemill.engine.runs.run_store import RunStore
from tidemill.engine.telemetry.run_trace import trace_in

if TYPE_CHECKING:
    from tidemill.engine.runs.run_worker import RunWorker

log = structlog.get_logger("tidemill.runs")

CLAIM_AT_ONCE = 64  # While the next are claimed, the turns of these are written.
MOST_RUNS = 20_000
WAKE_AT_MOST_EVERY = 0.05
FIND_OWN_EVERY = 5.0
SUSPECTS_WAIT = 10.0  # seconds that suspects and other runs wait for each other, without a quarantine process
MAX_LOSSES = 3  # how often a process may die while it runs nothing but one run, before that needs attention
LOST_WAYS_OUT = (
    "deploy a fix and start the step again as a failed attempt (`tidemill retry`), give the step a queue "
    "(`@step(queue=...)`), fork the run from an earlier tick, or cancel it"
)


class RunClaims:
    """Claims and loads the runs of one run worker."""

    def __init__(self, worker: RunWorker, store: RunStore, inbox: RunInbox, max_losses: int) -> None:
        self.due = True
        self.has_suspects = False
        self._worker = worker
        self._store = store
        self._inbox = inbox
        self._max_losses = max_losses
        self._suspects_due_at: float | None = None  # since when suspects wait that are to run here
        self._suspects_since = 0.0
        self._wake_at = 0.0
        self._woken_at = 0.0
        self._find_own_at = 0.0
        self._claimed_early: set[int] = set()  # claimed while they were in memory, because their release was under way

    def wake_now(self) -> None:
        """Something has arrived for a released run."""
        self._wake_at = 0.0

    def find_own_now(self) -> None:
        """A response was lost: runs may be this owner's that it does not have in memory."""
        self._find_own_at = 0.0

    def wake_soon(self) -> None:
        """The inbox has rows for none of the runs in memory: they may be for a run that was released."""
        now = asyncio.get_running_loop().time()
        if now >= self._woken_at + WAKE_AT_MOST_EVERY:
            self._wake_at, self.due = now, True
        else:
            self._wake_at = min(self._wake_at, self._woken_at + WAKE_AT_MOST_EVERY)

    async def wake_sleepers(self) -> None:
        """Wake runs for which something is due, from time to time."""
        now = asyncio.get_running_loop().time()
        if now >= self._wake_at:
            self._woken_at, self._wake_at = now, now + self._worker.safety_poll
            due_in = await self._store.wake()
            if due_in is not None:
                # Not later than a release has asked for meanwhile.
                self._wake_at = min(self._wake_at, now + due_in + 0.002)

    def next_wake(self) -> float:
        """How long until released runs are checked again."""
        return max(0.0, self._wake_at - asyncio.get_running_loop().time())

    async def claim_all(self) -> None:
        """Claim runs until none is left that needs an owner."""
        while (count := await self._claim()) > 0:
            if count < CLAIM_AT_ONCE:
                return

    async def _claim(self) -> int:
        if self._worker.mode != "run":
            return 0
        now = asyncio.get_running_loop().time()
        room = min(CLAIM_AT_ONCE, MOST_RUNS - len(self._worker.runs))
        if now >= self._find_own_at or self._claimed_early - self._worker.runs.keys():
            self._find_own_at = now + FIND_OWN_EVERY
            self._claimed_early &= self._worker.runs.keys()
            rows = await self._store.find_own(self._worker.life.worker_id, list(self._worker.runs), CLAIM_AT_ONCE)
            await self._load([row for row in rows if row["kind"] in self._worker.kinds])
        if self._worker.is_quarantine or self._may_take_suspects(now):
            return await self._claim_suspects()
        if self.has_suspects:
            is_patient = now - self._suspects_since < SUSPECTS_WAIT
            self.has_suspects = is_patient and any(run.is_suspect for run in self._worker.runs.values())
            if self.has_suspects:
                return 0
        return 0 if room <= 0 else await self._claim_at(0, room)

    async def _claim_at(self, suspicions: int, room: int) -> int:
        versions = [kind.version for kind in self._worker.kinds.values()]
        limits = [kind.max_runs for kind in self._worker.kinds.values()]
        rows = await self._store.claim(
            self._worker.life.worker_id, list(self._worker.kinds), versions, room, limits, suspicions
        )
        await self._load(rows, is_suspect=suspicions > 0)
        return len(rows)

    # -- suspects ---------------------------------------------------------------------------------

    async def next_suspect(self) -> float | None:
        """Seconds until a suspect waits for an owner; None if there is none."""
        if self._worker.mode != "run":
            return None
        return 0.0 if await self._store.least_suspected(list(self._worker.kinds)) else None

    def take_suspects(self) -> None:
        """Without a quarantine process: claim suspects as soon as nothing else runs here."""
        if self._suspects_due_at is None:
            self._suspects_due_at = asyncio.get_running_loop().time()
        self.due = True
        self._worker.wake()

    def _may_take_suspects(self, now: float) -> bool:
        due = self._suspects_due_at
        return due is not None and (not self._worker.runs or (not self.has_suspects and now - due > SUSPECTS_WAIT))

    async def _claim_suspects(self) -> int:
        """Claim suspects that may run together; nothing else is claimed while they are here."""
        self._suspects_due_at = None
        if self._worker.is_quarantine and self._worker.runs:
            return 0
        level = await self._store.least_suspected(list(self._worker.kinds))
        self.has_suspects, self._suspects_since = level > 0, asyncio.get_running_loop().time()
        if level == 0:
            if self._worker.is_quarantine:
                self._worker.life.stop()
            return 0
        await self._claim_at(level, group_size(level))
        return 0

    # -- loading ----------------------------------------------------------------------------------

    async def _load(self, rows: Sequence[Any], *, is_suspect: bool = False) -> None:
        """Load our runs from the store, and let them go on."""
        self._claimed_early |= {row["id"] for row in rows} & self._worker.runs.keys()
        rows = [row for row in rows if row["id"] not in self._worker.runs]
        if not rows:
            return
        begun = [row["id"] for row in rows if row["seq"]]
        snapshots, ticks = await self._store.load(begun) if begun else ({}, {})
        older = {(row["kind"], row["version"]) for row in rows if row["seq"] and self._is_older(row)}
        definitions = await self._store.read_definitions(sorted(older)) if older else {}
        opened: dict[DurableRun, tuple[Any, Sequence[Tick]]] = {}
        for row in rows:
            number = row["id"]
            if number not in self._worker.runs:
                definition = definitions.get((row["kind"], row["version"]))
                found = self._open(row, snapshots.get(number), ticks.get(number, []), definition)
                if found is not None:
                    run, first = found
                    self._worker.runs[number], run.is_suspect = run, is_suspect
                    opened[run] = (row, first)
        try:
            mail = (await self._inbox.read())[1] if any(row["seq"] or row["has_mail"] for row in rows) else {}
            for run, (row, first) in opened.items():
                self._go_on(run, row, first, mail.pop(run, []))
            for run, rows_of_run in mail.items():
                self._inbox.hand_over(run, rows_of_run)
        except BaseException:
            for run in opened:
                self._worker.forget(run)
            raise

    def _is_older(self, row: Any) -> bool:
        """Whether a run was driven by another version of its workflow until now."""
        return self._worker.kinds[row["kind"]].version not in (None, row["version"])

    def _open(
        self, row: Any, snapshot: bytes | None, ticks: list[bytes], definition: bytes | None
    ) -> tuple[DurableRun, Sequence[Tick]] | None:
        try:
            run, first = self._worker.kinds[row["kind"]].open(self._worker, row, snapshot, ticks, definition)
            run.trace, run.priority, run.origin = trace_in(row["origin"]), row["priority"], row["origin"]
            return run, first
        except PayloadError as error:
            self._stop_for_attention(row, str(error))
        except Exception as error:  # noqa: BLE001 - one run that does not fit must not end the others
            self._stop_for_attention(row, f"{error!r}; cancel the run, or deploy code that can open it")
        return None

    def _go_on(self, run: DurableRun, row: Any, first: Sequence[Tick], mail: list[Any]) -> None:
        """Let a run go on that was loaded: a request to cancel it, or the end of its work, comes before anything is run
        again."""
        urgent: list[Any] = []
        others: list[Any] = []
        for each in mail:
            (urgent if row["seq"] > 0 and is_urgent(run, each) else others).append(each)
        self._inbox.hand_over(run, urgent)
        if run.loop.state.status != "running":
            self._inbox.give_back(each["id"] for each in others)
        elif row["losses"] >= self._max_losses:
            self._inbox.give_back(each["id"] for each in others)
            why = f"the process that ran it died {row['losses']} times while it ran nothing but {run.in_progress}"
            run.stop_for_attention(why, ways_out=LOST_WAYS_OUT)
        else:
            try:
                for tick in first:
                    run.loop.post(tick)
                if self._is_older(row):
                    run.take_over()
            except PayloadError as error:
                self._stop_for_attention(row, str(error))
                return
            except Exception as error:  # noqa: BLE001 - a defect of one run must not affect the others
                self._stop_for_attention(row, f"{error!r}; cancel the run, or deploy code that can open it")
                return
            self._inbox.hand_over(run, others)

    def _stop_for_attention(self, row: Any, why: str) -> None:
        """Stop a run that no longer fits the code: it is logged, and waits for an operator."""
        log.error("run needs attention: it no longer fits the workflow", run=row["id"], why=why)
        for run in [run for run in self._worker.dirty if run.number == row["id"]]:
            self._worker.forget(run)
        turn = Unopened(self._worker, row["id"], row["seq"]).turn()
        turn.state = "needs_attention"
        turn.note = storable(why)
