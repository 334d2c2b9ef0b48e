"""Runs of dags for tests: an application for real processes, and what can be seen of a run from outside.

The tasks note every execution in the table `deed` and wait at gates, as the workflows of `tests.support.durable` do.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.support.durable import note, pass_gate, running_run_worker
from tests.support.roles import _living, running_maintenance
from tests.support.rows import value
from tests.support.waiting import eventually
from tidemill import App, current_job
from tidemill.dags import Dag, input_node, node, ref
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.engine.roles.role import Role
from tidemill.engine.runs.run_worker import RunWorker
from tidemill.engine.worker.worker import Worker
from tidemill.roles import jobs_role
from tidemill.store.database import Database, Executor

DAG_RUNS = Path(__file__)


def declare(app: App) -> App:
    """Put the tasks into an application."""

    @app.task(retry=app.retry(max_attempts=3, backoff=0.05, cap=0.1, max_losses=50))
    async def deed(tag: str, what: str, gate: str = "", given: Any = None) -> dict:
        """Note that it was done; with a gate, end only when that is open."""
        await note(tag, what)
        if gate:
            await pass_gate(gate)
        return {"what": what, "given": given}

    @app.task(retry=app.retry(max_attempts=3, backoff=0.6, cap=0.6, max_losses=50))
    async def second_try(tag: str, what: str) -> dict:
        """Fails at its first attempt."""
        await note(tag, what)
        if current_job().attempt == 1:
            raise RuntimeError("not the first time")
        return {"what": what, "given": None}

    @app.task(queue="deadly", retry=app.retry(max_attempts=3, max_losses=2, backoff=0.01, cap=0.01))
    async def deadly(tag: str) -> None:
        """Kills its worker, every time."""
        await note(tag, "deadly")
        os.kill(os.getpid(), signal.SIGKILL)

    @app.task(queue="threads")
    def stubborn(path: str) -> str:
        """A thread that takes no notice of anything until a file is there."""
        Path(f"{path}.began").touch()
        while not Path(path).exists():
            for _ in range(1000):
                pass
        return "done anyway"

    return app


# -- dags -----------------------------------------------------------------------------------------


def wide(name: str = "wide", *, arms: int = 6) -> Dag:
    """One, then many, then as many, each after its own, then one: 3 * arms + 2 nodes."""
    return Dag(
        name,
        nodes=[
            node("first", "deed", args={"tag": ref("run.tag"), "what": "first"}),
            *(
                node(f"{level}{arm}", "deed", args={"tag": ref("run.tag"), "what": f"{level}{arm}"}, deps=[before])
                for arm in range(arms)
                for level, before in (("a", "first"), ("b", f"a{arm}"), ("c", f"b{arm}"))
            ),
            node(
                "last",
                "deed",
                args={"tag": ref("run.tag"), "what": "last", "given": [ref(f"c{arm}.what") for arm in range(arms)]},
            ),
        ],
        result=ref("last.given"),
    )


def tour() -> Dag:
    """Every phase that a run can be in: at work, fanning out, asking, about to retry, in the midst of a map."""

    def deed(name: str, **more: Any) -> Any:
        args = {"tag": ref("run.tag"), "what": name, **more.pop("args", {})}
        return node(name, more.pop("task", "deed"), args=args, **more)

    return Dag(
        "tour",
        nodes=[
            deed("work", args={"gate": ref("run.gate")}),
            deed("left", deps=["work"]),
            deed("right", deps=["work"]),
            input_node("ask", prompt="Go on with {{$.run.tag}}?", deps=["left", "right"]),
            deed("again", task="second_try", deps=["ask"]),
            deed(
                "items",
                map=[0, 1, 2],
                max_concurrency=1,
                args={"what": {"$template": "item {{$.item}}"}},
                deps=["again"],
            ),
            deed("end", args={"given": ref("ask")}, deps=["items"]),
        ],
        result=ref("end.given"),
    )


TOUR = Counter(
    ["work", "left", "right", "again", "again", "item 0", "item 1", "item 2", "end"],
)


app = declare(App("test"))


# -- for tests ------------------------------------------------------------------------------------


class Running:
    """What runs while a block lasts."""

    def __init__(self, run_worker: Role[RunWorker], worker: Role[Worker]) -> None:
        self.run_worker = run_worker
        self.worker = worker


@asynccontextmanager
async def running_worker_of(app: App, *queues: str, max_concurrency: int | None = None) -> AsyncIterator[Role[Worker]]:
    """A worker as the application makes it, with the parts of its host."""
    database = app.database(label="test worker")
    worker = jobs_role(app.declarations, queues or None, max_concurrency=max_concurrency, database=database)
    try:
        async with _living(worker):
            yield worker
    finally:
        await database.close()


@asynccontextmanager
async def running_dags(
    app: App, *queues: str, max_concurrency: int | None = None, **run_worker: Any
) -> AsyncIterator[Running]:
    """Everything that runs of dags need: maintenance, a run worker and a worker, in this process."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_maintenance(app))
        worker = await stack.enter_async_context(running_worker_of(app, *queues, max_concurrency=max_concurrency))
        yield Running(await stack.enter_async_context(running_run_worker(app, **run_worker)), worker)


