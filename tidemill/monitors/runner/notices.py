"""Sends the notices of monitors: the task, and the code for each kind of channel.

The notices of a message are stored before it is sent. If the process dies in between, the same message is sent again
with the same id: the `Idempotency-Key` of a webhook, the `Message-ID` of a mail, `TIDEMILL_MESSAGE_ID` of a command.
The notices of an alert go to a channel in their order: one that follows another that is not sent yet joins its batch.
Every try is in the history of the alert.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.message import EmailMessage
from functools import partial
from itertools import groupby
from typing import Any

import msgspec
import structlog

from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.jobs.job import NewJob, Origin
from tidemill.core.retry import retry
from tidemill.core.web.public_url import site_of
from tidemill.core.web.webhook_signature import sign_webhook
from tidemill.engine.containment.blocked_time import TimeLimit
from tidemill.engine.containment.external_command import run_external_command
from tidemill.engine.jobs.task import Task, TaskOptions
from tidemill.engine.outbound_http import OutboundHttpError, fetch
from tidemill.engine.outbound_mail import OutboundMailError, send_mail
from tidemill.engine.worker.threads import WorkThreads
from tidemill.monitors.definition.channels import (
    Channel,
    Command,
    Email,
    Notice,
    NotifiedAlert,
    PagerDuty,
    Slack,
    Webhook,
    named,
)
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.reducer.fold import describe
from tidemill.monitors.reducer.silences import find_silence
from tidemill.store.database import Database
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.monitors.alerts import Silence, hold_silences
from tidemill.store.monitors.notices import (
    NOTIFY_TASK,
    SILENCED,
    bind_notices,
    join_earlier,
    mark_notices,
    put_off,
    record_deliveries,
    release_notices,
)

TASK = NOTIFY_TASK
QUEUE = "notifications"
SEND_THREADS = 32
SHOWN = 200  # bytes of what a command wrote before it failed
KEY = "notify/{monitor}/{channel}/{batch}"  # two jobs for one batch would send its messages twice

log = structlog.get_logger("tidemill.monitors")
_threads = WorkThreads(SEND_THREADS, "tidemill-notices")


class NotSentError(TidemillError):
    """A message that its receiver did not accept; the job retries."""


def notify_task(reach: Callable[[], Awaitable[Database]], monitors: Mapping[str, Monitor]) -> Task[Any, Any]:
    """The task that sends the notices of this application's monitors."""

    async def send_notices(monitor: str, channel: str, batch: str) -> int:
        """Send the waiting notices of a batch; returns how many alerts were sent."""
        declared = monitors.get(monitor)
        chosen = None if declared is None else named(declared.notify).get(channel)
        if chosen is None:
            raise ConfigError(f"monitor {monitor} has no channel {channel!r} in this application")
        database = await reach()
        if batch.startswith(SILENCED) or chosen.is_escalation:
            await keep_silent(database, task, monitor, channel, batch)
        return await send_batch(database, monitor, chosen, channel, batch)

    policy = retry(max_attempts=20, backoff="2s", cap="10m", max_losses=3)
    task = Task(send_notices, TASK, TaskOptions(queue=QUEUE, retry=policy, concurrency_key=KEY))
    return task


def notify_job(task: Task[Any, Any], monitor: str, channel: str, batch: str, at: float | None) -> NewJob:
    """The job that sends a batch, at once or at a given time."""
    args = task.signature.bind((), {"monitor": monitor, "channel": channel, "batch": batch})
    return task.new_job(args, origin=Origin(by=f"monitor {monitor}"), at=at)


async def keep_silent(database: Database, task: Task[Any, Any], monitor: str, channel: str, batch: str) -> None:
    """Postpone notices whose silence has ended, but that another silence still matches."""
    now = time.time()
    async with database.transaction() as connection:
        silences = await hold_silences(database, connection, monitor, now)
        others = [silence for silence in silences if f"{SILENCED}{silence.id}" != batch]
        found: dict[int, tuple[Silence, list[int]]] = {}
        for row in await release_notices(database, connection, monitor, channel, batch) if others else ():
            if (silence := find_silence(others, dict(row), now)) is not None:
                found.setdefault(silence.id, (silence, []))[1].append(row["id"])
        for silence, ids in found.values():
            later = f"{SILENCED}{silence.id}"
            await put_off(database, connection, ids, later)
            await insert_jobs(
                database, connection, [notify_job(task, monitor, channel, later, silence.ends_at)], notify=True
            )


