"""Every public call of an application meets a cut connection with an error of ours, or does not notice it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.support.wire import Wire
from tidemill import App, BatchHandle, TidemillError
from tidemill.core.errors import ConnectionLostError
from tidemill.dags import Dag, input_node
from tidemill.dags.reducer.events import Submission
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.engine.jobs.job_handle import JobHandle
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.jobs import Jobs
from tidemill.ops.jobs.jobs import ListJobs, list_jobs
from tidemill.ops.jobs.queues import QueueRef, pause_queue
from tidemill.runs import Runs
from tidemill.streaming import Streams

#: How long a call waits for what never comes: an end, or an answer.
SHORT = 0.3
MOST_MESSAGES = 40
#: How many applications make calls beside each other, each on a wire of its own.
AT_ONCE = 8

Calls = dict[str, Callable[[], Awaitable[Any]]]


class Word(Event):
    text: str


class Waits(Workflow):
    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        return StopEvent(result=(await ctx.wait_for_event(Word, timeout=None)).text)


class Cut:
    """An application whose wire to the database is cut after any message."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.app = App("test", database_url=wire.url)
        self.app.workflow(Waits, timeout=None)
        self.dag = self.app.dag(Dag("asks", [input_node("answer", prompt="?")]))

        @self.app.task
        async def work(n: int = 0) -> int:
            return n

        self.work = work

    async def calls(self) -> Calls:
        """Every public call that reaches the database, by its name."""
        app, work = self.app, self.work
        job = await app.enqueue(work.call(n=1))
        run = await app.start(Waits)
        dag = await app.start(self.dag)
        batch = await app.batch([work.call(n=1)], keep_open=True)
        jobs, runs, streams = app.jobs, app.runs, app.streams
        return {
            "App.enqueue": lambda: app.enqueue(work.call(n=2)),
            "App.enqueue_sync": lambda: asyncio.to_thread(app.enqueue_sync, work.call(n=2)),
            "App.enqueue_many": lambda: app.enqueue_many([work.call(n=n) for n in range(3)]),
            "App.wait": lambda: app.wait(job, timeout=SHORT),
            "App.wait_sync": lambda: asyncio.to_thread(app.wait_sync, job, timeout=SHORT),
            "App.start": lambda: app.start(Waits),
            "App.start_sync": lambda: asyncio.to_thread(app.start_sync, Waits),
            "App.submit": lambda: app.submit(dag, "answer", 1),
            "App.submit_sync": lambda: asyncio.to_thread(app.submit_sync, dag, "answer", 1),
            "App.publish": lambda: app.publish("news", {"n": 1}),
            "App.publish_sync": lambda: asyncio.to_thread(app.publish_sync, "news", {"n": 1}),
            "App.do": lambda: app.do(list_jobs, ListJobs()),
            "App.do (a change)": lambda: app.do(pause_queue, QueueRef(name="default")),
            "Jobs.enqueue": lambda: jobs.enqueue(work.call(), unique_key="k"),
            "Jobs.enqueue_sync": lambda: asyncio.to_thread(jobs.enqueue_sync, work.call()),
            "Jobs.enqueue_many": lambda: jobs.enqueue_many([work.call()]),
            "Jobs.enqueue_many_sync": lambda: asyncio.to_thread(jobs.enqueue_many_sync, [work.call()]),
            "Jobs.get": lambda: jobs.get(job),
            "Jobs.wait": lambda: jobs.wait(job, timeout=SHORT),
            "Jobs.cancel": lambda: jobs.cancel(job),
            "App.batch": lambda: app.batch([work.call(n=n) for n in range(3)]),
            "Jobs.batch": lambda: jobs.batch([work.call()]),
            "Jobs.batch_sync": lambda: asyncio.to_thread(jobs.batch_sync, [work.call()]),
            "BatchHandle.view": batch.view,
            "BatchHandle.wait": lambda: batch.wait(timeout=SHORT),
            "BatchHandle.results": lambda: batch.results(timeout=SHORT),
            "BatchHandle.add": lambda: batch.add([work.call()]),
            "BatchHandle.close": batch.close,
            "BatchHandle.cancel": batch.cancel,
            "JobHandle.result": lambda: job.result(timeout=SHORT),
            "JobHandle.wait": lambda: job.wait(timeout=SHORT),
            "JobHandle.view": job.view,
            "Runs.start": lambda: runs.start(Waits, None, None, {}),
            "Runs.start (a dag)": lambda: runs.start(self.dag, None, None, {"unique_key": "k"}),
            "Runs.start_sync": lambda: asyncio.to_thread(runs.start_sync, Waits, None, None, {}),
            "Runs.get": lambda: runs.get(run.id),
            "Runs.wait": lambda: runs.wait(run.id, timeout=SHORT),
            "Runs.ask": lambda: runs.ask("asked", [], "work", {}, None, "asked"),
            "Runs.fork": lambda: runs.fork(run, at=1),
            "RunHandle.result": lambda: run.result(timeout=SHORT),
            "RunHandle.state": run.state,
            "RunHandle.send_event": lambda: run.send_event(Word(text="a")),
            "RunHandle.send_event_sync": lambda: asyncio.to_thread(run.send_event_sync, Word(text="a")),
            "RunHandle.ask": lambda: run.ask(Word(text="a"), timeout=SHORT),
            "RunHandle.stream_events": lambda: asyncio.wait_for(anext(run.stream_events()), SHORT * 3),
            "RunHandle.cancel": run.cancel,
            "DagHandle.result": lambda: dag.result(timeout=SHORT),
            "DagHandle.state": dag.state,
            "DagHandle.load": dag.load,
            "DagHandle.tree": dag.tree,
            "DagHandle.explain": lambda: dag.explain("answer"),
            "DagHandle.inputs": dag.inputs,
            "DagHandle.answer": lambda: dag.answer(Submission("answer", 1, "test", "k")),
            "DagHandle.submit": lambda: dag.submit("answer", 1, by="test"),
            "DagHandle.rerun": dag.rerun,
            "DagHandle.cancel_node": lambda: dag.cancel_node("answer"),
            "DagHandle.cancel": dag.cancel,
            "Streams.publish": lambda: streams.publish("news", {"n": 1}),
            "Streams.publish_sync": lambda: asyncio.to_thread(streams.publish_sync, "news", {"n": 1}),
            "Streams.publish_many_sync": lambda: asyncio.to_thread(streams.publish_many_sync, "news", [{"n": 1}]),
            "Streams.publish_many": lambda: streams.publish_many("news", [{"n": n} for n in range(5)]),
        }

    async def ends(self, call: Callable[[], Awaitable[Any]], after: int) -> tuple[bool, BaseException | None]:
        """Cut all connections after so many messages of a call; whether it came to that, and the error of the call."""
        heard = 0

        def cut() -> None:
            nonlocal heard
            heard += 1
            if heard == after:
                self.wire.cut()

        self.wire.heard = cut
        try:
            async with asyncio.timeout(SHORT * 20):
                await call()
        except Exception as error:  # noqa: BLE001 - any error is what this test is about
            return heard >= after, error
        finally:
            self.wire.heard = None
        return heard >= after, None

    async def strange_errors(self, names: Collection[str]) -> dict[str, BaseException]:
        """The errors of these calls that are not ours, by where their connections were cut."""
        calls = await self.calls()
        found: dict[str, BaseException] = {}
        for name in names:
            for after in range(1, MOST_MESSAGES):
                was_cut, error = await self.ends(calls[name], after)
                if error is not None and not isinstance(error, TidemillError | TimeoutError):
                    found[f"{name}, cut after message {after}"] = error
                if not was_cut:
                    break
        return found


