"""Arguments are checked when a job is enqueued and again when it runs."""

from __future__ import annotations

import msgspec
import pydantic
import pytest

from tests.support import eventually, finished, running_worker, value
from tidemill import App
from tidemill.core.errors import PayloadError
from tidemill.store.database import Database


class Order(pydantic.BaseModel):
    id: int
    amount: float = pydantic.Field(gt=0)


@pytest.fixture
def entered() -> list[Order]:
    return []


@pytest.fixture
def app(app: App, entered: list[Order]) -> App:
    @app.task(retry=app.retry(5, backoff=0.01))
    async def book(order: Order, note: str = "") -> float:
        entered.append(order)
        return order.amount

    return app


@pytest.mark.parametrize(
    "call", [{}, {"order": 7}, {"order": {"id": 1, "amount": -2}}, {"order": {"id": 1, "amount": 2}, "colour": "red"}]
)
async def test_a_call_that_does_not_fit_is_refused_at_enqueue_and_stores_nothing(app: App, database, call) -> None:
    with pytest.raises(PayloadError, match="task book"):
        await app.enqueue("book", args=call)
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 0


async def test_a_typed_argument_reaches_the_task_as_its_type(app: App, database, entered: list[Order]) -> None:
    async with running_worker(app):
        await finished(database, (await app.enqueue("book", Order(id=1, amount=2.5))).id)
        await finished(database, (await app.enqueue("book", {"id": 2, "amount": 3.5})).id)
    assert entered == [Order(id=1, amount=2.5), Order(id=2, amount=3.5)]


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        ("{}", "order"),
        ('{"order": {"id": "x", "amount": 1}}', "id"),
        ('{"order": {"id": 1, "amount": -1}}', "amount"),
        ("[1]", "array"),
        ('"text"', "str"),
    ],
)
async def test_stored_arguments_that_do_not_fit_fail_at_once_and_are_not_retried(
    app: App, database: Database, entered: list[Order], stored: str, named: str
) -> None:
    job_id = await value(
        database,
        "INSERT INTO tidemill.job (queue, task, args, options) VALUES ('default', 'book', $1, $2) RETURNING id",
        stored.encode(),
        b'{"retry": {"max_attempts": 5, "backoff": 0.01}}',
    )
    good = await app.enqueue("book", {"id": 1, "amount": 1})
    async with running_worker(app):
        row = await finished(database, job_id)
        assert (await finished(database, good.id))["state"] == "succeeded"
    assert (row["state"], row["attempt"], row["failures"]) == ("failed", 1, 1)
    assert "task book: bad arguments" in row["note"]
    assert named in row["note"]
    assert "bad payloads are not retried" in row["note"]
    (error,) = msgspec.json.decode(row["errors"])
    assert error["kind"].endswith("PayloadError")
    assert len(entered) == 1


async def test_a_stored_argument_that_the_task_does_not_have_waits_for_code_that_has_it(
    app: App, database: Database, entered: list[Order]
) -> None:
    job_id = await value(
        database,
        "INSERT INTO tidemill.job (queue, task, args) VALUES ('default', 'book', $1) RETURNING id",
        b'{"order": {"id": 1, "amount": 1}, "colour": 1}',
    )
    async with running_worker(app):
        good = await app.enqueue("book", {"id": 1, "amount": 1})
        assert (await finished(database, good.id))["state"] == "succeeded"
        waiting = "SELECT note FROM tidemill.job WHERE id = $1 AND state = 'no_worker' AND failures = 0"
        note = await eventually(lambda: value(database, waiting, job_id))
    assert "task book has no argument 'colour'" in note
    assert "cancel the job" in note
    assert len(entered) == 1


async def test_stored_options_that_cannot_be_read_do_not_harm_the_worker(app: App, database: Database) -> None:
    job_id = await value(
        database,
        "INSERT INTO tidemill.job (queue, task, args, options) VALUES ('default', 'book', $1, $2) RETURNING id",
        b'{"order": {"id": 1, "amount": 1}}',
        b'{"retry": {"max_attempts": "many"}}',
    )
    async with running_worker(app):
        good = await app.enqueue("book", {"id": 1, "amount": 1})
        assert (await finished(database, good.id))["state"] == "succeeded"
        assert (await finished(database, job_id))["state"] == "failed"
