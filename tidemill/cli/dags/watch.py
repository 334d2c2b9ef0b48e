"""Looking at a run of a dag, once, at an earlier tick, or again and again until it ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.live import Live

from tidemill.cli.connection_options import ServerOptions, opened
from tidemill.cli.dags.page import RunPage, live, page, page_json, sheet_from, sheet_of
from tidemill.cli.jobs.page import json_text
from tidemill.cli.render import out, print_json, short
from tidemill.cli.run.roles import application
from tidemill.cli.runs.reported_run import served_run
from tidemill.core.errors import ConfigError
from tidemill.core.refs import RefResolver
from tidemill.core.ticks import CancelAsked
from tidemill.dags.errors import DagError
from tidemill.dags.reducer.journal import decode_tick
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.reducer.state import DagState
from tidemill.dags.runner.runner import DAG_KIND, DagKind
from tidemill.dags.view.view import DagView, NodeLine
from tidemill.ops.json_rows import readable
from tidemill.store.database import Database
from tidemill.store.jobs.read import show_jobs_of_run
from tidemill.store.runs.runs import load_run, read_ticks, show_run
from tidemill.store.runs.workers import count_run_workers

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient

EVERY = 0.25
COST_RATIO = 10  # looking may take a tenth of the time, however much there is to read
JOBS_ON_PAGE, JOBS_LIVE = 200, 30
LEAST_ROOM = 40  # lines of the tree at the end, when it has been followed


class Watched(Protocol):
    """A run that can be looked at."""

    async def look(self, *, jobs: int) -> RunPage: ...


class RunWatch:
    """A run in the database that is looked at repeatedly: each time only what has happened since is read."""

    def __init__(self, database: Database, number: int, kind: DagKind) -> None:
        self._database = database
        self._number = number
        self._kind = kind
        self._row: Mapping[str, Any] = {}
        self._held: tuple[DagProgram, DagState] | None = None
        self._seq = 0

    async def look(self, *, jobs: int = JOBS_ON_PAGE) -> RunPage:
        """The run as it is now."""
        if self._held is None:
            row, snapshot, ticks = await load_run(self._database, self._number)
            require_dag(row)
            self._held, self._seq = restored(self._kind, row, snapshot, ticks), row["seq"]
        else:
            row = await show_run(self._database, self._number)
            if row["seq"] > self._seq:
                program, state = self._held
                for tick in await read_ticks(self._database, self._number, after=self._seq):
                    program.reduce(state, decode_tick(tick["data"]))
                    self._seq = tick["seq"]
        program, state = self._held
        if row["state"] == "cancelled" and state.status == "running":  # It needed attention: nobody has told its nodes.
            program.reduce(state, CancelAsked(row["ended_at"].timestamp(), row["note"] or ""))
        found = await show_jobs_of_run(self._database, self._number, limit=jobs) if state.works else []
        return sheet_of(
            DagView(
                row=dict(row),
                program=program,
                state=state,
                now=time.time(),
                jobs=[readable(dict(job)) for job in found],
                all_jobs=len(found) < jobs,
                run_workers=await count_run_workers(self._database, DAG_KIND),
            )
        )


class ServedWatch:
    """A run that a server tells of."""

    def __init__(self, server: RowClient, number: int) -> None:
        self._server = server
        self._number = number

    async def look(self, *, jobs: int = JOBS_ON_PAGE, at: int | None = None) -> RunPage:
        """The run as it is now, or was after one of its ticks; the server chooses of which jobs it tells."""
        tree = self._server.get("runs", self._number, "tree", at=at)
        run = self._server.row("runs", self._number)  # After its tree: of one that has ended, this has the result.
        return sheet_from(served_run(run), tree)


async def look_back(database: Database, number: int, kind: DagKind, at: int) -> RunPage:
    """The run as it was after one of its ticks."""
    row = await show_run(database, number)
    require_dag(row)
    ticks = await read_ticks(database, number)
    if not 0 <= at <= len(ticks):
        raise ConfigError(f"run r{number} has ticks 1 to {len(ticks)}; there is no tick {at}")
    program, state = restored(kind, row, None, [tick["data"] for tick in ticks[:at]])
    now = decode_tick(ticks[at - 1]["data"]).at if at else row["created_at"].timestamp()
    return sheet_of(DagView(row=dict(row), program=program, state=state, now=now, tick=at))


def restored(kind: DagKind, row: Any, snapshot: bytes | None, ticks: list[bytes]) -> tuple[DagProgram, DagState]:
    """A run from what is stored of it."""
    try:
        return kind.restore(row["input"], snapshot, ticks)
    except DagError as error:
        raise ConfigError(
            f"{error}; if the application of run r{row['id']} brings refs of its own, say --app app.py"
        ) from error


def require_dag(row: Any) -> None:
    """An error if a run is not one of a dag."""
    if row["kind"] != DAG_KIND:
        raise ConfigError(
            f"run r{row['id']} is of workflow {row['workflow']}, and not of a dag: tidemill run r{row['id']}"
        )


def dag_kind(refs: RefResolver | None = None) -> DagKind:
    """What is needed to read runs of dags; only a run worker needs their tasks."""
    return DagKind({}, refs)


def show(sheet: RunPage, *, json: bool) -> None:
    """Print a run once."""
    if json:
        return print_json(page_json(sheet))
    console = out()
    return console.print(page(sheet, console.width))


def show_run_of_dag(
    number: int, *, at: int | None, followed: bool, app: str | None, json: bool, place: ServerOptions
) -> int:
    """Show a run of a dag once, at an earlier tick, or until it ends; returns the exit status."""
    if at is not None and followed:
        raise ConfigError("--at shows the past and --follow the present: say one of them")

    async def told(watch: Watched) -> int:
        if followed:
            return await follow_run(watch, json=json)
        show(await watch.look(jobs=JOBS_ON_PAGE), json=json)
        return 0

    async def stored() -> int:
        known = application(app, place) if app else None
        kind = known.runs.dag_kind if known else dag_kind()
        async with opened(place.settings() if known is None else known.settings) as database:
            if at is None:
                return await told(RunWatch(database, number, kind))
            show(await look_back(database, number, kind, at), json=json)
            return 0

    async def served(server: RowClient) -> int:
        watch = ServedWatch(server, number)
        if at is None:
            return await told(watch)
        show(await watch.look(at=at), json=json)
        return 0

    if place.server_url is None:
        return asyncio.run(stored())
    with place.remote() as server:
        return asyncio.run(served(server))


async def follow_run(watch: Watched, *, json: bool) -> int:
    """Show a run until it has ended; returns the exit status."""
    if json:
        sheet = await _until_end(watch, lambda sheet: None)
        print_json(page_json(sheet))
    elif sys.stdout.isatty():
        sheet = await _draw(watch)
    else:
        sheet = await _until_end(watch, Changes().tell)
        _tell_end(sheet)
    return 0 if sheet.state == "succeeded" else 1


async def _draw(watch: Watched) -> RunPage:
    console = Console(file=sys.stdout, highlight=False, emoji=False, markup=False)
    with Live(console=console, auto_refresh=False, redirect_stderr=False, transient=True) as drawing:
        sheet = await _until_end(
            watch, lambda sheet: drawing.update(live(sheet, console.width, console.height), refresh=True)
        )
    console.print(page(sheet, console.width, room=max(LEAST_ROOM, console.height)))
    return sheet


async def _until_end(watch: Watched, tell: Callable[[RunPage], None]) -> RunPage:
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        sheet = await watch.look(jobs=JOBS_LIVE)
        tell(sheet)
        if sheet.state != "running":
            return sheet
        await asyncio.sleep(max(EVERY, (loop.time() - began) * COST_RATIO))


class Changes:
    """Tells what has changed since the last time, a line each: for pipes and logs."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._said: list[str] = []

    def tell(self, sheet: RunPage) -> None:
        path: list[str] = []
        for line in sheet.lines:
            depth = len(line.branch) // 3 - 1
            path = [*path[:depth], line.label]
            if line.branch.endswith("· "):
                continue
            name = "/".join(path)
            if self._before.get(name, "pending") != line.state:
                print(f"{datetime.now(UTC):%H:%M:%S}  {name:<24} {_told(line)}".rstrip(), flush=True)
            self._before[name] = line.state
        said = [] if sheet.ended else sheet.why
        if sheet.unkept and not sheet.ended and said != self._said:
            sys.stderr.write(" ".join(said) + "\n")
        self._said = said


def _told(line: NodeLine) -> str:
    took = "" if line.took is None or line.state in ("queued", "running", "waiting") else f"  {short(line.took)}"
    return f"{line.state:<10}{took}{f'  {line.why}' if line.why else ''}"


def _tell_end(sheet: RunPage) -> None:
    row = sheet.run
    if sheet.state == "succeeded":
        print(json_text(row["result"]))
    else:
        sys.stderr.write(f"error: run {sheet.id} {sheet.state}: {row['note'] or 'no reason was given'}\n")
