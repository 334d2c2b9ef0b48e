"""An application as a strict type checker must accept it: declarations, and every way to start work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import msgspec
import pydantic

from tidemill import INJECTED, App, Batch, BatchHandle, Call, Invocation, JobHandle, JobView, RetryPolicy, Task
from tidemill.dags import Dag, DagHandle, node, ref
from tidemill.flows import Context, RunHandle, StartEvent, StopEvent, Workflow, WorkflowHandler, step
from tidemill.sources import KafkaSource, PostgresSource
from tidemill.streams import Context as MessageContext

app = App("shop", database_url="postgresql://db/shop", lease_seconds="20s", max_concurrency=4, log_level="info")


class Receipt(msgspec.Struct):
    """What a job returns."""

    order_id: int
    cents: int


@app.task
async def send_receipt(order_id: int, copy_to: str | None = None) -> Receipt:
    """An async task without options."""
    return Receipt(order_id, 1)


@app.task(queue="files", retry=app.retry(5, backoff="10s"), budget=timedelta(minutes=2))
def count_rows(path: str) -> int:
    """A plain task with options."""
    return len(path)


@app.task(queue="models", batch=Batch(100, "1s"))
async def measure(texts: list[str]) -> list[int]:
    """A task that takes many jobs in one call."""
    return [len(text) for text in texts]


@app.task(every="1h", overlap="skip", jitter="1m")
async def refresh() -> None:
    """A task with a schedule."""


class Topic(StartEvent):
    """A start event with a field."""

    topic: str


class Notes(pydantic.BaseModel):
    """The state of a workflow."""

    lines: list[str] = []


@app.workflow(timeout=None)
class Article(Workflow[Topic, str]):
    """A workflow with its start event and its result."""

    @step(retry_policy=app.retry(3))
    async def write(self, ctx: Context, ev: Topic) -> StopEvent:
        """A step whose context has no declared state."""
        await ctx.store.set("topic", ev.topic)
        return StopEvent(result=await ctx.child(Summary, text=ev.topic))


@app.workflow
class Summary(Workflow[StartEvent, str]):
    """A workflow with a bare start event."""

    @step
    async def write(self, ctx: Context[Notes], ev: StartEvent) -> StopEvent:
        """A step whose context has a declared state."""
        async with ctx.store.edit_state() as notes:
            notes.lines.append("written")
        return StopEvent(result="short")


@app.workflow
class Untyped(Workflow):
    """A workflow that says nothing of its types."""

    @step
    async def write(self, ev: StartEvent) -> StopEvent:
        """A step."""
        return StopEvent(result=1)


@dataclass
class Nightly:
    """The arguments of a dag's runs."""

    day: str


nightly = app.dag(Dag("nightly", [node("count", "count_rows", args={"path": ref("$.run.day")})], args=Nightly))
loose = Dag("loose", [node("count", "count_rows", args={"path": ref("$.run.day")})])

app.schedule("night", count_rows.call(path="all.csv"), cron="0 3 * * *", timezone="Europe/Paris")
app.schedule("nightly", nightly, Nightly(day="monday"), every="1d", overlap="queue")
app.schedule("loosely", loose, {"day": "monday"}, every="1d")
app.schedule("article", Article, Topic(topic="tides"), every="1h", catchup="skip")
app.schedule("untyped", Untyped, every="1h")
kafka = KafkaSource("posts", bootstrap="broker:9092", max_qps=10)
table = PostgresSource("events", id="number", time=["at", "created"])
policy: RetryPolicy = app.retry(5)


async def jobs(conn: Any, orders: list[int]) -> None:
    """Enqueue jobs, and wait for them."""
    job = await app.enqueue(send_receipt.call(order_id=7), delay="10m", priority=9, conn=conn)
    assert_type(job, JobHandle[Receipt])
    assert_type(await job, Receipt)
    assert_type(await job.result(timeout="20s"), Receipt)
    assert_type(await app.wait(job), JobView)
    assert_type(app.enqueue_sync(count_rows.call("a.csv"), at=datetime.now(UTC), tags=["x"]), JobHandle[int])
    assert_type(await app.enqueue(send_receipt, 7, copy_to="a@b.c"), JobHandle[Receipt])
    assert_type(await app.enqueue(count_rows, path="a.csv"), JobHandle[int])
    many = await app.enqueue_many((send_receipt.call(each) for each in orders), priority=9)
    assert_type(many, list[JobHandle[Receipt]])
    assert_type(await app.enqueue(measure.call("tide")), JobHandle[int])
    batch = await app.batch((send_receipt.call(n) for n in range(3)), on_success=count_rows.call("a.csv"), priority=3)
    assert_type(batch, BatchHandle[Receipt])
    assert_type(await batch.results(), list[Receipt])
    assert_type(await app.enqueue("by_name", order_id=7, delay="10m"), JobHandle[Any])
    await app.enqueue(send_receipt.call(7), unique_key="7", unique_for="1h", concurrency_key="k", max_concurrency=3)
    call = count_rows.call("a.csv")
    assert_type(call, Call[int])
    await app.jobs.cancel(await app.jobs.enqueue(call, queue="slow", deadline=timedelta(hours=1)), 12)
    assert_type(count_rows("a.csv"), int)
    assert_type(await send_receipt(7), Receipt)
    in_place: Coroutine[Any, Any, Receipt] = send_receipt(7)
    in_place.close()
    assert_type(refresh.call(), Call[None])


