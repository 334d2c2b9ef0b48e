"""Runs, nodes and schedules are explained from where they came from to what they led to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from tidemill import App
from tidemill.core.errors import NotFoundError
from tidemill.dags import Dag, node
from tidemill.flows import Context, StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor, absent
from tidemill.ops.explain import ExplainObject, Explanation, explain
from tidemill.ops.jobs.workers import ControlWorkers, control_workers
from tidemill.pipelines import Entity, Pipeline
from tidemill.sources import LogSource
from tidemill.streams import Stream


class Nothing:
    def on_event(self, state: object, event: object) -> None: ...


async def explained(app: App, id: str) -> Explanation:
    return await app.do(explain, ExplainObject(id=id, forward=True))


async def test_a_job_that_waits_for_a_busy_worker_says_so(app: App) -> None:
    @app.task
    async def hold() -> None:
        await asyncio.Event().wait()

    async with app.running(max_concurrency=1):
        for _ in range(2):
            await app.enqueue(hold.call())

        async def says_so() -> bool:
            return (await explained(app, "2")).why[-1] == "The worker that can claim it runs as many jobs as it may."

        await eventually(says_so)
        await app.jobs.cancel(1, 2)


async def test_a_run_says_who_started_it_and_is_followed_by_the_jobs_of_its_steps(app: App) -> None:
    @app.task
    async def send(to: str) -> str:
        return to

    @app.workflow
    class Publish(Workflow):
        @step
        async def publish(self, ev: StartEvent) -> StopEvent:
            job = await app.enqueue(send.call(to="ada"))
            await job
            return StopEvent(result=1)

    async with app.running():
        run = await app.start(Publish)
        assert await run == 1

    found = await explained(app, f"r{run.id}")
    assert found.why[0].startswith(f"Started by app {app.name} on ")
    assert found.why[1].startswith("It succeeded after ")
    (job,) = found.followed
    assert job.what == "job send"
    back = await explained(app, job.id)
    assert [each.id for each in back.because] == [f"r{run.id}", ""]
    assert back.why[0].startswith(f"Enqueued by run r{run.id} on ")


async def test_a_child_run_is_among_what_followed_from_its_parent_once(app: App) -> None:
    @app.workflow
    class Leaf(Workflow):
        @step
        async def leaf(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result=1)

    @app.workflow
    class Tree(Workflow):
        @step
        async def grow(self, ctx: Context, ev: StartEvent) -> StopEvent:
            return StopEvent(result=await ctx.child(Leaf))

    async with app.running():
        run = await app.start(Tree)
        assert await run == 1
    assert [each.what for each in (await explained(app, f"r{run.id}")).followed] == ["run Leaf"]


async def test_a_node_that_has_ended_says_how_long_it_took_and_where_its_jobs_are(app: App) -> None:
    @app.task
    async def pack() -> str:
        return "packed"

    app.dag(Dag("order", nodes=[node("pack", "pack")]))
    async with app.running():
        run = await app.start("order")
        await run

    done, took = (await explained(app, f"r{run.id}/pack")).why
    assert done == "'pack' is done"
    assert took.startswith("It took ")
    assert took.endswith(f"; `tidemill jobs --run r{run.id}` lists the jobs of its run.")


async def test_a_run_that_has_not_begun_says_when_it_expires(app: App) -> None:
    app.dag(Dag("order", nodes=[node("pack", "pack")]))
    async with app:
        run = await app.start("order", delay="2h", deadline="1h")
        said = (await explained(app, f"r{run.id}")).why
    assert said[-1].startswith("It expires if it has not started by ")


async def test_a_run_says_what_its_job_waits_for(app: App) -> None:
    @app.task(queue="far")
    async def pack() -> str:
        return "packed"

    app.dag(Dag("order", nodes=[node("pack", "pack")]))
    async with app.running(queues=["near"]):
        run = await app.start("order")
        job = (await eventually(lambda: has_followers(app, f"r{run.id}"))).followed[0]
        said = (await explained(app, f"r{run.id}")).why[-1]
    assert said.startswith(f"Its job {job.id} (pack) waits: It is next in queue far. No worker serves queue far")


async def has_followers(app: App, id: str) -> Explanation | None:
    found = await explained(app, id)
    return found if found.followed else None


async def test_a_job_whose_queue_is_paused_for_all_hosts_but_one_names_the_pause_and_its_end(app: App) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    async with app:
        job = await app.enqueue(send)
        await app.do(control_workers, ControlWorkers(host="*", queue="mail", mode="pause"), by="ann")
        await app.do(control_workers, ControlWorkers(host="near", queue="mail", mode="run"), by="ann")
        said = [each for each in (await explained(app, str(job.id))).why if "operator" in each]
    assert said == [
        "An operator has paused queue mail: pause by ann on every host. Resume: `tidemill workers resume '*' mail`."
    ]


async def test_a_schedule_is_explained_by_its_name(app: App) -> None:
    @app.task(cron="0 8 * * 1", timezone="Europe/Paris")
    async def remind() -> None: ...

    async with app.running():
        found = await eventually(lambda: explained(app, "remind"))
    assert (found.kind, found.state) == ("schedule", "active")
    assert found.why[0] == "It enqueues task remind on queue default at 08:00 on Monday (Europe/Paris)."
    with pytest.raises(NotFoundError, match="'remindd' is not an id of anything: a job is 7"):
        await explained(app, "remindd")


async def test_a_name_that_is_not_an_id_says_what_of_it_can_be_explained(app: App, tmp_path: Path) -> None:
    """Also in an application with one pipeline, to which every other text belongs."""
    blog = Pipeline("blog", root=tmp_path)

    @blog.stage(input="day/{date}.txt", output="page/{date}.html")
    def page(entity: Entity, text: str) -> str:
        return text

    @app.task
    async def send() -> None: ...

    @app.workflow
    class Publish(Workflow):
        @step
        async def publish(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result=1)

    app.dag(Dag("nightly", nodes=[node("send", "send")]))
    app.stream(Stream("letters", plans=[], sources=[LogSource("letters")]))
    app.monitor(
        Monitor("ships", source=LogSource("log"), entity=str, fold=Nothing, triggers=[absent("gone", after="5m")])
    )
    app.pipeline(blog)
    for name, said in {
        "send": "'send' is a task: explain one of its jobs, which `tidemill jobs --task send` lists",
        "Publish": "'Publish' is a flow: explain one of its runs",
        "nightly": "'nightly' is a dag: explain one of its runs",
        "letters": "'letters' is a stream: .* a message is letters/SOURCE:POSITION",
        "ships": "'ships' is a monitor: .* explain ships/TRIGGER/ENTITY",
        "gone": "'gone' is a trigger: explain ships/gone/ENTITY",
        "Publsh": "; did you mean 'Publish'",
    }.items():
        with pytest.raises(NotFoundError, match=said):
            await explained(app, name)
    found = await explained(app, "blog")
    assert (found.state, found.why[0]) == (
        "not_running",
        f"It has no states: nothing in {tmp_path} matches day/{{date}}.txt.",
    )
