"""An in-memory model of the tables of runs and of the statements on them.

The simulation runs on it, and a test compares it with PostgreSQL: the same operations must leave the same rows. Each
method is one atomic statement. A PostgreSQL statement reads what existed when it began, but changes the newest version
of a row: so a slow commit passes the `StoreView` of its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.core.blame import group_size, suspected_again
from tidemill.core.clock import Clock
from tidemill.core.codec import decode, encode
from tidemill.core.jobs.job import ClaimedJob, Finish, Requeue
from tidemill.store.jobs.history.archive import SEVERAL
from tidemill.store.runs.claims import DAG_KIND
from tidemill.store.runs.model_rows import InboxRow, RunRow, StoredJob, StoreView, WorkerRow
from tidemill.store.runs.run_turn import RunTurn
from tidemill.store.runs.turns import POSTPONED_SECONDS, UNWANTED

LIVE = ("running", "needs_attention")

#: A channel and a payload of a notification.
Notification = tuple[str, str]


class DuplicateTick(Exception):
    """Two owners have written the same tick, which the journal's primary key rejects."""


class StoreModel:
    """The rows, and the statements that change them. `notify` receives the notifications of a statement."""

    def __init__(self, clock: Clock, notify: Callable[[Notification], None] = lambda notification: None) -> None:
        self.clock = clock
        self.notify = notify
        self.runs: dict[int, RunRow] = {}
        self.slots: set[int] = set()
        self.definitions: dict[tuple[str, str], bytes] = {}
        self.ticks: dict[int, list[bytes]] = {}
        self.inbox: dict[int, InboxRow] = {}
        self.inputs: dict[tuple[int, str], tuple[str, bytes | None, float | None]] = {}
        self.published: dict[int, list[tuple[int, bytes]]] = {}
        self.snapshots: dict[int, tuple[int, bytes]] = {}
        self.jobs: dict[int, StoredJob] = {}
        self.history: dict[int, StoredJob] = {}
        self.workers: dict[int, WorkerRow] = {}
        self._last: dict[str, int] = {}

    def _next(self, table: str) -> int:
        number = self._last[table] = self._last.get(table, 0) + 1
        return number

    # -- owners -----------------------------------------------------------------------------------

    def register(self, lease: float, versions: dict[str, str]) -> int:
        number = self._next("worker")
        self.workers[number] = WorkerRow(number, self.clock.now() + lease, versions)
        return number

    def renew(self, worker: int, lease: float) -> bool:
        row = self.workers[worker]
        if not row.ended:
            row.lease_until = self.clock.now() + lease
        return not row.ended

    def end_worker(self, worker: int) -> None:
        row = self.workers[worker]
        row.ended = True
        if any(name.startswith("run ") for name in row.versions):
            self.notify(("runs", "wake"))

    def end_lapsed(self) -> list[int]:
        """End owners and workers whose lease has lapsed."""
        now = self.clock.now()
        lapsed = [row for row in self.workers.values() if not row.ended and row.lease_until < now]
        for row in lapsed:
            row.ended = row.lost = True
        return [row.id for row in lapsed]

    def free_runs(self) -> int:
        freed = [run for run in self.runs.values() if run.owner is not None and self.workers[run.owner].ended]
        suspects = [run for run in freed if run.owner is not None and self.workers[run.owner].lost]
        suspects = [run for run in suspects if run.seq > 0 and run.kind != DAG_KIND]
        held = Counter(run.owner for run in suspects)
        for run in suspects:
            alone = held[run.owner] == 1
            run.losses += alone
            run.suspicions = suspected_again(run.suspicions, alone=alone)
        for run in freed:
            run.owner, run.awake = None, True
        if freed:
            self.notify(("runs", ""))
        if suspects:
            self.notify(("runs", "suspects"))
        return len(freed)

    # -- runs -------------------------------------------------------------------------------------

    def start(
        self,
        *,
        workflow: str,
        version: str,
        input: bytes,
        key: str | None = None,
        parent: tuple[int, int] | None = None,
        kind: str | None = None,
    ) -> tuple[int, bool]:
        if key is not None:
            for run in self.runs.values():
                if run.workflow == workflow and run.key == key:
                    return run.id, False
        number, (up, work) = self._next("run"), parent or (None, None)
        self.runs[number] = RunRow(number, kind or workflow, workflow, version, input, key, parent=up, parent_work=work)
        self.notify(("runs", ""))
        return number, True

    def reserve(self, count: int) -> list[int]:
        return [self._next("run") for _ in range(count)]

    def claim(
        self,
        owner: int,
        kinds: Sequence[str],
        versions: Sequence[str | None],
        room: int,
        limits: Sequence[int | None] = (),
        suspicions: int = 0,
    ) -> list[RunRow]:
        if owner not in self.workers or self.workers[owner].ended:
            return []
        knows = dict(zip(kinds, versions, strict=True))
        limited = {kind: most for kind, most in zip(kinds, limits, strict=False) if most is not None}
        found = [
            run
            for run in sorted(self.runs.values(), key=lambda run: run.id)
            if run.state == "running" and run.owner is None and run.awake and run.kind in knows
            if run.suspicions == suspicions
            if run.version == (knows[run.kind] or run.version) or not self._has_home(run)
        ]
        taken = [run for run in found if run.seq > 0 or run.kind not in limited][:room]
        limited = {} if suspicions else limited
        if limited and len(taken) < room:
            held = {number: self.runs[number] for number in self.slots}
            self.slots = {n for n, run in held.items() if run.state == "running" and (run.seq or run.owner is not None)}
        for kind, most in limited.items():
            free = most - sum(self.runs[number].kind == kind for number in self.slots)
            new = [run for run in found if run.kind == kind and run.seq == 0][: max(0, min(free, room - len(taken)))]
            self.slots.update(run.id for run in new)
            taken += new
        for run in taken:
            run.owner, run.turn, run.note = owner, 0, None
            run.has_mail = any(row.run_id == run.id for row in self.inbox.values())
        return taken

    def least_suspected(self, kinds: Sequence[str]) -> int:
        waiting = [run for run in self.runs.values() if run.state == "running" and run.owner is None and run.awake]
        return min((run.suspicions for run in waiting if run.kind in kinds and run.suspicions), default=0)

    def _has_home(self, run: RunRow) -> bool:
        now, name = self.clock.now(), f"run {run.kind}"
        return any(
            not worker.ended and worker.lease_until > now and worker.versions.get(name) == run.version
            for worker in self.workers.values()
        )

    def find_own(self, owner: int, held: Sequence[int], room: int) -> list[RunRow]:
        found = [run for run in self.runs.values() if run.owner == owner and run.state == "running"]
        for run in found:
            run.has_mail = True
        return sorted((run for run in found if run.id not in held), key=lambda run: run.id)[:room]

    def resume_stopped(self, kinds: Sequence[str]) -> None:
        for run in self.runs.values():
            if run.state == "needs_attention" and run.kind in kinds:
                run.state, run.awake, run.note = "running", True, None

    def declare_versions(self, versions: Mapping[str, tuple[str, bytes]]) -> None:
        for kind, (version, data) in versions.items():
            self.definitions.setdefault((kind, version), data)

    def read_definitions(self, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
        return {each: self.definitions[each] for each in wanted if each in self.definitions}

    def load(self, numbers: Sequence[int]) -> tuple[dict[int, bytes], dict[int, list[bytes]]]:
        known = {number: self.snapshots[number] for number in numbers if number in self.snapshots}
        ticks = {number: self.ticks.get(number, [])[known.get(number, (0,))[0] :] for number in numbers}
        return {number: data for number, (_, data) in known.items()}, ticks

    def due(self, owner: int, taken: Sequence[int], room: int) -> list[InboxRow]:
        now, known = self.clock.now(), set(taken)
        return [
            row
            for row in sorted(self.inbox.values(), key=lambda row: row.id)
            if row.due_at <= now and row.id not in known
            if (run := self.runs.get(row.run_id)) is not None and run.owner == owner
        ][:room]

    def wake(self) -> float | None:
        """Wake runs that have something due; returns the seconds until the next timer."""
        now, woken = self.clock.now(), 0
        for number in {row.run_id for row in self.inbox.values() if row.due_at <= now}:
            run = self.runs.get(number)
            if run is None:
                continue
            if run.state == "running" and run.owner is None and not run.awake:
                run.awake = True
                woken += 1
            elif run.state not in LIVE:
                self._empty_inbox(number, None)
        if woken:
            self.notify(("runs", ""))
        return min((row.due_at - now for row in self.inbox.values() if row.due_at > now), default=None)

    def send(self, run_id: int, tick: bytes) -> bool:
        run = self.runs.get(run_id)
        if run is None or run.state not in LIVE:
            return False
        run.awake = True
        self._put(run_id, data=tick)
        self.notify(("runs", ""))
        return True

    def cancel_stopped(self, run_id: int, note: str) -> bool:
        run = self.runs.get(run_id)
        if run is None or run.state != "needs_attention":
            return False
        run.state, run.ended_at, run.note = "cancelled", self.clock.now(), note
        self._write_ends({run_id}, {run_id}, self.read_view())
        return True

    def publish(self, run_id: int, shown: Sequence[bytes]) -> None:
        self.published.setdefault(run_id, []).extend((self.runs[run_id].seq, data) for data in shown)

    def read_notes(self, run_id: int, work: int) -> list[bytes]:
        waiting = [row.data for row in self.inbox.values() if row.run_id == run_id and row.data is not None]
        return [data for data in [*self.ticks.get(run_id, []), *waiting] if _is_note(data, work)]

    def _put(self, run_id: int, *, work: int | None = None, data: bytes | None = None) -> None:
        number = self._next("inbox")
        self.inbox[number] = InboxRow(number, run_id, self.clock.now(), work, None, data)

    def _empty_inbox(self, run_id: int, view: StoreView | None) -> None:
        for number in [row.id for row in self.inbox.values() if row.run_id == run_id]:
            if view is None or number in view.inbox:
                del self.inbox[number]

    def _want_nothing(self, run_id: int) -> None:
        """Drop the questions of an ended run and request the cancellation of its jobs."""
        for key in [key for key in self.inputs if key[0] == run_id]:
            del self.inputs[key]
        for row in self.jobs.values():
            if row.run_id == run_id and row.cancel_reason is None:
                row.cancel_reason = UNWANTED
                self.notify(("control", ""))

    # -- turns ------------------------------------------------------------------------------------

    def read_view(self) -> StoreView:
        """What a statement that begins now reads."""
        children = frozenset(run.id for run in self.runs.values() if run.parent is not None)
        return StoreView(self.clock.now(), frozenset(self.inbox), children)

    def commit(self, owner: int, number: int, turns: Sequence[RunTurn], view: StoreView | None = None) -> set[int]:
        """Write a turn of many runs atomically; returns those that the owner still owned."""
        seen = view or self.read_view()
        mine = [turn for turn in turns if self._is_mine(turn, owner, number)]
        for turn in mine:
            if turn.ticks and turn.before < len(self.ticks.get(turn.run_id, [])):
                raise DuplicateTick(f"tick {turn.before + 1} of run {turn.run_id} exists already")
        used = {inbox_id for turn in turns if turn.new is None for inbox_id in turn.used}
        for turn in mine:
            self._write_head(turn, owner, number, used, seen)
        over = {turn.run_id for turn in mine if turn.state is not None and turn.state != "needs_attention"}
        if over:  # An end deletes earlier rows, but not those written with it.
            self._write_ends(over, {turn.run_id for turn in mine if turn.new is None}, seen)
        for turn in mine:
            self._write_rows(turn)
        return {turn.run_id for turn in mine}

    def _is_mine(self, turn: RunTurn, owner: int, number: int) -> bool:
        run = self.runs.get(turn.run_id)
        if turn.new is not None:
            return run is None
        return run is not None and run.owner == owner and run.seq == turn.before and run.turn < number

    def _write_head(self, turn: RunTurn, owner: int, number: int, used: set[int], view: StoreView) -> None:
        if (new := turn.new) is not None:
            self.runs[turn.run_id] = RunRow(turn.run_id, new.kind, new.workflow, new.version, new.input, owner=owner)
        run = self.runs[turn.run_id]
        run.seq, run.turn = turn.last, number
        if turn.state is not None or turn.note is not None:
            run.state, run.note = turn.state or run.state, turn.note or None
        run.version = turn.version or run.version
        run.result = run.result if turn.result is None else turn.result
        run.error = run.error if turn.error is None else turn.error
        if turn.state is not None and turn.state != "needs_attention":
            run.ended_at = view.at
        if turn.release and new is None:
            run.awake = turn.awake or any(
                row.run_id == run.id and row.due_at <= view.at and row.id in view.inbox and row.id not in used
                for row in self.inbox.values()
            )
        if turn.release or turn.state is not None:
            run.owner = None
        if turn.cleared:
            run.suspicions = run.losses = 0

    def _write_rows(self, turn: RunTurn) -> None:
        number = turn.run_id
        self.ticks.setdefault(number, []).extend(turn.ticks)
        self.published.setdefault(number, []).extend(turn.shown)
        if turn.snapshot is not None:
            self.snapshots[number] = (turn.last, turn.snapshot)
        for inbox_id in turn.used:
            self.inbox.pop(inbox_id, None)
        for inbox_id in turn.postponed:
            if (message := self.inbox.get(inbox_id)) is not None:
                message.due_at = self.clock.now() + POSTPONED_SECONDS
        for timer, due in turn.timers.items():
            self._set_timer(number, timer, due)
        for node in turn.answered:
            self.inputs.pop((number, node), None)
        for before, now in turn.renamed:
            if (number, before) in self.inputs:
                self.inputs[number, now] = self.inputs.pop((number, before))
        for node, prompt, schema, due in turn.asks:
            self.inputs[number, node] = (prompt, schema, due)
        for row in self.jobs.values():
            if row.run_id == number and row.work in turn.stops and row.cancel_reason is None:
                row.cancel_reason = UNWANTED
                self.notify(("control", ""))
        for work, (queue, task, args, priority, at, delay, _, options, *_) in turn.jobs:
            job_id, due_at = self._next("job"), self.clock.now() + delay if at is None else at
            self.jobs[job_id] = StoredJob(job_id, number, work, due_at, queue, task, args, priority, options)
            self.notify(("jobs", queue))

    def _set_timer(self, number: int, timer: str, due: float | None) -> None:
        known = next((row for row in self.inbox.values() if row.run_id == number and row.timer == timer), None)
        if due is None:
            if known is not None:
                del self.inbox[known.id]
        elif known is not None:
            known.due_at = due
        else:
            inbox_id = self._next("inbox")
            self.inbox[inbox_id] = InboxRow(inbox_id, number, due, timer=timer)

    def _write_ends(self, over: set[int], held: set[int], view: StoreView) -> None:
        for number in sorted(over):
            run = self.runs[number]
            self._empty_inbox(number, view)
            self._want_nothing(number)
            if run.parent is not None and number in held:
                end = {"run": number, "key": run.key, "state": run.state, "note": run.note}
                ends = {name: _raw(data) for name, data in (("result", run.result), ("error", run.error))}
                self._put(run.parent, work=run.parent_work, data=encode({**end, **ends}))
                self.notify(("runs", "inbox"))
        for child in [self.runs[number] for number in sorted(view.children)]:
            if child.parent in over and child.state in LIVE:
                why = f"the run that started it, r{child.parent}, has ended"
                self._put(child.id, data=encode({"kind": "cancel_asked", "at": view.at, "reason": why}))
                self.notify(("runs", "wake"))

    def written(self, owner: int, number: int, turns: Sequence[RunTurn]) -> set[int]:
        found = [(turn, self.runs.get(turn.run_id)) for turn in turns]
        return {
            turn.run_id
            for turn, run in found
            if run is not None and run.seq == turn.last and run.turn == number and run.owner in (owner, None)
        }

    # -- jobs -------------------------------------------------------------------------------------

    def claim_jobs(self, worker: int, queues: Sequence[str], room: int, *, suspects: bool = False) -> list[ClaimedJob]:
        """Claim jobs; with `suspects`, those first, and nothing else beside them."""
        if self.workers[worker].ended:
            return []
        now = self.clock.now()
        ready = [row for row in self.jobs.values() if row.state == "ready" and row.due_at <= now]
        ready = [row for row in ready if row.queue in queues]
        level = min((row.suspicions for row in ready if row.suspicions), default=0) if suspects else 0
        ready = [row for row in ready if row.suspicions == level]
        room = group_size(level) if level else room
        found = sorted(ready, key=lambda row: (-row.priority, row.due_at, row.id))[:room]
        for row in found:
            row.state, row.worker, row.attempt, row.note = "running", worker, row.attempt + 1, None
        return [_claimed(row) for row in found]

    def finish(self, worker: int, finished: Sequence[Finish]) -> list[int]:
        """Move jobs to the history and report to their runs; returns those that the worker still owned."""
        mine = [end for end in finished if self._holds(worker, end.id, end.attempt)]
        ends_of: dict[int, list[tuple[int | None, bytes]]] = {}
        for end in mine:
            row = self.jobs[end.id]
            row.failures += end.state == "failed" and not end.lost
            row.losses += end.lost
            note = row.note if end.note is None else end.note
            data = self._archive(row, end.state, note, end.result, end.error)
            if row.run_id is not None:
                ends_of.setdefault(row.run_id, []).append((row.work, data))
        for run_id, ends in ends_of.items():
            if len(ends) == 1:
                self._tell(run_id, *ends[0])
            else:
                self._tell(run_id, SEVERAL, b"[" + b",".join(data for _, data in ends) + b"]")
        return [end.id for end in mine]

    def requeue(self, worker: int, jobs: Sequence[Requeue]) -> list[int]:
        mine = [job for job in jobs if self._holds(worker, job.id, job.attempt)]
        for job in mine:
            row = self.jobs[job.id]
            row.state, row.worker, row.note = job.state, None, job.note
            row.due_at = self.clock.now() + job.delay if job.delay > 0 else row.due_at
            row.failures, row.losses = row.failures + job.failed, row.losses + job.lost
            row.suspicions = row.suspicions if job.suspicions is None else job.suspicions
            self.notify(("jobs", row.queue))
        return [job.id for job in mine]

    def release_unheld(self, worker: int, held: Sequence[int]) -> list[int]:
        """Release jobs that the table says this worker holds, but that the worker does not know of."""
        unheld = [row for row in self.jobs.values() if (row.state, row.worker) == ("running", worker)]
        unheld = [row for row in unheld if row.id not in held]
        for row in unheld:
            row.state, row.worker, row.note = "ready", None, "its claim was lost with the connection"
        return [row.id for row in unheld]

    def find_cancels(self, jobs: Sequence[int]) -> list[tuple[int, int, str]]:
        rows = [self.jobs[number] for number in jobs if number in self.jobs]
        return [(row.id, row.attempt, row.cancel_reason) for row in rows if row.cancel_reason is not None]

    def held_by(self, worker: int) -> list[ClaimedJob]:
        return [_claimed(row) for row in self.jobs.values() if row.worker == worker and row.state == "running"]

    def cancel_unwanted(self) -> int:
        rows = [row for row in self.jobs.values() if row.cancel_reason and row.run_id and row.state != "running"]
        for row in rows:
            data = self._archive(row, "cancelled", row.cancel_reason, None, None)
            if row.run_id is not None:
                self._tell(row.run_id, row.work, data)
        return len(rows)

    def _holds(self, worker: int, job: int, attempt: int) -> bool:
        row = self.jobs.get(job)
        return row is not None and (row.state, row.worker, row.attempt) == ("running", worker, attempt)

    def _archive(
        self, row: StoredJob, state: str, note: str | None, result: bytes | None, error: bytes | None
    ) -> bytes:
        """Move a job to the history; returns its end, for its run."""
        del self.jobs[row.id]
        row.state, row.note, row.result = state, note, result
        self.history[row.id] = row
        report = {"work": row.work, "job": row.id, "state": state, "result": _raw(result)}
        return encode({**report, "note": note, "error": _raw(error)})

    def _tell(self, run_id: int, work: int | None, data: bytes) -> None:
        self._put(run_id, work=work, data=data)
        self.notify(("runs", "inbox"))


def _claimed(row: StoredJob) -> ClaimedJob:
    job = (row.id, row.attempt, row.queue, row.task, row.args, row.options, row.failures, row.losses)
    return ClaimedJob(*job, keyed=False, expired=False, cancel_reason=row.cancel_reason, suspicions=row.suspicions)


def _raw(data: bytes | None) -> msgspec.Raw:
    return msgspec.Raw(b"null" if data is None else data)


def _is_note(data: bytes, work: int) -> bool:
    end: Any = decode(data)  # a list, if several pieces of work have ended
    return isinstance(end, dict) and end.get("kind") == "noted" and end.get("work") == work