async def send_batch(database: Database, monitor: str, channel: Channel, name: str, batch: str) -> int:
    """Send the unsent notices of a batch, message by message, and mark them; then those that have joined it."""
    sent, untold = 0, set[int]()
    while True:
        await join_earlier(database, monitor, name, batch)
        message = hashlib.blake2b(f"{monitor}/{name}/{batch}/{time.time_ns()}".encode(), digest_size=12).hexdigest()
        bound = await bind_notices(database, monitor, name, batch, message)
        if not bound:
            return sent
        for id, rows in groupby(bound, key=lambda row: row["message"]):
            sent += await _send_message(database, channel, Notice(id, monitor, name, ()), list(rows), batch, untold)


async def _send_message(
    database: Database, channel: Channel, empty: Notice, waiting: Sequence[Any], batch: str, untold: set[int]
) -> int:
    """Send one message with all notices that are still wanted; returns how many. The alerts of the rest are untold."""
    dropped: dict[int, str] = {}
    for row in waiting:
        if (why := _not_wanted(row, batch, channel, untold)) is not None:
            dropped[row["id"]] = why
            untold.add(row["alert"])
    wanted = [row for row in waiting if row["id"] not in dropped]
    if wanted:
        notice = msgspec.structs.replace(empty, alerts=tuple(_notified_alert(row) for row in wanted))
        notified = [(row["alert"], row["what"]) for row in wanted]
        try:
            await deliver(channel, notice)
        except Exception as error:
            failed = [(alert, f"{what}: {error}") for alert, what in notified]
            await record_deliveries(database, "notice failed", empty.channel, failed)
            raise
        await mark_notices(database, [row["id"] for row in wanted], "sent", empty.channel, notified)
    unsent = [(row["alert"], f"{row['what']}: {dropped[row['id']]}") for row in waiting if row["id"] in dropped]
    await mark_notices(database, list(dropped), "no longer needed", empty.channel, unsent)
    return len(wanted)


def _not_wanted(row: Any, batch: str, channel: Channel, untold: set[int]) -> str | None:
    """Why a notice is not sent, if so: its alert no longer needs attention, or its opening was not sent either."""
    if row["what"] == "resolved":
        was_told = row["alert"] not in untold and row["opened_outcome"] in (None, "sent", "waiting")
        return None if was_told else "its opening was not sent either"
    if not batch.startswith(SILENCED) and not channel.is_escalation:
        return None
    if row["acked_at"] is not None:
        return "it was acknowledged before"
    is_over = row["resolved_at"] is not None and (row["kind"] != "momentary" or batch.startswith(SILENCED))
    return "it was resolved before" if is_over else None


def _notified_alert(row: Any) -> NotifiedAlert:
    return NotifiedAlert(
        alert=row["alert"],
        what=row["what"],
        monitor=row["monitor"],
        trigger=row["trigger"],
        entity=row["entity"],
        kind=row["kind"],
        severity=row["severity"],
        started_at=row["started_at"].timestamp(),
        opened_at=row["opened_at"].timestamp(),
        resolved_at=None if row["resolved_at"] is None else row["resolved_at"].timestamp(),
        owner=row["owner"],
        key=row["key"],
        note=row["note"],
    )


