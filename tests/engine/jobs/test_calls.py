"""`task.call(...)` and what `enqueue` takes: arguments are checked at the call, options beside it, both with a hint."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest

from tests.support import value
from tidemill import App
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.dags import Dag, node, ref
from tidemill.engine.jobs.task import Task
from tidemill.store.database import Database


@pytest.fixture
def shop() -> App:
    return App("shop", database_url="postgresql://nowhere.invalid/none")


@pytest.fixture
def send(shop: App) -> Task[..., Any, Any]:
    @shop.task
    async def send(order_id: int, copy_to: str = "", *, urgent: bool = False) -> None: ...

    return send


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {"ordr_id": 7}, "task send: there is no argument 'ordr_id'; did you mean 'order_id'"),
        ((7,), {"colour": 1}, "task send: there is no argument 'colour'; it takes order_id, copy_to, urgent"),
        ((), {}, "task send: the argument 'order_id' is missing"),
        ((7, "a", True), {}, r"task send: too many positional arguments: 3 were given, it takes order_id, copy_to"),
        ((7,), {"order_id": 8}, "task send: the argument 'order_id' is given by position and by name"),
        (("seven",), {}, "task send: bad arguments: Expected `int`, got `str` - at `\\$.order_id`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_when_the_call_is_made(
    send: Task[..., Any, Any], args: Any, kwargs: Any, problem: str
) -> None:
    with pytest.raises(PayloadError, match=problem):
        send.call(*args, **kwargs)


def test_a_call_carries_its_task_and_encoded_arguments(send: Task[..., Any, Any]) -> None:
    call = send.call(7, urgent=True)
    call.is_used = True
    assert call.task is send
    assert call.arguments == b'{"order_id":7,"urgent":true}'
    assert repr(call) == '<call of task send with {"order_id":7,"urgent":true}>'


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"delya": "10m"}, "enqueue has no option 'delya'; did you mean 'delay'"),
        ({"prioritty": 3}, "enqueue has no option 'prioritty'; did you mean 'priority'"),
        ({"colour": 3}, "enqueue has no option 'colour'; its options are at, concurrency_key, "),
        ({"order_id": 3}, "enqueue has no option 'order_id'"),
    ],
)
async def test_an_option_that_does_not_exist_is_refused(
    shop: App, send: Task[..., Any, Any], options: Any, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        await shop.enqueue(send.call(7), **options)
    with pytest.raises(ConfigError, match=problem):
        shop.enqueue_sync(send.call(7), **options)
    with pytest.raises(ConfigError, match=problem.replace("enqueue", "enqueue_many").split(";")[0]):
        await shop.enqueue_many([send.call(7)], **options)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"ordr_id": 7}, "task send: there is no argument 'ordr_id'; did you mean 'order_id'"),
        ({"order_id": 7, "delya": "10m"}, "task send: there is no argument 'delya'; did you mean 'delay'"),
        ({"order_id": 7, "args": "x"}, r"task send: args= is a dict of its arguments; write send\.call\(args=\.\.\.\)"),
    ],
)
async def test_keywords_of_the_short_form_are_checked(
    shop: App, send: Task[..., Any, Any], more: Any, problem: str
) -> None:
    with pytest.raises(PayloadError, match=problem):
        await shop.enqueue(send, **more)


async def test_an_option_that_is_also_an_argument_asks_for_a_call(shop: App) -> None:
    @shop.task
    async def paint(priority: str, conn: int = 0) -> None: ...

    for options in ({"priority": "high"}, {"conn": 3}):
        with pytest.raises(PayloadError, match=r"write app\.enqueue\(paint\.call\((priority|conn)=\.\.\.\)\)"):
            await shop.enqueue(paint, **options)  # pyright: ignore


@pytest.mark.parametrize("given", [len, 7, {"order_id": 7}, None])
async def test_what_is_no_call_is_refused_with_what_to_write(shop: App, given: Any) -> None:
    with pytest.raises(ConfigError, match=r"write function\.call\(\.\.\.\) to enqueue it"):
        await shop.enqueue(given)
    with pytest.raises(ConfigError, match=r"app.schedule takes a call, such as task\.call\(\.\.\.\)"):
        shop.schedule("night", given, every="1d")
    with pytest.raises(ConfigError, match=r"enqueue_many takes calls, such as task\.call\(\.\.\.\)"):
        await shop.enqueue_many([given])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"queue": 5}, "5 is not a queue name"),
        ({"at": float("nan")}, "at=nan is not within the years 1 to 9999"),
        ({"at": 1e18}, "at=1e.18 is not within"),
        ({"tags": 5}, "tags=5 are not tags: write a list"),
        ({"webhook": "customer.example/hook"}, "not an http or https address, such as 'https://host/path'"),
        ({"max_concurrency": 2}, "max_concurrency= needs a concurrency_key="),
        ({"concurrency_key": "k", "max_concurrency": 1.5}, "use a whole number"),
        ({"concurrency_key": "k", "max_concurrency": 2**40}, "use a whole number"),
    ],
)
async def test_a_wrong_value_of_an_option_is_refused_before_the_database_is_asked(
    shop: App, send: Task[..., Any, Any], options: Any, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        await shop.enqueue(send.call(7), **options)


async def test_what_is_no_list_of_calls_is_refused_with_what_to_write(shop: App, send: Task[..., Any, Any]) -> None:
    for given in (send, send.call(7), 7):
        with pytest.raises(ConfigError, match=r"a list of calls, such as \[task\.call\(\.\.\.\)\]"):
            await shop.enqueue_many(given)  # pyright: ignore[reportArgumentType] - it is wrong


@pytest.mark.parametrize("given", ["b5", None, 1.5, True, 2**70])
async def test_what_is_no_job_or_batch_is_refused(shop: App, given: Any) -> None:
    for ask in (shop.jobs.get, shop.jobs.wait, shop.jobs.cancel):
        with pytest.raises(ConfigError, match="is no job: give its handle or its number"):
            await ask(given)
    with pytest.raises(ConfigError, match="is no batch: give its handle or its number"):
        shop.jobs.get_batch(given)


def test_a_wrong_schedule_is_refused_with_what_to_write(shop: App, send: Task[..., Any, Any]) -> None:
    for name, options, problem in (
        (5, {}, "5 is not a schedule name"),
        ("night", {"timezone": 5}, "timezone: 5 is not a time zone"),
        ("night", {"colour": 1}, "its options are cron, every, catchup, jitter, overlap, timezone"),
    ):
        with pytest.raises(ConfigError, match=problem):
            shop.schedule(name, send.call(7), cron="0 3 * * *", **options)  # pyright: ignore
    nightly = shop.dag(Dag("nightly", nodes=[node("send", "send", args={"number": ref("$.run.day")})]))
    with pytest.raises(ConfigError, match=r"one value: app\.schedule\('night', \.\.\., \{'day': \.\.\.\}, \.\.\.\)"):
        shop.schedule("night", nightly, cron="0 3 * * *", day="monday")  # pyright: ignore


async def test_a_coroutine_of_the_task_is_no_call(shop: App, send: Task[..., Any, Any]) -> None:
    running = send(7)
    with pytest.raises(ConfigError, match="is neither a task nor a call of one"):
        await shop.enqueue(running)
    running.close()


async def test_arguments_beside_a_call_are_refused(shop: App, send: Task[..., Any, Any]) -> None:
    with pytest.raises(ConfigError, match=r"enqueue takes the arguments in the call: send\.call\(\.\.\.\)"):
        await shop.enqueue(send.call(7), 8)  # pyright: ignore


def test_a_call_that_is_dropped_warns_where_it_was_dropped(send: Task[..., Any, Any]) -> None:
    with pytest.warns(
        RuntimeWarning, match=r"send\.call\(\.\.\.\) was never enqueued: pass it to app\.enqueue"
    ) as told:
        send.call(7)
    assert told[0].filename == __file__


async def test_calls_that_are_used_do_not_warn(app: App, database: Database) -> None:
    @app.task
    async def note(n: int) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call = note.call(1)
        await app.enqueue(call)
        await app.enqueue(call)
        await app.enqueue_many(note.call(n) for n in range(2))
        app.schedule("later", note.call(2), every="1d")
        await app.enqueue(note, n=3)
        with pytest.raises(PayloadError):
            await app.enqueue_many(note.call(n) for n in (1, "two"))  # pyright: ignore
        del call
        gc.collect()
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 5


async def test_many_calls_may_be_of_several_tasks_and_keep_their_order(app: App, database: Database) -> None:
    @app.task(queue="left", tags=["l"])
    async def left(n: int) -> int:
        return n

    @app.task(queue="right", concurrency_key="r-{n}")
    async def right(n: int) -> str:
        return str(n)

    calls = [each for n in range(20) for each in (left.call(n), right.call(n))]
    jobs = await app.enqueue_many(calls, priority=8, tags=["bulk"])
    rows = await database.fetch("SELECT id, task, queue, priority, tags, args FROM tidemill.job ORDER BY id")
    assert [row["id"] for row in rows] == [job.id for job in jobs]
    assert [(row["task"], bytes(row["args"])) for row in rows] == [(call.task.name, call.arguments) for call in calls]
    assert {(row["queue"], row["priority"], tuple(row["tags"])) for row in rows} == {
        ("left", 8, ("l", "bulk")),
        ("right", 8, ("bulk",)),
    }
