"""`tidemill enqueue`: put a job in from the command line."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime
from typing import Any

import msgspec

from tidemill.app import App
from tidemill.cli.page import readable
from tidemill.cli.place import HERE, Place, opened, operator
from tidemill.cli.render import print_json
from tidemill.cli.roles import application
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.job import JobRef
from tidemill.engine.jobview import JobView
from tidemill.engine.why import explain_job
from tidemill.store.database import Database
from tidemill.store.inspect import show_job

TOGETHER = 5000
SAY_WHY_AFTER = 2.0


def enqueue(
    app: str,
    task: str,
    arguments: str = "{}",
    /,
    *,
    delay: str | None = None,
    at: str | None = None,
    priority: int | None = None,
    queue: str | None = None,
    unique_key: str | None = None,
    unique_for: str | None = None,
    deadline: str | None = None,
    tag: list[str] | None = None,
    count: int = 1,
    wait: bool = False,
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Enqueue a job and print its id.

    Parameters
    ----------
    app
        The application: app.py, app.py:name or package.module.
    task
        The name of the task.
    arguments
        Its arguments as a JSON object.
    delay
        Not before this long from now: 30s, 5m, 1h30m.
    at
        Not before this moment: 2030-01-31T12:00:00+01:00.
    priority
        0 to 9; 9 goes first.
    queue
        Another queue than the task's own.
    unique_key
        No second unfinished job of this task with this key.
    unique_for
        Hold the unique key for this long.
    deadline
        Drop the job if it has not started within this time.
    tag
        A tag to find it by; say it again for more.
    count
        Enqueue it this many times.
    wait
        Wait for it to end and print its result; the exit status says whether it succeeded.
    json
        Print one JSON document.
    """
    if count < 1:
        raise ConfigError(f"--count {count} would enqueue nothing")
    if wait and count > 1:
        raise ConfigError("--wait waits for one job: leave out --count")
    known = application(app, place)
    known.acting_as = operator()
    known.tasks.require(task)
    wish = {
        "args": read_arguments(arguments),
        "delay": delay,
        "at": read_moment(at),
        "priority": priority,
        "queue": queue,
        "unique_key": unique_key,
        "unique_for": unique_for,
        "deadline": deadline,
        "tags": tag,
    }
    return asyncio.run(_enqueue(known, task, wish, count, wait=wait, json=json))


def read_arguments(text: str) -> dict[str, Any]:
    """A task's arguments from the command line."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise PayloadError(f"the arguments {text!r} are not JSON ({error}); write '{{\"name\": value}}'") from error
    if not isinstance(found, dict):
        raise PayloadError(f"the arguments {text!r} are not a JSON object; write '{{\"name\": value}}'")
    return found


def read_moment(text: str | None) -> datetime | None:
    """A moment from the command line; without a time zone, the one of this machine is meant."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"--at {text!r} is not a moment; write 2030-01-31T12:00:00+01:00") from error


async def _enqueue(known: App, task: str, wish: dict[str, Any], count: int, *, wait: bool, json: bool) -> int:
    async with opened(known.settings) as database:
        try:
            refs: list[JobRef] = []
            for start in range(0, count, TOGETHER):
                some = min(TOGETHER, count - start)
                refs += await asyncio.gather(*(known.enqueue(task, **wish) for _ in range(some)))
            if not json:
                _print_refs(refs)
            result = await _wait(known, database, refs[0]) if wait else None
        finally:
            await known.close()
    if json and result is not None:
        print_json({**msgspec.to_builtins(refs[0]), **msgspec.structs.asdict(result)})
    elif json:
        print_json(refs[0] if count == 1 else refs)
    elif result is not None:
        _print_result(result)
    return 0 if result is None or result.state == "succeeded" else 1


async def _wait(known: App, database: Database, ref: JobRef) -> JobView:
    """The job's end; whoever has to wait for long is told what for."""
    told: list[str] = []
    while True:
        try:
            return await known.wait(ref, timeout=SAY_WHY_AFTER)
        except TimeoutError:
            row = await show_job(database, ref.id)
        if row is None or row["state"] == "running" or row["due_in"] is None:
            continue
        why = explain_job({**readable(dict(row)), "due_in": max(0.0, row["due_in"])})[1:]
        if why != told and (not told or row["due_in"] <= 0):
            sys.stderr.write(f"waiting: {' '.join(why)}\n")
            told = why


def _print_refs(refs: list[JobRef]) -> None:
    if len(refs) == 1:
        print(refs[0].id, flush=True)
        if not refs[0].created:
            sys.stderr.write(f"nothing new: job {refs[0].id} holds this unique key\n")
    else:
        ids = [ref.id for ref in refs]
        print(f"{len(set(ids)):,} jobs: {min(ids)} to {max(ids)}", flush=True)


def _print_result(result: JobView) -> None:
    if result.state == "succeeded":
        print(msgspec.json.encode(result.result).decode())
    else:
        sys.stderr.write(f"error: job {result.id} {result.state}: {result.note or 'no reason was given'}\n")
