"""`tidemill batch`: jobs that are followed and cancelled as one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import AppOption, Json, Shown, id_number, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.jobs.enqueue import read_time
from tidemill.cli.paging import read_pages
from tidemill.cli.render import ago, counted, cut, out, print_json, show as show_rows, state, table
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.ops.jobs.batches import (
    BatchDetails,
    BatchLine,
    BatchNumber,
    EnqueueBatch,
    ListBatches,
    cancel_batch,
    close_batch,
    enqueue_batch,
    get_batch,
    list_batches,
)

commands = App(name="batch", help="List batches of jobs; show, enqueue, close or cancel one.")

Id = Annotated[str, Parameter(help="The batch, as `tidemill batch` shows it: b12.")]


@commands.default
@options_of(ListBatches)
def batches(args: ListBatches, *, limit: Shown = 25, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """List batches, the newest first."""
    rows, cursor = connection.run(lambda at: read_pages(at, list_batches, args, limit))
    none = "no batches yet: `await app.batch(calls)` enqueues one" if args.state is None else "no batch matches"
    show_rows(rows, batches_table, json=json, none=none, cursor=cursor)


@commands.command
def show(id: Id, /, *, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """Show one batch: how many of its jobs ended how, and what it waits for."""
    _print(connection.do(get_batch, _number(id)), json=json)


@commands.command
@options_of(EnqueueBatch, positional=("task",), without=("each", "tags"))
def enqueue(
    args: EnqueueBatch,
    arguments: Annotated[Path, Parameter(help="A file with the arguments of each job: one JSON object per line.")],
    /,
    *,
    at: Annotated[str | None, Parameter(help="Not before this date and time: 2030-01-31T12:00:00+01:00.")] = None,
    tag: Annotated[list[str] | None, Parameter(help="A tag to find its jobs by; may be repeated.")] = None,
    app: AppOption = None,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Enqueue jobs of a task as a batch."""
    args = msgspec.structs.replace(args, each=read_lines(arguments), at=read_time(at), tags=tag)
    made = connection.do(enqueue_batch, args, app=app)
    print_json(made) if json else out().print(f"b{made.id}: {counted(made.total, 'job')}")


@commands.command
def close(id: Id, /, *, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """Let a batch that was kept open end when its jobs have."""
    _print(connection.do(close_batch, _number(id)), json=json)


@commands.command
def cancel(id: Id, /, *, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """Cancel the unfinished jobs of a batch."""
    _print(connection.do(cancel_batch, _number(id)), json=json)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The arguments of jobs, from a file with one JSON object per line."""
    found: list[dict[str, Any]] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.MsgspecError as error:
                raise PayloadError(f"line {number} of {path} is not a JSON object: {error}") from error
    return found


def batches_table(rows: Sequence[BatchLine], now: datetime) -> Table:
    columns = ("batch", "state", "jobs", "unfinished", "succeeded", "failed", "when", "name")
    made = table(*columns, numbers=columns[2:6], wide="name")
    for row in rows:
        made.add_row(
            f"b{row.id}",
            state(row.state),
            f"{row.total:,}",
            f"{row.unfinished:,}",
            f"{row.succeeded:,}",
            Text(f"{row.failed:,}", style="red" if row.failed else ""),
            ago(row.ended_at or row.created_at, now),
            cut(row.name),
        )
    return made


def _print(batch: BatchDetails, *, json: bool) -> None:
    if json:
        print_json(batch)
        return
    console = out()
    console.print(Text.assemble((f"batch b{batch.id}  ", "bold"), state(batch.state), f"  {batch.name or ''}"))
    for sentence in batch.why:
        console.print(f"  {sentence}", soft_wrap=True, markup=False)


def _number(id: str) -> BatchNumber:
    return BatchNumber(id=id_number("batch", id))
