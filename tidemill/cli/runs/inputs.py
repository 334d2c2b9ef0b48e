"""`tidemill inputs` lists what runs of dags and flows ask people; `tidemill submit` answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.table import Table

from tidemill.cli.arguments import AppOption, Json, RunId, Shown, run_number
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.paging import read_pages
from tidemill.cli.render import ago, cut, out, show, table
from tidemill.core.errors import PayloadError
from tidemill.engine.explain import answer_command
from tidemill.ops.runs.inputs import ListInputs, OpenInput, SubmitInput, list_inputs, submit_input


def inputs(
    *, run: RunId | None = None, limit: Shown = 200, json: Json = False, connection: ServerOptions = ANYWHERE
) -> None:
    """List what runs of dags and flows wait for a person to answer, the longest waiting first."""
    args = ListInputs(run=None if run is None else run_number(run))
    rows, _ = connection.run(lambda at: read_pages(at, list_inputs, args, limit))
    show(rows, _inputs_table, json=json, none="no run waits for input")
    if rows and not json:
        first = answer_command(rows[0].run_id, rows[0].node, rows[0].schema)
        code = " --app app.py" if rows[0].shape == "flow" else ""
        out().print(f"\nanswer the first with: {first}{code}", style="dim", soft_wrap=True)


def submit(
    id: RunId,
    node: Annotated[str, Parameter(help="The node that asks.")],
    answer: Annotated[
        str,
        Parameter(
            help='The answer as JSON: \'{"answer": "yes"}\'. To a flow, the fields of the event that it waits for.'
        ),
    ],
    /,
    *,
    key: Annotated[str | None, Parameter(help="The same key again is the same answer: safe to submit twice.")] = None,
    app: AppOption = None,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Answer what a run asks. The answer must fit the schema; the first that does counts."""
    number, value = run_number(id), read_value(answer, "answer")
    if connection.do(submit_input, SubmitInput(id=number, node=node, value=value, key=key), app=app).taken:
        return out().print(f"run r{number} has its answer to {node}")
    sys.stderr.write("warning: no run worker drives the run now; the answer is taken as soon as one does\n")
    return out().print(f"the answer to {node} of run r{number} is stored")


def read_value(text: str, what: str) -> Any:
    """A value from the command line, in JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise PayloadError(
            f"the {what} {text!r} is not JSON ({error}); a string needs double quotes: '\"yes\"'"
        ) from error


def _inputs_table(rows: Sequence[OpenInput], now: datetime) -> Table:
    made = table("run", "workflow", "node", "since", "due", "prompt", wide="prompt")
    for row in rows:
        made.add_row(
            f"r{row.run_id}", row.workflow, row.node, ago(row.asked_at, now), ago(row.due_at, now), cut(row.prompt)
        )
    return made
