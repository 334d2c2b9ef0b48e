"""What runs ask people, and the answers: `tidemill inputs`, `tidemill submit`; of dags and of flows alike.

What runs are made of is loaded where it is needed: it takes a while, and a server needs none of it.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from rich.table import Table

from tidemill.cli.connection_options import ANYWHERE, ServerOptions, opened, operator
from tidemill.cli.render import ago, cut, out, print_json, read_json, table
from tidemill.cli.runs.reported_run import run_number
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.store.database import Database
from tidemill.store.runs.runs import list_inputs, show_run

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient


def inputs(*, run: str | None = None, limit: int = 200, json: bool = False, place: ServerOptions = ANYWHERE) -> None:
    """List what runs of dags and flows wait for a person to answer, the longest waiting first.

    Parameters
    ----------
    run
        Only what this run asks: r12.
    limit
        How many to show.
    json
        Print one JSON document.
    """
    if limit < 1:
        raise ConfigError(f"--limit {limit} would show nothing")
    wanted = None if run is None else run_number(run)

    async def stored(database: Database) -> list[dict[str, Any]]:
        if wanted is not None:
            await show_run(database, wanted)
        return [_told(dict(row)) for row in await list_inputs(database, run_id=wanted, limit=limit)]

    def served(server: RowClient) -> list[dict[str, Any]]:
        if wanted is not None:
            server.get("runs", wanted)
        return server.pages("inputs", limit=limit, run=wanted)

    rows = place.ask(stored, served)
    if json:
        return print_json(rows)
    if not rows:
        return out().print("nothing waits for a person", style="dim")
    out().print(_inputs_table(rows, datetime.now(UTC)))
    return out().print("\nanswer one with: tidemill submit RUN NODE JSON", style="dim")


def submit(
    id: str,
    node: str,
    answer: str,
    /,
    *,
    key: str | None = None,
    app: str | None = None,
    place: ServerOptions = ANYWHERE,
) -> None:
    """Answer what a run asks. The answer must fit the schema; the first that does counts.

    Parameters
    ----------
    id
        The run, as `tidemill inputs` shows it: r12.
    node
        The node that asks.
    answer
        The answer as JSON: '{"answer": "yes"}'. To a flow, the fields of the event that it waits for.
    key
        The same key again is the same answer: safe to say twice.
    app
        The application of the run, if it is of a flow or brings refs of its own: app.py. A server has it.
    """
    number, value = run_number(id), read_value(answer, "answer")
    if place.server_url is None:
        taken = asyncio.run(_submit(number, node, value, key, app, place))
    else:
        with place.remote() as server:
            taken = server.post("runs", number, "inputs", node, body={"value": value, "key": key})["taken"]
    if taken:
        return out().print(f"run r{number} has its answer to {node}")
    sys.stderr.write("warning: nobody drives the run now; the answer is looked at as soon as somebody does\n")
    return out().print(f"the answer to {node} of run r{number} is stored")


def read_value(text: str, what: str) -> Any:
    """A value from the command line, in JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise PayloadError(
            f"the {what} {text!r} is not JSON ({error}); a text stands in double quotes: '\"yes\"'"
        ) from error


async def _submit(number: int, node: str, value: Any, key: str | None, app: str | None, place: ServerOptions) -> bool:
    from tidemill.cli.dags.watch import dag_kind
    from tidemill.cli.run.roles import application
    from tidemill.dags.runner.dag_handle import DagHandle
    from tidemill.dags.runner.runner import DAG_KIND

    known = application(app, place) if app else None
    async with opened(place.settings() if known is None else known.settings) as database:
        if known is not None:
            return await known.runs.submit(database, number, node, value, by=operator(), key=key)
        row = await show_run(database, number)
        if row["kind"] != DAG_KIND:
            raise ConfigError(
                f"run r{number} is of flow {row['workflow']}, whose code makes an event of the answer: say --app app.py"
            )
        handle = DagHandle(database, dag_kind(), number, created=False)
        return await handle.submit(node, value, by=operator(), key=key)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    from tidemill.dags.runner.runner import DAG_KIND

    row["shape"] = "dag" if row.pop("kind") == DAG_KIND else "flow"
    return {**row, "schema": read_json(row["schema"])}


def _inputs_table(rows: list[dict[str, Any]], now: datetime) -> Table:
    made = table("run", "workflow", "node", "since", "due", "prompt", wide="prompt")
    for row in rows:
        made.add_row(
            f"r{row['run_id']}",
            row["workflow"],
            row["node"],
            ago(row["asked_at"], now),
            ago(row["due_at"], now),
            cut(row["prompt"]),
        )
    return made
