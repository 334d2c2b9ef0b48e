"""The model that simulations run on is true: the same operations leave the same rows in PostgreSQL."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.simulation.seeds import seeds
from tidemill.core.blame import ALONE
from tidemill.core.clock import SYSTEM_CLOCK
from tidemill.core.jobs.job import ClaimedJob, FinalState, Finish, NewJob, Requeue
from tidemill.engine.runs.run_store import PostgresRunStore
from tidemill.store.database import Connection, Database
from tidemill.store.jobs.claims.claims import Claims, finish_jobs, requeue_jobs
from tidemill.store.jobs.workers import END_LAPSED, END_WORKER, WorkerCard, register_worker
from tidemill.store.runs.claims import FREE_RUNS
from tidemill.store.runs.inbox import CANCEL_STOPPED, SEND
from tidemill.store.runs.model import StoreModel
from tidemill.store.runs.run_turn import NewRun, RunTurn, job_row
from tidemill.store.runs.runs import OWN_KEY, start_run

OPERATIONS = 120
HOUR = 3600.0
KINDS = ("a", "b")
QUEUES = ("near", "far")


class Both:
    """The model and PostgreSQL side by side. Each operation is done to both; what they answer must be the same."""

    def __init__(self, database: Database, connection: Connection, seed: int) -> None:
        self.database, self.connection = database, connection
        self.postgres = PostgresRunStore(database)
        self.model = StoreModel(SYSTEM_CLOCK)
        self.chance = random.Random(seed)
        self.owners: list[int] = []
        self.turns: dict[int, int] = {}
        self.last: tuple[int, int, list[RunTurn], list[RunTurn]] | None = None
        self.claimed: list[tuple[int, ClaimedJob]] = []
        self.said = 0

    def data(self) -> bytes:
        """Something that was never said before."""
        self.said += 1
        return b'{"n":%d}' % self.said

    async def sql(self, statement: str, *args: Any) -> list[Any]:
        return await self.database.fetch(statement, *args)

    def alive(self) -> list[int]:
        return [owner for owner in self.owners if not self.model.workers[owner].ended]

    def owner(self) -> int:
        """Mostly one that lives."""
        return self.chance.choice(self.alive() if self.chance.random() < 0.8 else self.owners)

    def some(self, among: list[Any], most: int = 3) -> list[Any]:
        return self.chance.sample(among, min(len(among), self.chance.randint(0, most)))

    # -- operations -------------------------------------------------------------------------------

    async def register(self) -> None:
        versions = {f"run {kind}": self.chance.choice(["v1", "v2"]) for kind in KINDS}
        card = WorkerCard("here", 1, QUEUES, (), 1, versions)
        owner = await register_worker(self.database, card, lease_seconds=HOUR)
        assert owner == self.model.register(HOUR, versions)
        self.owners.append(owner)

    async def end_worker(self) -> None:
        if len(self.alive()) > 2:
            owner = self.chance.choice(self.owners)
            await self.sql(END_WORKER, owner, "test")
            self.model.end_worker(owner)

    async def lose_worker(self) -> None:
        """A lease lapses."""
        if len(self.alive()) > 2:
            owner = self.chance.choice(self.alive())
            await self.sql("UPDATE tidemill.worker SET lease_until = now() - interval '1 second' WHERE id = $1", owner)
            await self.sql(END_LAPSED, owner, "test")
            self.model.workers[owner].lease_until = SYSTEM_CLOCK.now() - 1.0
            assert self.model.end_lapsed() == [owner]

    async def claim_suspects(self) -> None:
        owner = self.owner()
        level = await self.postgres.least_suspected(KINDS)
        assert level == self.model.least_suspected(KINDS)
        if level:
            rows = await self.postgres.claim(owner, KINDS, [None, None], 2, [None, None], level)
            found = self.model.claim(owner, KINDS, [None, None], 2, [None, None], level)
            assert sorted((row["id"], row["losses"]) for row in rows) == sorted((run.id, run.losses) for run in found)

    async def claim_suspected_jobs(self) -> None:
        worker = self.owner()
        claims = Claims(self.database, self.connection, worker, list(QUEUES))
        jobs = await claims.claim_suspects(QUEUES, [])
        found = []
        if any(job.suspicions and job.state == "ready" for job in self.model.jobs.values()):
            found = [job for job in self.model.claim_jobs(worker, QUEUES, 0, suspects=True) if job.suspicions]
        assert sorted((job.id, job.attempt) for job in jobs) == sorted((job.id, job.attempt) for job in found)
        self.claimed += [(worker, job) for job in found]

    async def free(self) -> None:
        (row,) = await self.sql(FREE_RUNS, ALONE)
        assert row["n"] == self.model.free_runs()

    async def start(self) -> None:
        kind, key = self.chance.choice(KINDS), self.chance.choice([None, None, "k1", "k2", "k3"])
        parents = list(self.model.runs)
        parent = (self.chance.choice(parents), 7) if parents and self.chance.random() < 0.3 else None
        row = {"workflow": kind, "version": self.chance.choice(["v1", "v2"]), "input": self.data(), "key": key}
        number, created = await start_run(self.database, parent=parent, **row)
        if created:
            self.model._last["run"] = number - 1  # A taken key has used up a number there, and none here.
        assert (number, created) == self.model.start(parent=parent, **row)

    async def claim(self) -> None:
        owner, room = self.owner(), self.chance.randint(1, 3)
        versions = [self.chance.choice(["v1", "v2", None]) for _ in KINDS]
        limits = [self.chance.choice([None, None, 1, 2]) for _ in KINDS]
        rows = await self.postgres.claim(owner, KINDS, versions, room, limits)
        found = self.model.claim(owner, KINDS, versions, room, limits)
        seen = sorted((row["id"], row["seq"], row["has_mail"]) for row in rows)
        assert seen == sorted((run.id, run.seq, run.has_mail) for run in found)

    async def find_own(self) -> None:
        owner, held = self.owner(), self.some(list(self.model.runs))
        rows = await self.postgres.find_own(owner, held, 10)
        assert [row["id"] for row in rows] == [run.id for run in self.model.find_own(owner, held, 10)]

    async def commit(self) -> None:
        owner = self.owner()
        if self.chance.random() < 0.9:
            self.turns[owner] = self.turns.get(owner, 0) + 1
        number = max(1, self.turns.get(owner, 0))
        owned = [run.id for run in self.model.runs.values() if run.owner == owner]
        numbers = dict.fromkeys([*self.some(owned), *(self.some(list(self.model.runs), 1))])
        made = [self.turn(run_id) for run_id in numbers]
        if self.chance.random() < 0.2:
            made.append(await self.born())
        if not made:
            return
        for_postgres, for_model = [each[0] for each in made], [each[1] for each in made]
        self.last = (owner, number, for_postgres, for_model)
        await self.write()

    async def again(self) -> None:
        """The answer to the last turn was lost: it is written once more."""
        if self.last is not None:
            await self.write()

    async def write(self) -> None:
        assert self.last is not None
        owner, number, for_postgres, for_model = self.last
        mine = await self.postgres.commit(owner, number, for_postgres)
        assert mine == self.model.commit(owner, number, for_model)

    async def written(self) -> None:
        if self.last is not None:
            owner, number, for_postgres, for_model = self.last
            assert await self.postgres.written(owner, number, for_postgres) == self.model.written(
                owner, number, for_model
            )

    def turn(self, run_id: int) -> tuple[RunTurn, RunTurn]:
        """One run's turn, for PostgreSQL and for the model: they differ in the numbers of inbox rows only."""
        chance, run = self.chance, self.model.runs[run_id]
        before = run.seq if chance.random() < 0.9 else run.seq + chance.choice([-1, 1])
        ticks = [self.data() for _ in range(chance.randint(0, 3))]
        turn = RunTurn(
            run_id, before, before + len(ticks), ticks=ticks, shown=[(before, self.data())] * chance.randint(0, 2)
        )
        names, now = ["t1", "t2", "t3"], SYSTEM_CLOCK.now()
        turn.timers = {name: chance.choice([None, now - HOUR, now + HOUR]) for name in self.some(names)}
        at_work = {job.work for job in self.model.jobs.values() if job.run_id == run_id}
        # A piece of work has one job at a time.
        turn.jobs = [(work, self.job()) for work in self.some([1, 2, 3, 4], 2) if work not in at_work]
        turn.stops = self.some([1, 2, 3, 4], 2)
        turn.asks = [(name, "?", None, None) for name in self.some(["n1", "n2"], 1)]
        turn.answered = [name for name in self.some(["n1", "n2"], 1) if name not in [ask[0] for ask in turn.asks]]
        if chance.random() < 0.3:
            turn.snapshot = self.data()
        if chance.random() < 0.25:
            turn.release, turn.awake = True, chance.random() < 0.3
        elif chance.random() < 0.25:
            turn.state, turn.note = chance.choice(["succeeded", "failed", "needs_attention"]), "so it is"
            turn.result = self.data() if turn.state == "succeeded" else None
            turn.timers, turn.jobs = {}, []
        turn.cleared = chance.random() < 0.1
        used = self.some([row.id for row in self.model.inbox.values() if row.run_id == run_id])
        other = msgspec.structs.replace(turn, used=used)
        turn.used = [self.ids[inbox_id] for inbox_id in used]
        return turn, other

    async def born(self) -> tuple[RunTurn, RunTurn]:
        (number,) = await self.postgres.reserve(1)
        self.model._last["run"] = number
        new = NewRun(self.chance.choice(KINDS), "w", "v1", self.data())
        state = self.chance.choice([None, None, "succeeded"])
        turn = RunTurn(number, 0, 1, ticks=[self.data()], new=new, state=state, jobs=[] if state else [(1, self.job())])
        return turn, msgspec.structs.replace(turn)

    def job(self) -> Any:
        priority = self.chance.choice([5, 7])
        return job_row(NewJob(self.chance.choice(QUEUES), "task", msgspec.Raw(self.data()), priority))

    async def send(self) -> None:
        if self.model.runs:
            run_id, tick = self.chance.choice(list(self.model.runs)), self.data()
            assert bool(await self.sql(SEND, run_id, tick)) == self.model.send(run_id, tick)

    async def wake(self) -> None:
        there, here = await self.postgres.wake(), self.model.wake()
        assert (there is None) == (here is None)

    async def due(self) -> None:
        owner = self.owner()
        taken = self.some(list(self.model.inbox))
        rows = await self.postgres.due(owner, [self.ids[each] for each in taken], 50)
        found = self.model.due(owner, taken, 50)
        assert [row["id"] for row in rows] == sorted(self.ids[row.id] for row in found)

    async def load(self) -> None:
        numbers = self.some(list(self.model.runs))
        snapshots, ticks = await self.postgres.load(numbers)
        there = snapshots, {number: found for number, found in ticks.items() if found}
        snapshots, ticks = self.model.load(numbers)
        assert there == (snapshots, {number: found for number, found in ticks.items() if found})

    async def resume_stopped(self) -> None:
        await self.postgres.resume_stopped(KINDS[:1])
        self.model.resume_stopped(KINDS[:1])

    async def cancel_stopped(self) -> None:
        for run_id in self.some(list(self.model.runs)):
            assert bool(await self.sql(CANCEL_STOPPED, run_id, "enough")) == self.model.cancel_stopped(run_id, "enough")

    async def claim_jobs(self) -> None:
        worker, room = self.owner(), self.chance.randint(1, 2)
        queue = self.chance.choice(QUEUES)
        claims = Claims(self.database, self.connection, worker, [queue])
        jobs = (await claims.turn([], {queue: room}, [], 0.0)).jobs
        found = self.model.claim_jobs(worker, [queue], room)
        assert sorted((job.id, job.attempt, job.cancel_reason) for job in jobs) == sorted(
            (job.id, job.attempt, job.cancel_reason) for job in found
        )
        self.claimed += [(worker, job) for job in found]

    async def finish(self) -> None:
        for worker, job in self.some(self.claimed):
            attempt = job.attempt + self.chance.choice([0, 0, 0, -1])
            state: FinalState = self.chance.choice(["succeeded", "failed", "cancelled"])
            end = Finish(job.id, attempt, state, self.data() if state == "succeeded" else None, note="done")
            there = await finish_jobs(self.database, self.connection, worker, [end])
            assert list(there) == self.model.finish(worker, [end])

    async def requeue(self) -> None:
        for worker, job in self.some(self.claimed):
            suspicions = self.chance.choice([None, None, 0, 1, 2, 3])
            delay = self.chance.choice([0.0, HOUR])
            back = Requeue(job.id, job.attempt, delay, "again", failed=True, suspicions=suspicions)
            there = await requeue_jobs(self.database, self.connection, worker, [back])
            assert list(there) == self.model.requeue(worker, [back])

    async def strays(self) -> None:
        worker, held = self.owner(), self.some([job.id for _, job in self.claimed])
        claims = Claims(self.database, self.connection, worker, list(QUEUES))
        assert sorted(await claims.release_unheld(held)) == sorted(self.model.release_unheld(worker, held))

    async def cancel_unneeded_jobs(self) -> None:
        await self.postgres.cancel_unneeded_jobs()
        self.model.cancel_unwanted()

    # -- comparing --------------------------------------------------------------------------------

    ids: dict[int, int]
    """The number that an inbox row of the model has in PostgreSQL."""

    async def compare(self) -> None:
        now = SYSTEM_CLOCK.now()
        columns = "id, kind, version, owner, seq, turn, awake, state, result, error, note, parent, parent_work"
        columns += ", suspicions, losses"
        # Keys that nobody has asked for begin with OWN_KEY; the model does without.
        more = f"CASE WHEN key NOT LIKE '{OWN_KEY}%' THEN key END, ended_at IS NOT NULL"
        rows = await self.sql(f"SELECT {columns}, {more} FROM tidemill.run ORDER BY id")
        runs = sorted(self.model.runs.values(), key=lambda run: run.id)
        assert [tuple(row) for row in rows] == [
            (*(getattr(run, name) for name in columns.split(", ")), run.key, run.ended_at is not None) for run in runs
        ]
        rows = await self.sql("SELECT run_id, seq, data FROM tidemill.tick ORDER BY 1, 2")
        ticks = sorted(self.model.ticks.items())
        assert [tuple(row) for row in rows] == [
            (run_id, seq, data) for run_id, each in ticks for seq, data in enumerate(each, 1)
        ]
        rows = await self.sql("SELECT run_id, tick, data FROM tidemill.published ORDER BY run_id, seq")
        shown = sorted(self.model.published.items())
        assert [tuple(row) for row in rows] == [(run_id, *one) for run_id, each in shown for one in each]
        rows = await self.sql("SELECT run_id, seq, data FROM tidemill.snapshot ORDER BY 1")
        assert [tuple(row) for row in rows] == [
            (run_id, *snap) for run_id, snap in sorted(self.model.snapshots.items())
        ]
        rows = await self.sql("SELECT run_id, node FROM tidemill.run_input ORDER BY 1, 2")
        assert [tuple(row) for row in rows] == sorted(self.model.inputs)
        await self.compare_inbox(now)
        await self.compare_jobs(now)

    async def compare_inbox(self, now: float) -> None:
        query = "SELECT id, run_id, work, timer, data, extract(epoch FROM due_at)::float8 AS due FROM tidemill.inbox"
        there = {_same(row, row["due"] <= now): row["id"] for row in await self.sql(query)}
        rows = [msgspec.structs.asdict(row) for row in self.model.inbox.values()]
        here = {_same(row, row["due_at"] <= now): row["id"] for row in rows}
        assert sorted(there, key=repr) == sorted(here, key=repr)
        self.ids = {here[each]: there[each] for each in here}

    async def compare_jobs(self, now: float) -> None:
        columns = (
            "id, run_id, work, queue, state, attempt, worker_id, failures, losses, suspicions, cancel_reason, note"
        )
        due = "extract(epoch FROM due_at)::float8"
        rows = await self.sql(f"SELECT {columns}, {due} <= $1 FROM tidemill.job ORDER BY id", now)
        jobs = sorted(self.model.jobs.values(), key=lambda job: job.id)
        names = columns.replace("worker_id", "worker").split(", ")
        assert [tuple(row) for row in rows] == [
            (*(getattr(job, name) for name in names), job.due_at <= now) for job in jobs
        ]
        columns = "id, run_id, work, state, attempt, failures, losses, note, result"
        rows = await self.sql(f"SELECT {columns} FROM tidemill.job_history ORDER BY id")
        ended = sorted(self.model.history.values(), key=lambda job: job.id)
        assert [tuple(row) for row in rows] == [
            tuple(getattr(job, name) for name in columns.split(", ")) for job in ended
        ]


