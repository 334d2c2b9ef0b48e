"""The priority of a run decides what is driven first, and a run that has not begun at its deadline expires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support import eventually, running_maintenance
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.dags import Dag, node
from tidemill.dags.errors import DagRunError
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.errors import WorkflowTimeoutError
from tidemill.store.database import Database
from tidemill.store.jobs.workers import WorkerCard, register_worker
from tidemill.store.runs.claims import claim_runs


class Answered(Event):
    text: str = ""


class Short(Workflow):
    @step
    async def only(self, ctx: Context, ev: StartEvent) -> Answered:
        return Answered()

    @step(queue="heavy")
    async def elsewhere(self, ev: Answered) -> StopEvent:
        return StopEvent(result="done")


@pytest.fixture
def shop(app: App) -> App:
    @app.task(queue="mail", priority=3)
    async def send(n: int = 0) -> None: ...

    app.workflow(Short)
    app.dag(Dag("order", [node("first", "send"), node("own", "send", priority=1)]))
    return app


async def test_of_the_runs_that_wait_the_most_urgent_are_claimed_first(shop: App, database: Database) -> None:
    usual = [await shop.start(Short) for _ in range(2)]
    idle = await shop.start(Short, priority=1)
    urgent = [await shop.start(Short, priority=9) for _ in range(2)]
    expired = await shop.start(Short, priority=9, deadline=0.001)
    version = shop.runs.flows["Short"].version
    owner = await register_worker(database, WorkerCard("h", 1, (), (), 1, {}), lease_seconds=60)
    order: list[int] = []
    while rows := await claim_runs(database, owner, ["Short"], [version], 1, [None]):
        order += [row["id"] for row in rows]
    assert order == [run.id for run in (*urgent, *usual, idle)]
    assert expired.id not in order


async def test_the_jobs_of_a_run_have_its_priority_unless_they_have_their_own(shop: App, database: Database) -> None:
    async with shop.running(queues=["none"]):
        await shop.start("order", priority=8)
        await shop.start(Short, priority=7)
        await shop.start("order")
        found = await eventually(lambda: five_jobs(database))
    assert found == [("mail", 1), ("mail", 1), ("mail", 3), ("heavy", 7), ("mail", 8)]


async def five_jobs(database: Database) -> list[tuple[str, int]] | None:
    rows = await database.fetch("SELECT queue, priority FROM tidemill.job ORDER BY priority, queue")
    return [(row["queue"], row["priority"]) for row in rows] if len(rows) == 5 else None


async def test_a_run_that_has_not_begun_at_its_deadline_expires(shop: App, database: Database) -> None:
    flow = await shop.start(Short, deadline=0.01)
    dag = await shop.start("order", deadline=datetime.now(UTC) - timedelta(seconds=1), delay="1h")
    kept = await shop.start(Short, deadline="1h")
    async with running_maintenance(shop):
        with pytest.raises(WorkflowTimeoutError, match="its deadline passed before it began"):
            await flow.result(timeout=60)
        with pytest.raises(DagRunError, match="its deadline passed before it began"):
            await dag.result(timeout=60)
    assert await flow.state() == await dag.state() == "expired"
    assert await kept.state() == "running"
    assert [row.label for row in await dag.tree()]
    async with shop.running():
        assert await kept.result(timeout=60) == "done"


async def test_wrong_priorities_and_options_of_jobs_are_errors(shop: App) -> None:
    for wrong in (10, -1, True, "high"):
        with pytest.raises(ConfigError, match="outside 0 to 9"):
            await shop.start(Short, priority=wrong)
    with pytest.raises(ConfigError, match="has no option 'fair_key', which jobs have: runs do not wait in queues"):
        await shop.start(Short, fair_key="a")
    with pytest.raises(ConfigError, match="start has no option 'queue'"):
        await shop.start("order", queue="a")