async def deliver(channel: Channel, message: Notice) -> None:
    """Send a message; raises `NotSentError` unless its receiver accepted it."""
    if isinstance(channel, Webhook):
        body = msgspec.json.encode(message.as_json())
        await asyncio.to_thread(_post, channel.url, body, signature(channel.secret, body), message.id, channel.timeout)
    elif isinstance(channel, Slack):
        body = msgspec.json.encode({"text": message.text})
        await asyncio.to_thread(_post, channel.url, body, {}, message.id, channel.timeout)
    elif isinstance(channel, Email):
        await asyncio.to_thread(_mail, channel, message)
    elif isinstance(channel, PagerDuty):
        for number, incident in enumerate(channel.events(message)):
            body = msgspec.json.encode(incident)
            await asyncio.to_thread(_post, channel.url, body, {}, f"{message.id}-{number}", channel.timeout)
    elif isinstance(channel, Command):
        await _run(channel, message)
    elif callable(send := getattr(channel, "send", None)):
        await _call(send, message, parse_duration(channel.timeout, what="timeout"))
    else:
        raise ConfigError(f"{type(channel).__name__} cannot be sent to: give it a method send(self, notice)")


async def _call(send: Callable[[Notice], Any], message: Notice, timeout: float) -> None:
    """Send through a channel of the user."""
    what, limit = f"channel {message.channel} of monitor {message.monitor}", None
    try:
        if inspect.iscoroutinefunction(send):
            async with TimeLimit(timeout) as limit:
                await send(message)
        else:
            await _threads.run(partial(send, message), what, timeout)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if limit is not None and limit.expired():
            raise NotSentError(f"{what} took longer than {timeout:g} s") from error
        raise NotSentError(describe(error)) from error


def signature(secret: str | None, body: bytes, *, now: float | None = None) -> dict[str, str]:
    """The header that authenticates the sender of a webhook."""
    if secret is None:
        return {}
    return {"Tidemill-Signature": sign_webhook(secret, body, now=time.time() if now is None else now)}


def _post(url: str, body: bytes, headers: Mapping[str, str], id: str, timeout: Any) -> None:
    sent = {"Content-Type": "application/json", "User-Agent": "tidemill", "Idempotency-Key": id, **headers}
    patience = parse_duration(timeout, what="timeout")
    try:
        answer = fetch("POST", url, body, sent, timeout=patience, redirects=0, stated=True)
    except OutboundHttpError as error:
        raise NotSentError(str(error)) from None
    if answer.location is not None:
        raise NotSentError(
            f"{site_of(url)} answered {answer.status}, a redirect to {site_of(answer.location)}: name that address"
        )
    if not 200 <= answer.status < 300:
        raise NotSentError(f"{site_of(url)} answered {answer.status}: {answer.text(200)}")


def _mail(channel: Email, message: Notice) -> None:
    receivers: Sequence[str] = (channel.to,) if isinstance(channel.to, str) else tuple(channel.to)
    mail = EmailMessage()
    mail["From"], mail["To"] = channel.sender, ", ".join(receivers)
    mail["Subject"] = " ".join(message.title.split())  # The name of an entity may have several lines.
    mail["Message-ID"] = f"<{message.id}@tidemill>"
    mail.set_content(message.text + "\n")
    try:
        refused = send_mail(
            mail, channel.server, channel.port,
            timeout=parse_duration(channel.timeout, what="timeout"),
            tls=channel.tls, username=channel.username, password=channel.password,
            ca=channel.ca,
        )  # fmt: skip
    except OutboundMailError as error:
        raise NotSentError(str(error)) from error
    if refused:  # Sending it again would reach the others twice.
        log.warning("a mail was refused for some receivers", server=channel.server, receivers=refused)


async def _run(channel: Command, message: Notice) -> None:
    """Run a command."""
    argv = [part.replace("{title}", message.title).replace("{id}", message.id) for part in channel.argv]
    limit = parse_duration(channel.timeout, what="timeout")
    given, env = msgspec.json.encode(message.as_json()), {**os.environ, "TIDEMILL_MESSAGE_ID": message.id}
    try:
        ended = await run_external_command(argv, given, timeout=limit, env=env, keeps_output=False, most_errors=SHOWN)
    except TimeoutError as error:
        raise NotSentError(f"{argv[0]} did not end within {limit:g} s") from error
    except (OSError, ValueError) as error:
        raise NotSentError(f"{argv[0]} cannot be started: {error}") from error
    if ended.status:
        raise NotSentError(f"{argv[0]} ended with {ended.status}: {ended.errors.decode(errors='replace')}")