def _same(row: Any, due: bool) -> tuple[Any, ...]:
    """A row of the inbox as it can be compared: without its number and its exact time."""
    data = None if row["data"] is None else msgspec.json.decode(row["data"])
    if data is not None:
        if str(data.get("key")).startswith(OWN_KEY):
            del data["key"]
        said = {name: value for name, value in data.items() if value is not None and name != "at"}
        data = msgspec.json.encode(said, order="sorted")
    return row["run_id"], row["work"], row["timer"], data, due


OPS: list[tuple[Callable[[Both], Any], int]] = [
    (Both.register, 3),
    (Both.end_worker, 2),
    (Both.free, 2),
    (Both.lose_worker, 2),
    (Both.claim_suspects, 4),
    (Both.claim_suspected_jobs, 2),
    (Both.start, 8),
    (Both.claim, 12),
    (Both.find_own, 2),
    (Both.commit, 16),
    (Both.again, 4),
    (Both.written, 3),
    (Both.send, 6),
    (Both.wake, 3),
    (Both.due, 4),
    (Both.load, 2),
    (Both.resume_stopped, 1),
    (Both.cancel_stopped, 2),
    (Both.claim_jobs, 6),
    (Both.finish, 5),
    (Both.requeue, 2),
    (Both.strays, 1),
    (Both.cancel_unneeded_jobs, 2),
]


