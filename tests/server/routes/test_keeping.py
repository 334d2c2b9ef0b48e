"""What the server keeps: answers with what they answer, how long things are kept, and how much was done over time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from litestar.exceptions import LitestarException

from tests.support import value
from tests.support.operate import set_retention
from tests.support.web_app import make_app
from tidemill.core.errors import ConfigError
from tidemill.engine.roles.maintenance import Maintenance
from tidemill.ops.jobs.queues import waited
from tidemill.server.app import build
from tidemill.server.fair_pool import FairDatabase
from tidemill.server.middleware.middleware import Middleware
from tidemill.server.server_state import ServerState
from tidemill.server.settings import ServerSettings
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.jobs.history import partitions as history_partitions
from tidemill.store.maintenance.retention_settings import Retention, measure_kept, read_retention
from tidemill.store.telemetry.throughput import note_pace, read_pace, read_waits


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Middleware]:
    database = FairDatabase(DatabaseSettings(url=database_url), label="test server")
    async with database:
        yield build(ServerState(make_app(database_url=database_url), database, ServerSettings(trust_local=True)))


class Lost(Exception):
    """The connection broke before the answer was through."""


def first_cause(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else first_cause(error.__cause__)


async def enqueue(
    site: Middleware, key: str, *, broken: bool = False
) -> tuple[int, dict[str, Any], dict[bytes, bytes]]:
    """Ask for a job over HTTP; with `broken`, the answer is lost on its way."""
    body = json.dumps({"task": "send", "args": {"order": 1}}).encode()
    path = "/api/v1/jobs"
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"idempotency-key", key.encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if broken:
            raise Lost
        sent.append(message)

    await site(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(each.get("body", b"") for each in sent)), dict(sent[0]["headers"])


async def test_a_job_is_enqueued_once_though_its_answer_was_lost_and_the_next_one_gets_it(
    site: Middleware, database: Database
) -> None:
    with pytest.raises(LitestarException) as broke:
        await enqueue(site, "k", broken=True)
    assert isinstance(first_cause(broke.value), Lost)
    status, told, headers = await enqueue(site, "k")
    assert (status, told["created"], headers[b"idempotency-replayed"]) == (201, True, b"true")
    assert told["id"] == await value(database, "SELECT max(id) FROM tidemill.job")
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 1
    assert (await enqueue(site, "another"))[1]["id"] != told["id"]


async def test_what_an_operator_sets_is_how_long_things_are_kept(database: Database) -> None:
    today = datetime.now(UTC).date()
    for back in (0, 3, 9):
        await history_partitions.make_partitions(database, today - timedelta(days=back), days_ahead=0)
    before = set(await history_partitions.list_partitions(database))
    maintenance = Maintenance(database)
    await maintenance.clean_up()
    assert before <= set(await history_partitions.list_partitions(database)), "thirty days, if nothing is set"
    await set_retention(database, Retention(jobs=5, runs=90), by="ann")
    await maintenance.clean_up()
    left = await history_partitions.list_partitions(database)
    assert f"job_history_{today - timedelta(days=9):%Y%m%d}" not in left
    assert f"job_history_{today - timedelta(days=3):%Y%m%d}" in left
    wanted, row = await read_retention(database)
    assert (wanted.jobs, wanted.runs, wanted.events) == (5, 90, None)
    assert row is not None
    assert row["by"] == "ann"
    sizes = await measure_kept(database)
    assert {"jobs", "logs", "runs", "events"} == set(sizes)
    assert sizes["jobs"]["oldest"] == f"{today - timedelta(days=3):%Y%m%d}"
    entry = (await database.fetch("SELECT * FROM tidemill.audit WHERE action = 'retention.set'"))[0]
    assert (entry["who"], json.loads(entry["after"])) == ("ann", {"jobs": 5, "runs": 90})
    for wrong in (0, 5000):
        with pytest.raises(ConfigError, match="1 to 3650"):
            await set_retention(database, Retention(events=wrong), by="ann")


async def test_how_much_was_done_and_how_long_jobs_waited_is_told_over_time(database: Database) -> None:
    async def count(name: str, labels: list[str], total: float) -> None:
        await database.fetch(
            "INSERT INTO tidemill.meter VALUES ($1, $2, $3) ON CONFLICT (name, labels) DO UPDATE SET value = $3",
            name,
            json.dumps(labels),
            total,
        )

    await count("ended", ["mail", "send", "succeeded"], 10)
    await count("wait", ["mail", "0.01"], 10)
    await note_pace(database, every=0)
    await note_pace(database, every=3600)
    await count("ended", ["mail", "send", "succeeded"], 30)
    await count("ended", ["mail", "send", "failed"], 2)
    await count("wait", ["mail", "0.01"], 109)
    await count("wait", ["mail", "5.0"], 1)
    await note_pace(database, every=0)
    rows = await read_pace(database, within=60, every=0.001)
    assert [(row["done"], row["failed"]) for row in rows] == [(10, 0), (32, 2)], "one that comes too soon is left out"
    waits = await read_waits(database, within=60)
    assert waits == {"mail": {"0.01": 99, "5.0": 1}}
    assert (waited(waits["mail"], 0.5), waited(waits["mail"], 0.99), waited(waits["mail"], 1.0)) == (0.01, 0.01, 5.0)
    assert waited({"+Inf": 3.0}, 0.5) is None
