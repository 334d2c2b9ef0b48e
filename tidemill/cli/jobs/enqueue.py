"""`tidemill enqueue`: put a job in from the command line."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from cyclopts import CycloptsError, Parameter

from tidemill.cli.arguments import Application, Json, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import print_json
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.printable import printable, printable_json
from tidemill.ops.jobs.jobs import (
    MOST_COPIES,
    EnqueueCopies,
    Enqueued,
    EnqueueJob,
    Job,
    enqueue_copies,
    enqueue_job,
)
from tidemill.ops.operator.operation import Operator
from tidemill.ops.waiting import wait_for_job

EXPLAIN_AFTER = 2.0


@options_of(EnqueueJob, without=("args", "tags"))
def enqueue(
    new: EnqueueJob,
    app: Application,
    task: Annotated[str | None, Parameter(help="The name of the task.")] = None,
    arguments: Annotated[str | None, Parameter(help="Its arguments as a JSON object.")] = None,
    /,
    *,
    at: Annotated[str | None, Parameter(help="Not before this date and time: 2030-01-31T12:00:00+01:00.")] = None,
    tag: Annotated[list[str] | None, Parameter(help="A tag to find it by; may be repeated.")] = None,
    count: Annotated[int, Parameter(help="Enqueue it this many times.")] = 1,
    wait: Annotated[
        bool, Parameter(help="Wait for it to end and print its result; the exit status says whether it succeeded.")
    ] = False,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> int:
    """Enqueue a job and print its id.

    With a database, APP TASK '{...}'; through a server, which has the application, TASK '{...}'.
    """
    if count < 1:
        raise ConfigError(f"--count {count} would enqueue nothing")
    if wait and count > 1:
        raise ConfigError("--wait waits for one job: leave out --count")
    source: str | None = app
    if connection.server_url is not None:
        if arguments is not None or (task is not None and not task.lstrip().startswith("{")):
            raise ConfigError(f"the server has the application: leave out {app!r}, and write TASK '{{...}}'")
        source, task, arguments = None, app, task
    if task is None:
        raise CycloptsError(msg="say which TASK of the application", command_chain=("enqueue",))
    job = msgspec.structs.replace(new, task=task, args=read_arguments(arguments or "{}"), at=read_time(at), tags=tag)

    async def work(operator: Operator) -> int:
        found = await _enqueue(operator, job, count)
        if not json:
            _print_ids(found)
        ended = (
            await wait_for_job(operator, found[0].id, each=Explanations().print_new, every=EXPLAIN_AFTER)
            if wait
            else None
        )
        if json:
            print_json(_as_json(found, ended))
        elif ended is not None:
            _print_result(ended)
        return 0 if ended is None or ended.state == "succeeded" else 1

    return connection.run(work, app=source)


def read_arguments(text: str) -> dict[str, Any]:
    """A task's arguments from the command line."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise PayloadError(f"the arguments {text!r} are not JSON ({error}); write '{{\"name\": value}}'") from error
    if not isinstance(found, dict):
        raise PayloadError(f"the arguments {text!r} are not a JSON object; write '{{\"name\": value}}'")
    return found


def read_time(text: str | None) -> datetime | None:
    """A date and time from the command line; without a time zone, in the one of this machine."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"--at {text!r} is not a moment; write 2030-01-31T12:00:00+01:00") from error


class Explanations:
    """Says on stderr why a job does not start: once, and again when it is due and the reason is another."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._printed: list[str] = []

    def print_new(self, job: Job) -> None:
        why = job.why[1:]
        if time.monotonic() - self._began < EXPLAIN_AFTER or job.state == "running" or why == self._printed:
            return
        if not self._printed or job.due_at <= datetime.now(UTC):
            sys.stderr.write(f"waiting: {printable(' '.join(why))}\n")
            self._printed = why


async def _enqueue(at: Operator, job: EnqueueJob, count: int) -> list[Enqueued]:
    if count == 1:
        return [await at.do(enqueue_job, job)]
    found: list[Enqueued] = []
    while len(found) < count:
        some = min(MOST_COPIES, count - len(found))
        found += (await at.do(enqueue_copies, EnqueueCopies(**msgspec.structs.asdict(job), count=some))).items
    return found


def _as_json(found: list[Enqueued], ended: Job | None) -> Any:
    if ended is not None:
        return {"created": found[0].created, **msgspec.structs.asdict(ended)}
    return found[0] if len(found) == 1 else found


def _print_ids(found: list[Enqueued]) -> None:
    if len(found) == 1:
        print(found[0].id, flush=True)
        if not found[0].created:
            sys.stderr.write(f"nothing new: job {found[0].id} holds this unique key\n")
    else:
        ids = [each.id for each in found]
        print(f"{len(set(ids)):,} jobs: {min(ids)} to {max(ids)}", flush=True)


def _print_result(job: Job) -> None:
    if job.state == "succeeded":
        print(printable_json(msgspec.json.encode(job.result).decode()))
    else:
        sys.stderr.write(f"error: job {job.id} {job.state}: {printable(job.note or 'no reason was given')}\n")