async def runs() -> None:
    """Start runs of workflows and dags."""
    run = await app.start(Article, Topic(topic="tides"), unique_key="tides")
    assert_type(run, RunHandle[str])
    assert_type(await run, str)
    assert_type(await run.result(timeout=10), str)
    assert_type(await app.start(Article, topic="tides"), RunHandle[str])
    assert_type(await app.start(Summary, StartEvent(text="any field")), RunHandle[str])
    assert_type(await app.start(Untyped, StartEvent(text="any field")), RunHandle[Any])
    assert_type(await app.start(nightly, Nightly(day="monday"), unique_key="m"), DagHandle)
    assert_type(await app.start(nightly, day="monday"), DagHandle)
    assert_type(await app.start(loose, {"day": "monday"}), DagHandle)
    await app.start("Article", topic="tides")
    assert_type(app.start_sync(Article, Topic(topic="tides"), priority=9), RunHandle[str])
    assert_type(app.start_sync(Article, topic="tides"), RunHandle[str])
    assert_type(app.start_sync(nightly, Nightly(day="monday")), DagHandle)
    app.start_sync("Article", topic="tides")
    handler = Article(timeout=60).run(start_event=Topic(topic="tides"))
    assert_type(handler, WorkflowHandler[str])
    assert_type(await handler, str)


async def together(conn: Any) -> None:
    """Start work in one transaction."""
    async with app.atomic(conn) as tx:
        assert_type(await tx.enqueue(send_receipt.call(order_id=7), delay="10m"), JobHandle[Receipt])
        assert_type(await tx.enqueue_many([count_rows.call("a.csv")], priority=9), list[JobHandle[int]])
        run = await tx.start(Article, Topic(topic="tides"), unique_key="t")
        assert_type(run, RunHandle[str])
        assert_type(await tx.start(nightly, day="monday"), DagHandle)
        await tx.send_event(run, Topic(topic="tides"), delay="1h")
        await tx.publish("orders", {"id": 7}, key="a")
    with app.atomic_sync(conn) as plain:
        assert_type(plain.enqueue(count_rows.call("a.csv")), JobHandle[int])
        assert_type(plain.start(Article, Topic(topic="tides")), RunHandle[str])
    assert_type(app.jobs.batch_sync([count_rows.call("a.csv")], name="rows", priority=9), BatchHandle[int])


def of_a_message(ctx: MessageContext) -> None:
    """Enqueue a job from a plan of a stream."""
    ctx.enqueue(send_receipt.call(order_id=7), priority=9)
    ctx.enqueue(send_receipt, order_id=7)


def of_any(task: Task[..., Any, Any], workflow: type[Workflow[Any, Any]]) -> None:
    """A function of the program's own that takes any task or workflow."""
    of_any(count_rows, Article)


class Mailer:
    """A client that every process opens once."""

    async def send(self, order_id: int) -> str:
        """Send something."""
        return str(order_id)


@asynccontextmanager
async def lifespan(app: App) -> AsyncGenerator[Mailer, None]:
    """Open the client."""
    yield Mailer()


@contextmanager
def traced(call: Invocation) -> Generator[None, None, None]:
    """Middleware that is plain."""
    print(call.shape, call.name, call.id, call.arguments)
    yield


@asynccontextmanager
async def awaited(call: Invocation) -> AsyncGenerator[None, None]:
    """Middleware that is async."""
    yield


def plain_mailer(mailer: Mailer = INJECTED) -> Mailer:
    """What makes an object for each call."""
    return mailer


living = App("living", lifespan=lifespan, middleware=[traced, awaited], dependencies={Mailer: plain_mailer})


@living.task
async def mail(order_id: int, mailer: Mailer = INJECTED) -> str:
    """A task that takes a client, which is no argument of its calls."""
    return await mailer.send(order_id)


assert_type(mail.call(order_id=7), Call[str])
