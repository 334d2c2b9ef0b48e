"""A check of the next version against schedules and dags: what is stored for runs, made by people, or not begun yet."""

from __future__ import annotations

from typing import Any

from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.dags import Dag, input_node, node
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.ops.admin.deploy import DeployCheck, check_deploy
from tidemill.ops.jobs.schedules import PutSchedule, put_schedule
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Nothing
from tidemill.store.database import Database
from tidemill.store.jobs.schedules.schedules import declare_schedules


class Digest(Workflow):
    @step
    async def only(self, ev: StartEvent) -> StopEvent:
        return StopEvent()


async def load(day: str) -> None: ...


async def load_into(day: str, table: str) -> None: ...


def version(database_url: str, task: Any = load, flow: type[Workflow] | None = Digest) -> App:
    """A version of an application with one task and a dag of it, and perhaps a workflow."""
    app = App("test", database_url=database_url)
    app.task(name="load")(task)
    if flow is not None:
        app.workflow(flow)
    return app


def nightly(prompt: str = "Now?") -> Dag[Any]:
    return Dag(
        "nightly", [input_node("ask", prompt=prompt), node("load", "load", args={"day": "monday"}, deps=["ask"])]
    )


def at(database: Database, app: App) -> Local:
    return Local(database, Caller("ann", "admin"), app.declarations)


async def checked(database: Database, app: App) -> DeployCheck:
    return await at(database, app).do(check_deploy, Nothing())


async def test_schedules_of_runs_are_compared_by_what_they_start(database: Database, database_url: str) -> None:
    def scheduled(topic: str, prompt: str) -> App:
        app = version(database_url)
        app.schedule("digest", Digest, StartEvent(topic=topic), every="1h")
        app.schedule("night", app.dag(nightly(prompt)), cron="0 3 * * *")
        return app

    first = scheduled("tides", "Now?")
    await declare_schedules(database, first.declarations.stored_schedules())
    assert (await checked(database, first)).schedules == []
    changes = (await checked(database, scheduled("moons", "Really?"))).schedules
    assert [(each.name, each.change) for each in changes] == [
        ("digest", "starts another run"),
        ("night", "starts another run"),
    ]


async def test_a_schedule_that_a_person_has_made_stays_and_breaks_if_it_could_not_be_fired(
    database: Database, database_url: str
) -> None:
    first = version(database_url)
    first.dag(nightly())
    for name, start, args in (("a", "load", {"day": "monday"}), ("b", "Digest", {}), ("c", "nightly", {})):
        await at(database, first).do(put_schedule, PutSchedule(name=name, start=start, args=args, every="1h"))
    found = await checked(database, first)
    assert (found.schedules, found.breaks) == ([], False)
    found = await checked(database, version(database_url, load_into, flow=None))
    assert found.breaks
    assert [(each.name, each.breaks) for each in found.schedules] == [("a", True), ("b", True), ("c", True)]
    by_task, by_flow, by_dag = (each.change for each in found.schedules)
    assert "the argument 'table' is missing" in by_task
    assert by_flow == "could not be fired: the application has no workflow Digest"
    assert "node load: task load needs the argument 'table', which the node does not give" in by_dag


async def test_a_run_of_a_dag_does_not_fit_if_a_task_needs_more_than_its_node_gives(
    database: Database, database_url: str
) -> None:
    async with version(database_url) as first:
        run = await first.start(first.dag(nightly()))
        assert (await checked(database, first)).stuck == []
    (stuck,) = (await checked(database, version(database_url, load_into))).stuck
    assert (stuck.ids, stuck.why) == (
        [run.id],
        "node load: task load needs the argument 'table', which the node does not give",
    )
