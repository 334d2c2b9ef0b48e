"""Human input: what runs ask people, and the answers."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.encoding.json_rows import readable
from tidemill.core.errors import ConfigError, ConflictError, NotFoundError
from tidemill.declarations import Declarations
from tidemill.engine.runs.run_waits import run_waits
from tidemill.ops.operator.cursor import read_moment_cursor, write_moment_cursor
from tidemill.ops.operator.operation import Arguments, NameCursor, PageOf, doc, operation
from tidemill.ops.runs.journal import load_state
from tidemill.ops.runs.runs import RunRef, dag_kind, find_run, is_dag
from tidemill.store.connection.caller_connection import Statements, run_async
from tidemill.store.jobs.pages import RunId
from tidemill.store.runs.inbox import has_arrived
from tidemill.store.runs.inputs import answer_statements, is_asked, list_inputs as read_inputs
from tidemill.store.runs.runs import new_token
from tidemill.store.transaction import Reader

TAKEN_WITHIN = 3.0  # seconds that an answer to a flow waits for the run to take it


class ListInputs(Arguments, frozen=True, kw_only=True):
    """Which questions."""

    run: Annotated[RunId | None, doc("What this run asks.")] = None
    limit: Annotated[int, doc("How many to show on a page.", ge=1, le=1000)] = 200
    cursor: NameCursor = None


class SubmitInput(RunRef, frozen=True, kw_only=True):
    """The answer to a question of a run."""

    node: Annotated[str, doc("The node that asks.")]
    value: Annotated[Any, doc("The answer; to a flow, the fields of the event that it waits for.")]
    key: Annotated[str | None, doc("The same key again is the same answer: safe to submit twice.")] = None


class OpenInput(msgspec.Struct, frozen=True):
    """A question that a run waits for an answer to; `schema` is the JSON Schema that the answer must fit.

    A dag asks by a node. A flow asks by a step that waits for an event: then the answer is the event's fields.
    """

    run_id: int
    workflow: str
    shape: str
    node: str
    prompt: str
    schema: Any
    asked_at: datetime
    due_at: datetime | None


class InputSubmitted(msgspec.Struct, frozen=True):
    """Whether the run has taken the answer; if not, it is stored, and no run worker drives the run now."""

    taken: bool


@operation("GET /inputs", role="viewer")
async def list_inputs(at: Reader, args: ListInputs) -> PageOf[OpenInput]:
    """List the questions that all runs, or one, wait for an answer to."""
    if args.run is not None:
        await find_run(at, args.run)
    after = read_moment_cursor(args.cursor, tuple[datetime, int, str])
    rows = await read_inputs(at.database, run_id=args.run, after=after, limit=args.limit)
    items = [_input(readable(row, ("schema",))) for row in rows]
    last = items[-1] if len(items) == args.limit else None
    return PageOf(items, None if last is None else write_moment_cursor(last.asked_at, last.run_id, last.node))


@operation("POST /runs/{id}/inputs/{node:path}", role="operator")
async def submit_input(at: Reader, args: SubmitInput, declared: Declarations | None) -> InputSubmitted:
    """Answer what a run asks. The answer must fit the schema; the first that does counts.

    To a flow an answer is an event: every other step of the run that waits for such an event receives it too.
    """
    row = await _find_answerable(at, args)
    if is_dag(row):
        from tidemill.dags.errors import InputRefusedError
        from tidemill.dags.runner.dag_handle import DagHandle

        handle = DagHandle(at.database, dag_kind(declared), args.id, created=False)
        try:
            return InputSubmitted(await handle.submit(args.node, args.value, by=at.by, key=args.key))
        except InputRefusedError as error:
            raise ConflictError(str(error)) from error
    if declared is None:
        raise ConfigError(
            f"run r{args.id} is of flow {row['workflow']}, whose code makes an event of the answer: add --app app.py"
        )
    async with run_waits(at.database).watching(at.database) as watch:
        statements = await _answer_to_flow(at, args, declared.runs.flow(row["workflow"]).workflow)
        if statements is not None:
            async with at.transaction() as tx:
                await run_async(at.database, tx.connection, statements)
        give_up = asyncio.get_running_loop().time() + TAKEN_WITHIN
        while await is_asked(at.database, args.id, args.node):
            try:
                async with asyncio.timeout_at(give_up):
                    await watch.changed()
            except TimeoutError:
                return InputSubmitted(not await is_asked(at.database, args.id, args.node))
    return InputSubmitted(True)


async def prepare_answer(at: Reader, args: SubmitInput, declared: Declarations) -> Statements[None] | None:
    """The statements that store an answer that a run accepts now, for any connection; None if it has it already."""
    row = await _find_answerable(at, args)
    if not is_dag(row):
        return await _answer_to_flow(at, args, declared.runs.flow(row["workflow"]).workflow)
    from tidemill.dags.errors import InputRefusedError
    from tidemill.dags.reducer.events import Submission
    from tidemill.dags.runner.dag_handle import DagHandle

    handle = DagHandle(at.database, dag_kind(declared), args.id, created=False)
    try:
        return await handle.answer(Submission(args.node, args.value, at.by, args.key or new_token()))
    except InputRefusedError as error:
        raise ConflictError(str(error)) from error


async def _find_answerable(at: Reader, args: SubmitInput) -> Any:
    """The row of the run that is answered; an error if it takes no answers."""
    if not args.node:
        raise NotFoundError("name the node that is answered")
    row = await find_run(at, args.id)
    if row["state"] == "needs_attention":
        raise ConflictError(
            f"run r{args.id} needs attention and takes no answers: {row['note']}; once that is mended, "
            f"`tidemill retry r{args.id}` lets it go on, and it can be answered"
        )
    return row


async def _answer_to_flow(at: Reader, args: SubmitInput, workflow: Any) -> Statements[None] | None:
    """The statements that send a flow's run the event that an answer becomes; None if it was sent before."""
    from tidemill.flows.definition.declared import declared
    from tidemill.flows.runner.sending import event_tick
    from tidemill.flows.runner.steps.human_input import answer

    token = args.key or new_token()
    if await has_arrived(at.database, args.id, token):
        return None
    state = await load_state(at.database, args.id, workflow)
    asked = await is_asked(at.database, args.id, args.node)
    event = answer(declared(workflow).topology, state, args.node, args.value) if asked else None
    if event is None:
        open_now = [row["node"] for row in await read_inputs(at.database, run_id=args.id)]
        hint = did_you_mean(args.node, open_now) or (f"; it asks {', '.join(open_now)}" if open_now else "")
        raise ConflictError(
            f"run r{args.id} does not ask {args.node!r}, or was answered already (`tidemill inputs --run r{args.id}`)"
            f"{hint}"
        )
    tick = event_tick(event, None, token)
    return answer_statements(at.database, args.id, tick, by=at.by, node=args.node, value=args.value, key=token)


def _input(row: dict[str, Any]) -> OpenInput:
    return OpenInput(shape="dag" if is_dag(row) else "flow", **{name: row[name] for name in row if name != "kind"})
