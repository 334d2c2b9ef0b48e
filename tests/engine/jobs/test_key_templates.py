"""`{argument}` is filled into every key in the same way: alone, in bulk, from SQL; of the task or of the call."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from tidemill import App
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.engine.jobs.bulk import ManyJobs
from tidemill.ops.jobs.jobs import EnqueueJob, enqueue_job
from tidemill.store.database import Database
from tidemill.store.jobs.declared import declare

KEYS = "unique_key, concurrency_key, split_part(fair_key, chr(31), 1), rate_key"
CALL: dict[str, Any] = {"unique_key": "u-{n}", "concurrency_key": "c-{n}", "fair_key": "f-{n}", "rate_key": "r-{name}"}
FILLED = ("u-7", "c-7", "f-7", "r-acme")


async def keys_of(database: Database) -> list[tuple[Any, ...]]:
    rows = await database.fetch(
        f"WITH gone AS (DELETE FROM tidemill.job RETURNING *) SELECT {KEYS} FROM gone ORDER BY id"
    )
    return [tuple(row) for row in rows]


@pytest.fixture
def shop(app: App) -> App:
    @app.task
    async def plain(n: Any = 7, name: str = "acme") -> None: ...

    @app.task(concurrency_key="c-{n}", fair_key="f-{n}", rate_key="r-{name}", rate="10/s")
    async def keyed(n: Any = 7, name: str = "acme") -> None: ...

    return app


async def test_every_way_in_fills_in_every_key(shop: App, database: Database) -> None:
    await declare(database, shop.declarations.templates())
    alone: dict[str, Any] = {"unique_key": "u-{n}"}
    for task, options in (("plain", CALL), ("keyed", alone)):
        await shop.enqueue(task, **options)
        await shop.enqueue(task, **{**options, "debounce": "1h"})
        assert await keys_of(database) == [FILLED]
        await shop.enqueue_many(task, [{"n": 7}, {"n": 8}], **options)
        assert await keys_of(database) == [FILLED, ("u-8", "c-8", "f-8", "r-acme")]
        await shop.batch([shop.declarations.tasks[task].call(n=7)], **options)
        assert await keys_of(database) == [FILLED]
        await shop.do(enqueue_job, EnqueueJob(task=task, **options))
        assert await keys_of(database) == [FILLED]
        given = ", ".join(f"{name} => '{key}'" for name, key in options.items())
        await database.fetch(f"SELECT tidemill.enqueue('{task}', {given})")
        assert await keys_of(database) == [FILLED]


VALUES = [
    ("text", "text"), ("a{b}c", "a{b}c"), (7, "7"), (-1.5, "-1.5"), (True, "True"), (None, "None"),
    (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), VALUES)
async def test_python_and_sql_write_a_value_alike(shop: App, database: Database, given: Any, text: str) -> None:
    await declare(database, shop.declarations.templates())
    call = shop.declarations.tasks["plain"].call(n=given)
    await shop.enqueue(call, fair_key="of {n}")
    await database.fetch(
        "SELECT tidemill.enqueue('plain', $1::text::jsonb, fair_key => 'of {n}')", call.arguments.decode()
    )
    rows = await database.fetch("SELECT fair_key FROM tidemill.job")
    assert [row["fair_key"] for row in rows] == [f"of {text}"] * 2


@pytest.mark.parametrize("key", ['{"a": 1}', "{}", "{a b}", "}{", "{a.b}"])
async def test_other_braces_stay_as_they_are(shop: App, database: Database, key: str) -> None:
    await declare(database, shop.declarations.templates())
    await shop.enqueue("plain", unique_key=key)
    taken = await database.fetch("SELECT tidemill.enqueue('plain', unique_key => $1)", key)
    assert [(row["unique_key"], row["id"]) for row in await database.fetch("SELECT * FROM tidemill.job")] == [
        (key, taken[0][0])
    ]


async def test_a_key_that_does_not_fit_is_answered_with_what_there_is(shop: App, database: Database) -> None:
    await declare(database, shop.declarations.templates())
    said = r"task plain: unique_key 'u-\{nn\}' does not fit: there is no argument 'nn'; did you mean 'n'"
    with pytest.raises(PayloadError, match=said):
        await shop.enqueue("plain", unique_key="u-{nn}")
    with pytest.raises(PayloadError, match=said):
        await shop.enqueue_many("plain", [{}], unique_key="u-{nn}")
    with pytest.raises(PayloadError, match="'n' is a JSON list; use text or a number"):
        await shop.enqueue("plain", n=[1], fair_key="{n}")
    for given in ("'{}'", """'{"n": [1]}'"""):
        key = "{nn}" if given == "'{}'" else "{n}"
        with pytest.raises(asyncpg.PostgresError, match="the key"):
            await database.fetch(f"SELECT tidemill.enqueue('plain', {given}, fair_key => '{key}')")


def test_a_template_of_a_task_is_checked_where_it_is_declared(app: App) -> None:
    for key in ("concurrency_key", "fair_key", "rate_key"):
        with pytest.raises(ConfigError, match=rf"task send: {key} '\{{tennant\}}' does not fit: .* 'tenant'"):

            @app.task(**{key: "{tennant}"})  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator, reportCallIssue]
            async def send(tenant: str) -> None: ...


def test_a_part_of_many_jobs_is_made_without_the_others(shop: App) -> None:
    keyed = shop.declarations.task("keyed")
    many = ManyJobs([keyed] * 3, [b'{"n": []}', b'{"n": 1}', b'{"n": 2}'], lambda _: {})
    assert [job.concurrency_key for job in many.each(slice(1, 3))] == ["c-1", "c-2"]
    with pytest.raises(PayloadError, match="is a JSON list"):
        many.each()