@pytest.mark.parametrize("seed", seeds(4, 12))
async def test_the_same_operations_leave_the_same_rows(seed: int, database: Database) -> None:
    async with database.acquire() as connection:
        both = Both(database, connection, seed)  # pyright: ignore[reportArgumentType]
        done: list[str] = []
        for operation in (both.register, both.register, both.start, both.start, both.start, both.claim, both.compare):
            await operation()
        for _ in range(OPERATIONS):
            ((operation, _),) = both.chance.choices(OPS, [weight for _, weight in OPS])
            done.append(operation.__name__)
            try:
                await operation(both)
                await both.compare()
            except AssertionError as error:
                error.add_note(f"seed {seed}, after {', '.join(done)}")
                raise
        await both.postgres.close()
        assert sum(map(len, both.model.ticks.values())) > 5, "turns were written"


async def test_a_slow_statement_sees_what_there_was_when_it_began(database: Database) -> None:
    """A run is let go by a statement that has to wait, and meanwhile a job of it ends: it sleeps over the news."""
    async with database.acquire() as connection:
        both = Both(database, connection, 0)  # pyright: ignore[reportArgumentType]
        await both.register()
        await both.compare()
        (owner,) = both.owners
        number, _ = await start_run(database, workflow="a", version="v1", input=b"{}")
        both.model.start(workflow="a", version="v1", input=b"{}")
        await both.postgres.claim(owner, KINDS, [None, None], 1, [None, None])
        both.model.claim(owner, KINDS, [None, None], 1, [None, None])
        first = RunTurn(number, 0, 1, ticks=[b"{}"], jobs=[(1, job_row(NewJob("near", "t", msgspec.Raw(b"{}"))))])
        assert await both.postgres.commit(owner, 1, [first]) == both.model.commit(owner, 1, [first])
        (job,) = both.model.claim_jobs(owner, ["near"], 1)
        await Claims(database, both.connection, owner, ["near"]).turn([], {"near": 1}, [], 0.0)
        release = RunTurn(number, 1, 2, ticks=[b"{}"], release=True)
        view = both.model.read_view()
        async with database.transaction() as holder:
            await holder.execute("SELECT FROM tidemill.run WHERE id = $1 FOR UPDATE", number)
            letting_go = asyncio.create_task(both.postgres.commit(owner, 2, [release]))
            waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%tidemill.run%'"
            async with asyncio.timeout(120):
                while not await database.fetch(waiting):
                    await asyncio.sleep(0.01)
            end = Finish(job.id, job.attempt, "succeeded", b"1")
            await finish_jobs(database, both.connection, owner, [end])
            both.model.finish(owner, [end])
        assert await letting_go == both.model.commit(owner, 2, [release], view)
        await both.compare()
        assert not both.model.runs[number].awake
        await both.wake()
        await both.compare()
        assert both.model.runs[number].awake
        await both.postgres.close()
