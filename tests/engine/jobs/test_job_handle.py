"""The handle that `enqueue` returns: its result has the type that the task declares."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pydantic
import pytest

from tests.support import running_worker
from tidemill import App, JobFailedError, JobHandle
from tidemill.core.errors import NotFoundError, PayloadError
from tidemill.core.jobs.job import JobRef


class Receipt(msgspec.Struct):
    order_id: int


class Order(pydantic.BaseModel):
    id: int


@dataclass
class Point:
    x: int


async def test_a_result_is_awaited_as_the_type_that_the_task_declares(app: App) -> None:
    @app.task
    async def receipt(order_id: int) -> Receipt:
        return Receipt(order_id)

    @app.task
    def order() -> Order:
        return Order(id=3)

    @app.task
    async def points() -> list[Point]:
        return [Point(1), Point(2)]

    @app.task
    async def pair() -> tuple[int, str]:
        return 1, "a"

    @app.task
    async def nothing() -> None: ...

    @app.task
    async def untold():
        return {"any": "thing"}

    async with running_worker(app):
        assert await (await app.enqueue(receipt.call(order_id=7))) == Receipt(7)
        assert await (await app.enqueue(order.call())).result(timeout="60s") == Order(id=3)
        assert await (await app.enqueue(points.call())) == [Point(1), Point(2)]
        assert await (await app.enqueue(pair.call())) == (1, "a")
        assert await (await app.enqueue(nothing.call())) is None
        assert await (await app.enqueue(untold.call())) == {"any": "thing"}
        assert await (await app.enqueue("receipt", order_id=8)) == Receipt(8)
        many = await app.enqueue_many([receipt.call(order_id=1), pair.call()])
        assert [await each for each in many] == [Receipt(1), (1, "a")]


async def test_a_job_that_did_not_succeed_has_no_result(app: App) -> None:
    @app.task
    async def broken() -> int:
        raise ValueError("no luck")

    async with running_worker(app):
        job = await app.enqueue(broken.call())
        with pytest.raises(
            JobFailedError, match=rf"job {job.id} \(broken\) has no result: it failed: .*no luck"
        ) as failed:
            await job
    assert failed.value.job.state == "failed"


async def test_a_cancelled_job_has_no_result(app: App) -> None:
    @app.task
    async def later() -> int:
        return 1

    job = await app.enqueue(later.call(), delay="1h")
    await app.jobs.cancel(job)
    with pytest.raises(JobFailedError, match="has no result: it was cancelled"):
        await job


async def test_a_result_that_does_not_fit_its_declaration_says_so(app: App) -> None:
    @app.task
    async def wrong() -> int:
        return "text"  # pyright: ignore[reportReturnType]

    async with running_worker(app):
        job = await app.enqueue(wrong.call())
        with pytest.raises(PayloadError, match=rf"the result of job {job.id} does not fit what task wrong declares"):
            await job
        assert (await app.wait(job)).result == "text"


async def test_a_handle_can_be_looked_at_and_waited_for_with_a_limit(app: App) -> None:
    @app.task
    async def later() -> int:
        return 1

    job = await app.enqueue(later.call(), delay="1h")
    assert (repr(job), job.created, (await job.view()).state) == (f"<job {job.id}>", True, "ready")
    with pytest.raises(TimeoutError):
        await job.result(timeout=0.05)
    with pytest.raises(NotFoundError, match="there is no job 4711"):
        await JobHandle(app.declarations.connections, JobRef(4711))
