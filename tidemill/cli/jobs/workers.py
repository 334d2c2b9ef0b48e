"""`tidemill workers`: who works, and what operators want of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.table import Table
from rich.text import Text

from tidemill.cli.connection_options import ANYWHERE, Reach, operator
from tidemill.cli.render import ago, names, out, print_json, read_json, state, table
from tidemill.store.database import Database
from tidemill.store.jobs.workers import Mode, list_workers, set_control

if TYPE_CHECKING:
    from tidemill.cli.client import Remote

commands = App(name="workers", help="List workers; pause, drain, stop or resume them.")


@commands.default
def workers(*, json: bool = False, place: Reach = ANYWHERE) -> None:
    """List the workers that live, and those that ended in the last hour.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    rows = place.ask(_list, lambda server: server.items("workers"))
    if json:
        return print_json(rows)
    if not rows:
        return out().print("no worker runs: tidemill worker app.py", style="dim")
    return out().print(workers_table(rows, datetime.now(UTC)))


@commands.command
def pause(host: str, queue: str, /, *, place: Reach = ANYWHERE) -> None:
    """Let workers take no more jobs; those in hand finish.

    Parameters
    ----------
    host
        The host as `tidemill workers` names it; '*' for all.
    queue
        The queue; '*' for all.
    """
    _control(place, host, queue, "pause")


@commands.command
def drain(host: str, queue: str, /, *, place: Reach = ANYWHERE) -> None:
    """Let workers take no more jobs and give back those that have not started; running ones finish.

    Parameters
    ----------
    host
        The host as `tidemill workers` names it; '*' for all.
    queue
        The queue; '*' for all.
    """
    _control(place, host, queue, "drain")


@commands.command
def stop(host: str, queue: str, /, *, place: Reach = ANYWHERE) -> None:
    """Let workers give back everything, running jobs too; the processes stay.

    Parameters
    ----------
    host
        The host as `tidemill workers` names it; '*' for all.
    queue
        The queue; '*' for all.
    """
    _control(place, host, queue, "stop")


@commands.command
def resume(host: str, queue: str, /, *, place: Reach = ANYWHERE) -> None:
    """Let workers work again.

    Parameters
    ----------
    host
        The host as `tidemill workers` names it; '*' for all.
    queue
        The queue; '*' for all.
    """
    _control(place, host, queue, "run")


def workers_table(rows: list[dict[str, Any]], now: datetime) -> Table:
    made = table("worker", "status", "queues", "busy", "seen", "up", "remark", numbers=("busy",), wide="remark")
    for row in rows:
        ended = row["ended_at"] is not None
        made.add_row(
            f"{row['host']}:{row['pid']}#{row['id']}",
            state(row["status"] if ended or row["lease_until"] > now else "silent"),
            names(row["queues"]),
            "" if ended else f"{row['running']}/{row['concurrency']}",
            ago(row["seen_at"], now),
            ago(row["started_at"], now).removesuffix(" ago"),
            _remark(row, now),
            style="dim" if ended else None,
        )
    return made


def _remark(row: Mapping[str, Any], now: datetime) -> Text:
    if row["ended_at"] is not None:
        return Text(row["end_reason"] or "")
    if row["lease_until"] <= now:
        return Text("its lease has lapsed: others take over its jobs", style="red")
    if row["flagged_at"] is not None:
        return Text("silent while it owns running jobs: look at the process", style="bold red")
    if row["control"]:
        return Text(names(row["control"]), style="yellow")
    return Text(f"models: {names(row['models'])}" if row["models"] else "")


async def _list(database: Database) -> list[dict[str, Any]]:
    return [{**row, "versions": read_json(row["versions"])} for row in await list_workers(database)]


def _control(place: Reach, host: str, queue: str, mode: Mode) -> None:
    async def stored(database: Database) -> tuple[str, int]:
        before = await set_control(database, host, queue, mode, by=operator())
        living = await list_workers(database, ended_within=0.0)
        return before, sum(_is_meant(dict(row), host, queue) for row in living)

    def served(server: Remote) -> tuple[str, int]:
        done = server.post("workers", "control", body={"mode": mode, "host": host, "queue": queue})
        return done["before"], done["workers"]

    before, meant = place.ask(stored, served)
    if mode == "run" and before == "run":
        out().print(f"nothing was held for {host}/{queue}: the remarks of `tidemill workers` show what is")
        return
    verb = "runs again" if mode == "run" else mode
    who = "1 worker" if meant == 1 else f"{meant} workers"
    out().print(f"{host}/{queue}: {verb} (was {before}); {who} concerned now")


def _is_meant(row: Mapping[str, Any], host: str, queue: str) -> bool:
    return host in (row["host"], "*") and (queue == "*" or queue in row["queues"])
