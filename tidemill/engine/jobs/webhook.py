"""Webhooks of jobs: when a job has ended, its outcome is posted to an address, signed.

    await app.enqueue(render.call(order_id=7), webhook="https://customer.example/hooks/7")

The statement that ends the job enqueues a job of the task `webhook`, which posts and is retried like any other: each
delivery is seen, explained and retried as a job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.jobs.job import FINAL_STATES, Callback
from tidemill.core.retry import Discard, RetryAfter, retry
from tidemill.core.web.public_url import check_http_url, site_of
from tidemill.core.web.webhook_signature import sign_webhook
from tidemill.engine.jobs.task import Task, TaskOptions
from tidemill.engine.outbound_http import OutboundHttpError, RefusedAddressError, fetch
from tidemill.store.database import Database
from tidemill.store.jobs.read import show_job

WEBHOOK_TASK = "webhook"
WEBHOOK_QUEUE = "webhooks"
TIMEOUT = 15.0
GONE = 410
LONGEST_WAIT = 3600.0
UNSIGNED = "webhooks are signed: set webhook_secret, such as TIDEMILL_WEBHOOK_SECRET, on every host"

_OPTIONS = TaskOptions(WEBHOOK_QUEUE, retry=retry(max_attempts=15, backoff="5s", cap="1h", max_losses=3))


class WebhookError(TidemillError):
    """A webhook that its receiver did not accept; the job retries."""


def webhook_callback(url: Any) -> Callback:
    """What the end of a job enqueues so that its outcome is posted; a `ConfigError` if it is no address."""
    if not isinstance(url, str):
        raise ConfigError(f"webhook={url!r:.100} is not an address, such as 'https://host/path'")
    arguments = encode({"url": check_http_url(url)})
    return Callback(
        WEBHOOK_TASK, WEBHOOK_QUEUE, ("job",), msgspec.Raw(encode(_OPTIONS.job_options())), msgspec.Raw(arguments)
    )


def webhook_task(
    application: str, reach: Callable[[], Awaitable[Database]], secret: Callable[[], str | None]
) -> Task[Any, Any]:
    """The task that posts the outcomes of jobs."""

    async def webhook(url: str, job: int) -> int:
        """Post the outcome of a job; returns the status of the answer."""
        key = secret()
        if key is None:
            raise ConfigError(UNSIGNED)
        row = await show_job(await reach(), job)
        if row is None or row["state"] not in FINAL_STATES:
            raise Discard(f"job {job} is no longer kept, or has not ended: there is no outcome to post")
        body = encode(_outcome(application, row))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "tidemill",
            "Idempotency-Key": f"{application}-job-{job}",
            "Tidemill-Signature": sign_webhook(key, body, now=time.time()),
        }
        return await asyncio.to_thread(_post, url, body, headers)

    return Task(webhook, WEBHOOK_TASK, _OPTIONS)


def _outcome(application: str, row: Any) -> dict[str, Any]:
    """What is posted about a job."""
    errors = [] if row["errors"] is None else decode(row["errors"])
    return {
        "type": f"job.{row['state']}",
        "application": application,
        "job": row["id"],
        "task": row["task"],
        "state": row["state"],
        "result": None if row["result"] is None else msgspec.Raw(row["result"]),
        "error": errors[-1]["message"] if errors and row["state"] != "succeeded" else None,
        "note": row["note"],
        "attempts": row["attempt"],
        "tags": row["tags"] or [],
        "unique_key": row["unique_key"],
        "created_at": row["created_at"],
        "finished_at": row["finished_at"],
    }


def _post(url: str, body: bytes, headers: dict[str, str]) -> int:
    try:
        answer = fetch("POST", url, body, headers, timeout=TIMEOUT, redirects=0)
    except RefusedAddressError as error:
        raise Discard(str(error)) from None
    except OutboundHttpError as error:
        raise WebhookError(str(error)) from None
    if 200 <= answer.status < 300:
        return answer.status
    refusal = f"{site_of(url)} answered {answer.status}: {answer.text(200)}"
    if answer.status == GONE:
        raise Discard(refusal)
    wait = answer.headers.get("retry-after", "")
    if wait.isascii() and wait.isdigit():
        raise RetryAfter(min(LONGEST_WAIT, float(wait)), refusal)
    raise WebhookError(refusal)
