"""Answers to what runs ask people, from async and plain code, also in a transaction of the caller."""

from __future__ import annotations

from typing import Any, TypedDict

from typing_extensions import Unpack

from tidemill.core.accounts import Caller
from tidemill.core.did_you_mean import refuse_unknown
from tidemill.core.errors import ConfigError
from tidemill.declarations import Declarations
from tidemill.ops.operator.local import Local
from tidemill.ops.runs.inputs import SubmitInput, prepare_answer, submit_input
from tidemill.store.connection.caller_connection import Statements, run_async, run_sync
from tidemill.store.database import Database
from tidemill.store.transaction import Reader


class SubmitOptions(TypedDict, total=False):
    """The options of `submit`."""

    by: str | None
    """The person who answers, for the audit trail; the application, if not given."""
    key: str | None
    """The same key again is the same answer: it is safe to submit twice."""


async def submit(
    declared: Declarations, run: Any, node: str, value: Any, /, conn: Any = None, **options: Unpack[SubmitOptions]
) -> bool:
    """Answer what a run asks: see `App.submit`."""
    args, by = _read(declared, run, node, value, **options)
    if conn is None:
        return (await _do(await declared.reach(), declared, args, by)).taken
    statements = await _prepare(await declared.reach(), declared, args, by)
    if statements is not None:
        await run_async(declared.connections.unopened, conn, statements)
    return statements is None


def submit_sync(
    declared: Declarations, run: Any, node: str, value: Any, /, conn: Any = None, **options: Unpack[SubmitOptions]
) -> bool:
    """`submit` for plain code."""
    args, by = _read(declared, run, node, value, **options)
    connections = declared.connections
    if conn is None:
        return connections.call(lambda opened: _do(opened.database, declared, args, by)).taken
    statements = connections.call(lambda opened: _prepare(opened.database, declared, args, by))
    if statements is not None:
        run_sync(connections.unopened, conn, statements)
    return statements is None


def _read(declared: Declarations, run: Any, node: str, value: Any, **options: Any) -> tuple[SubmitInput, str]:
    refuse_unknown("submit", options, [*SubmitOptions.__annotations__, "conn"])
    number = run if isinstance(run, int) else getattr(run, "id", None)
    if not isinstance(number, int):
        raise ConfigError(f"submit takes a run, such as app.start returns, or its number, and not {run!r:.100}")
    by = options.get("by") or f"app {declared.name}"
    return SubmitInput(id=number, node=node, value=value, key=options.get("key")), by


async def _do(database: Database, declared: Declarations, args: SubmitInput, by: str) -> Any:
    return await Local(database, Caller(by, "admin"), declared).do(submit_input, args)


async def _prepare(database: Database, declared: Declarations, args: SubmitInput, by: str) -> Statements[None] | None:
    return await prepare_answer(Reader(database, by), args, declared)
