"""The outcome of a job is posted to its webhook, signed, however the job ends."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.support import eventually
from tests.support.receiver import Receiver, Request, receiver
from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.core.web.webhook_signature import WebhookSignature, verify_webhook
from tidemill.engine.jobs.webhook import WEBHOOK_TASK
from tidemill.store.database import Database

SECRET = "moorings"


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    app = App("shop", database_url=database_url, webhook_secret=f"{SECRET} old", allow_hosts=["127.0.0.0/8"], **PATIENT)

    @app.task
    async def double(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return 2 * n

    yield app
    await app.close()
    app.close_sync()


def told(request: Request) -> dict[str, Any]:
    return msgspec.json.decode(request.body)


async def deliveries(database: Database) -> list[Any]:
    return await database.fetch("SELECT * FROM tidemill.job_history WHERE task = $1 ORDER BY id", WEBHOOK_TASK)


async def test_a_job_posts_its_outcome_however_it_ends(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = app.declarations.tasks["double"]
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    with receiver() as hook:
        done = await app.enqueue(double.call(4), webhook=f"{hook.url}/done", tags=["a"], unique_key="k")
        many = await app.enqueue_many([double.call(n) for n in (-1, 5)], webhook=f"{hook.url}/many")
        late = await app.enqueue(double.call(6), webhook=f"{hook.url}/late", deadline=0.001, delay="1h")
        dropped = await app.enqueue(double.call(7), webhook=f"{hook.url}/dropped", delay="1h")
        silent = await app.enqueue(double.call(8))
        await app.jobs.cancel(dropped)
        async with app.running():
            await silent
            await eventually(lambda: len(hook.requests) == 5 and hook.requests)
        found = {(each["job"], each["state"]): each for each in map(told, hook.requests)}
        assert found.keys() == {
            (done.id, "succeeded"),
            (many[0].id, "failed"),
            (many[1].id, "succeeded"),
            (late.id, "expired"),
            (dropped.id, "cancelled"),
        }
        outcome = found[done.id, "succeeded"]
        assert (outcome["type"], outcome["result"], outcome["task"]) == ("job.succeeded", 8, "double")
        assert (outcome["application"], outcome["tags"], outcome["unique_key"]) == ("shop", ["a"], "k")
        assert found[many[0].id, "failed"]["error"] == "negative"
        for request in hook.requests:
            headers = {name.lower(): value for name, value in request.headers.items()}
            headers["stripe-signature"] = headers["tidemill-signature"]
            signature = WebhookSignature(form="stripe", secret_variable="HOOK_SECRET")
            assert verify_webhook(signature, headers, request.body, now=time.time())
            assert headers["idempotency-key"] == f"shop-job-{told(request)['job']}"
    rows = await deliveries(database)
    assert [row["state"] for row in rows] == ["succeeded"] * 5
    assert {msgspec.json.decode(row["origin"])["parent"] for row in rows} == {job for job, _ in found}


async def test_a_refused_delivery_is_retried_with_the_same_key(app: App, database: Database) -> None:
    answers = iter([(503, b"busy", {"Retry-After": "0"}), (500, b"", {"Retry-After": "0"}), (204, b"")])
    with receiver(lambda request: next(answers)) as hook:
        async with app.running():
            await app.enqueue("double", n=1, webhook=hook.url)
            (row,) = await eventually(lambda: deliveries(database))
        assert (row["state"], row["attempt"]) == ("succeeded", 3)
        assert len({request.headers["Idempotency-Key"] for request in hook.requests}) == 1


@pytest.mark.parametrize("status", [410, 302])
async def test_a_receiver_that_is_gone_is_not_asked_again_and_redirects_are_not_followed(
    app: App, database: Database, status: int
) -> None:
    with receiver() as hook, receiver() as elsewhere:
        hook.answer = lambda request: (status, b"", {"Location": elsewhere.url})
        async with app.running():
            await app.enqueue("double", n=1, webhook=hook.url)
            if status == 410:
                (row,) = await eventually(lambda: deliveries(database))
                assert (row["state"], row["attempt"]) == ("failed", 1)
            else:
                failed = "SELECT FROM tidemill.job WHERE task = $1 AND failures = 1"
                await eventually(lambda: database.fetch(failed, WEBHOOK_TASK))
        assert elsewhere.requests == []


async def test_private_addresses_are_refused(database_url: str, database: Database, hook: Receiver) -> None:
    app = App("shop", database_url=database_url, webhook_secret=SECRET, **PATIENT)

    @app.task(webhook=hook.url)
    async def double(n: int) -> int:
        return 2 * n

    async with app.running():
        await app.enqueue(double.call(1))
        (row,) = await eventually(lambda: deliveries(database))
    assert (row["state"], row["attempt"]) == ("failed", 1)
    assert "loopback" in row["note"]
    assert hook.requests == []
    await app.close()


@pytest.fixture
def hook() -> Any:
    with receiver() as made:
        yield made


async def test_a_webhook_needs_a_secret_and_an_address(database_url: str, app: App) -> None:
    bare = App("bare", database_url=database_url)

    @bare.task
    async def double(n: int) -> int:
        return 2 * n

    with pytest.raises(ConfigError, match="set webhook_secret"):
        await bare.enqueue(double.call(1), webhook="https://example.org")
    with pytest.raises(ConfigError, match="not an http or https address"):
        await app.enqueue("double", n=1, webhook="ftp://example.org")
    await bare.close()