@asynccontextmanager
async def cutting(database_url: str) -> AsyncIterator[Cut]:
    async with Wire(database_url).open() as wire:
        made = Cut(wire)
        yield made
        await made.app.close()
        await asyncio.to_thread(made.app.close_sync)


@pytest.fixture
async def cut(database_url: str) -> AsyncIterator[Cut]:
    async with cutting(database_url) as made:
        yield made


#: Calls that reach no database, or are what others are made of.
NO_CALLS = {
    *("App.close", "App.running", "App.atomic_sync", "Runs.find_dag", "Runs.new_run"),
    *(
        "Jobs.opened",
        "Jobs.store_batch",
        "Jobs.add_to_batch",
        "Jobs.close_batch",
        "Jobs.cancel_batch",
    ),
}


async def test_every_public_call_raises_errors_of_ours_wherever_its_connection_is_cut(
    cut: Cut, database_url: str
) -> None:
    calls = await cut.calls()
    public = {
        f"{kind.__name__}.{name}"
        for kind in (App, Jobs, JobHandle, BatchHandle, Runs, RunHandle, DagHandle, Streams)
        for name, found in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
        and (inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found) or name.endswith("_sync"))
    } - {"App.close_sync"}
    assert public - NO_CALLS - set(calls) == set(), "a public call that this test does not make"
    async with AsyncExitStack() as stack:  # Most of the time they wait.
        others = [await stack.enter_async_context(cutting(database_url)) for _ in range(AT_ONCE - 1)]
        shares = [list(calls)[number::AT_ONCE] for number in range(AT_ONCE)]
        found = await asyncio.gather(
            *(each.strange_errors(share) for each, share in zip([cut, *others], shares, strict=True))
        )
    strange = {where: error for each in found for where, error in each.items()}
    assert not strange, "\n".join(f"{where}: {error!r}" for where, error in strange.items())


async def test_what_was_lost_is_told_with_what_to_do_next(cut: Cut) -> None:
    cut.wire.cut_after("event_log", then="COMMIT")  # No statement is prepared yet, so that its text is sent.
    with pytest.raises(ConnectionLostError, match="may or may not be there; look, or repeat it with a unique_key"):
        await cut.app.streams.publish_many("news", [{"n": 1}])
    await cut.app.streams.publish_many("news", [{"n": 2}])


async def test_what_the_database_cannot_store_is_an_error_of_ours(app: App) -> None:
    @app.task
    async def work() -> None: ...

    for tags in (["a\0b"], ["\ud800"]):
        with pytest.raises(TidemillError):
            await app.enqueue(work.call(), tags=tags)
        with pytest.raises(TidemillError):
            await app.enqueue_many([work.call()], tags=tags)
    with pytest.raises(TidemillError):
        await app.streams.publish("a\0b", 1)
    with pytest.raises(TidemillError):
        await app.streams.publish("news", 1, key="\ud800")