async def statuses(run: DagHandle) -> dict[str, str]:
    """Where every node is."""
    return {row.node: row.status for row in await run.tree()}


async def reaches(run: DagHandle, **wanted: str) -> dict[str, str]:
    """Wait until these nodes are there."""

    async def there() -> dict[str, str] | None:
        found = await statuses(run)
        return found if wanted.items() <= found.items() else None

    return await eventually(there, what=f"{run} reaches {wanted}")


async def one_success_each(database: Database, run: DagHandle) -> dict[int, str]:
    """The works of a run that ended well, and in which task; asserts that each did once, in the history and the run."""
    rows = await database.fetch(
        "SELECT work, task, options::json ->> 'node' AS node FROM tidemill.job_history"
        " WHERE run_id = $1 AND state = 'succeeded'",
        run.id,
    )
    works = [row["work"] for row in rows]
    assert len(works) == len(set(works)), f"{run}: a node was dispatched or counted twice: {sorted(works)}"
    ticks = await database.fetch("SELECT data FROM tidemill.tick WHERE run_id = $1", run.id)
    ended = [work for tick in ticks if (work := _completed(tick["data"])) is not None]
    assert len(ended) == len(set(ended)), f"{run}: the journal has an end twice: {sorted(ended)}"
    return {row["work"]: row["node"] for row in rows}


def _completed(data: bytes) -> int | None:
    tick: Mapping[str, Any] = msgspec.json.decode(data)
    return tick["work"] if tick["type"] == "completed" else None


async def owner_of(database: Database, run: DagHandle) -> int | None:
    return await value(database, "SELECT owner FROM tidemill.run WHERE id = $1", run.id)


async def is_asleep(database: Database, run: DagHandle) -> bool:
    """Whether nobody owns the run and nothing is to be done for it."""
    return await value(
        database, "SELECT owner IS NULL AND NOT awake AND seq > 0 FROM tidemill.run WHERE id = $1", run.id
    )


async def nothing_left(database: Database) -> bool:
    """Whether no job, question or message of any run is left anywhere."""
    return await value(
        database,
        "SELECT NOT EXISTS (SELECT FROM tidemill.job) AND NOT EXISTS (SELECT FROM tidemill.inbox)"
        " AND NOT EXISTS (SELECT FROM tidemill.run_input)",
    )


async def is_blocked(database: Database, who: str) -> bool:
    """Whether a statement of an application whose name has this in it waits for a lock."""
    return await value(
        database,
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE $1"
        " AND datname = current_database()",
        f"%{who}%",
    )


@asynccontextmanager
async def held_up(database: Database, run: DagHandle) -> AsyncIterator[Executor]:
    """While the block lasts, the owner of a run cannot write about it."""
    async with database.transaction(patience=30.0) as connection:
        await connection.execute("SELECT FROM tidemill.run WHERE id = $1 FOR UPDATE", run.id)
        yield connection
