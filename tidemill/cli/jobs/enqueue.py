"""`tidemill enqueue`: put a job in from the command line."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from cyclopts import CycloptsError

from tidemill.app import App
from tidemill.cli.connection_options import ANYWHERE, Reach, opened, operator
from tidemill.cli.jobs.page import told_job
from tidemill.cli.render import print_json
from tidemill.cli.run.roles import application
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.job import FINAL_STATES, JobRef
from tidemill.engine.jobs.view import JobView
from tidemill.store.database import Database
from tidemill.store.jobs.read import show_job

if TYPE_CHECKING:
    from tidemill.cli.client import Remote

TOGETHER = 5000
SAY_WHY_AFTER = 2.0
ASK_FIRST, ASK_LONGEST = 0.05, 1.0


def enqueue(
    app: str,
    task: str | None = None,
    arguments: str | None = None,
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
    place: Reach = ANYWHERE,
) -> int:
    """Enqueue a job and print its id.

    With a database, APP TASK '{...}'; through a server, which has the application, TASK '{...}'.

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
    wish = {
        "delay": delay,
        "at": read_moment(at),
        "priority": priority,
        "queue": queue,
        "unique_key": unique_key,
        "unique_for": unique_for,
        "deadline": deadline,
        "tags": tag,
    }
    if place.server_url is not None:
        if arguments is not None or (task is not None and not task.lstrip().startswith("{")):
            raise ConfigError(f"the server has the application: leave out {app!r}, and write TASK '{{...}}'")
        new = {"task": app, "args": read_arguments(task or "{}"), **wish}
        with place.remote() as server:
            return _hand_over(server, new, count, wait=wait, json=json)
    if task is None:
        raise CycloptsError(msg="say which TASK of the application", command_chain=("enqueue",))
    known = application(app, place)
    known.acting_as = operator()
    known.tasks.require(task)
    given = read_arguments(arguments or "{}")
    return asyncio.run(_enqueue(known, task, {"args": given, **wish}, count, wait=wait, json=json))


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
    return _tell(refs, result, json=json)


def _hand_over(server: Remote, new: dict[str, Any], count: int, *, wait: bool, json: bool) -> int:
    """The same by a server."""
    refs = [msgspec.convert(server.post("jobs", body=new), JobRef) for _ in range(count)]
    if not json:
        _print_refs(refs)
    return _tell(refs, _wait_there(server, refs[0]) if wait else None, json=json)


def _tell(refs: list[JobRef], result: JobView | None, *, json: bool) -> int:
    """Print what is known now; returns the exit status."""
    if json and result is not None:
        print_json({**msgspec.to_builtins(refs[0]), **msgspec.structs.asdict(result)})
    elif json:
        print_json(refs[0] if len(refs) == 1 else refs)
    elif result is not None:
        _print_result(result)
    return 0 if result is None or result.state == "succeeded" else 1


async def _wait(known: App, database: Database, ref: JobRef) -> JobView:
    """The job's end; whoever has to wait for long is told what for."""
    reasons = Reasons()
    while True:
        try:
            return await known.wait(ref, timeout=SAY_WHY_AFTER)
        except TimeoutError:
            row = await show_job(database, ref.id)
        if row is not None:
            reasons.tell(told_job({**row, "due_in": max(0.0, row["due_in"])} if "due_in" in row else dict(row)))


def _wait_there(server: Remote, ref: JobRef) -> JobView:
    """The same, asking a server again and again: seldom, if it takes long."""
    reasons, began, pause = Reasons(), time.monotonic(), ASK_FIRST
    while True:
        row = server.row("jobs", ref.id)
        if row["state"] in FINAL_STATES:
            return msgspec.convert({**row, "errors": row["errors"] or []}, JobView)
        if time.monotonic() - began > SAY_WHY_AFTER:
            reasons.tell(row)
        time.sleep(pause)
        pause = min(pause * 1.5, ASK_LONGEST)


class Reasons:
    """Why a job does not start, told once; and again when it is due and something else is in the way."""

    def __init__(self) -> None:
        self._told: list[str] = []

    def tell(self, job: dict[str, Any]) -> None:
        why = job["why"][1:]
        if job["state"] in (*FINAL_STATES, "running") or why == self._told:
            return
        if not self._told or job["due_at"] <= datetime.now(UTC):
            sys.stderr.write(f"waiting: {' '.join(why)}\n")
            self._told = why


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
