"""The handle of a dag run: await its result, inspect its nodes, answer its input nodes, cancel and rerun it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidemill.core.codec import decode, encode
from tidemill.core.duration import Duration
from tidemill.core.errors import NotFoundError
from tidemill.core.ticks import CancelAsked, Received
from tidemill.dags.definition.model import UNSET
from tidemill.dags.errors import DagRunError, InputRefusedError
from tidemill.dags.reducer.events import RunFailure, Submission
from tidemill.dags.reducer.inputs import check_submission
from tidemill.dags.reducer.journal import encode_tick
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.reducer.state import DagState
from tidemill.dags.runner.cancel_node import cancel_node
from tidemill.dags.runner.rerun import rerun_input
from tidemill.dags.view.explain import TreeRow, explain, tree
from tidemill.dags.view.load import load_state
from tidemill.engine.event_wait import handle_timeout, wait_until_done
from tidemill.engine.runs.run_waits import run_waits
from tidemill.store.connection.caller_connection import Statements, run_async
from tidemill.store.database import Database
from tidemill.store.jobs.read import show_jobs_of_run
from tidemill.store.runs.inbox import cancel_run
from tidemill.store.runs.inputs import answer_statements, is_asked, list_inputs
from tidemill.store.runs.runs import repeated, show_run, store_run
from tidemill.store.transaction import transaction

if TYPE_CHECKING:
    from tidemill.dags.runner.runner import DagKind

_MOST_JOBS = 200
_VERDICT_WITHIN = 5.0


class DagHandle:
    """The handle of a dag run; `await handle` returns its result or raises a `DagRunError` with the failed nodes."""

    def __init__(
        self,
        database: Database,
        kind: DagKind,
        number: int,
        *,
        created: bool = True,
        near: asyncio.Future[Any] | None = None,
    ) -> None:
        self.id = number
        self.created = created
        self._database = database
        self._kind = kind
        self._near = near

    def __repr__(self) -> str:
        return f"<run r{self.id} of a dag>"

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.result().__await__()

    async def result(self, *, timeout: Duration | None = None) -> Any:
        """Wait for the end of the run and return its result. Raises TimeoutError after `timeout`.

        A run that cannot go on by itself raises a `DagRunError` with the reason.
        """
        async with handle_timeout(timeout, f"run r{self.id} has not ended", f"r{self.id}"):
            if self._near is not None:
                await wait_until_done(self._near)
                self._near = None
            row = await run_waits(self._database).end_of(self._database, self.id)
        if row["state"] == "succeeded":
            return None if row["result"] is None else decode(row["result"])
        if row["state"] == "needs_attention":
            raise DagRunError(f"run r{self.id} needs attention: {row['note'] or 'the reason is unknown'}")
        failure = (
            RunFailure(row["state"], row["note"] or "") if row["error"] is None else decode(row["error"], RunFailure)
        )
        raise DagRunError(f"run r{self.id} {row['state']}: {failure.message}", nodes=failure.nodes)

    async def state(self) -> str:
        """Return the state of the run: running, needs_attention, succeeded, failed, cancelled or expired."""
        return (await show_run(self._database, self.id))["state"]

    async def load(self) -> tuple[DagProgram, DagState]:
        """Return the program of the run and its current stored state."""
        return (await load_state(self._database, self._kind, self.id))[1:]

    async def tree(self) -> list[TreeRow]:
        """Return every node with its state and progress, in order."""
        return tree(*await self.load())

    async def explain(self, node: str) -> str:
        """Explain why a node waits, was skipped, failed or is blocked."""
        program, state = await self.load()
        sentence = explain(program, state, node)
        if state.nodes[node].status != "running":
            return sentence
        works = {work for work, name in state.works.items() if name == node}
        jobs = [
            job for job in await show_jobs_of_run(self._database, self.id, limit=_MOST_JOBS) if job["work"] in works
        ]
        return f"{sentence}; {_about(min(jobs, key=lambda job: job['state'] != 'no_worker'))}" if jobs else sentence

    async def inputs(self) -> list[dict[str, Any]]:
        """Return the open input nodes of the run."""
        return [dict(row) for row in await list_inputs(self._database, run_id=self.id)]

    async def submit(self, node: str, value: Any, *, by: str, key: str | None = None, conn: Any = None) -> bool:
        """Answer an input node. An answer that is not accepted raises an `InputRefusedError` with the reason.

        A submission with the same `key` is a duplicate: it is safe to submit again after a lost connection. Returns
        whether the run has processed the answer; if not, it is stored, and no run worker drives the run now. `conn` is
        your own open connection: the answer is sent if and only if your transaction commits.
        """
        given = Submission(node, value, by, key or secrets.token_urlsafe(12))
        statements = await self.answer(given)
        if statements is None:
            return True
        if conn is not None:
            await run_async(self._database, conn, statements)
            return False
        with suppress(NotFoundError):  # A run that has ended meanwhile has taken another answer, or none.
            async with self._database.transaction(patience=30.0) as connection:
                await run_async(self._database, connection, statements)
        return await self._wait_for_answer(given)

    async def answer(self, given: Submission) -> Statements[None] | None:
        """The statements that store an answer, for any connection; None if the run has it already."""
        verdict = check_submission(*await self.load(), given)
        if verdict.repeated:
            return None
        if not verdict.accepted:
            raise InputRefusedError(verdict.reason)
        tick = encode_tick(Received(time.time(), given, given.node))
        who: Any = {"by": given.by, "node": given.node, "value": given.value, "key": given.key}
        return answer_statements(self._database, self.id, tick, **who)

    async def cancel(self, reason: str = "cancelled by the user") -> None:
        """Cancel the run: waiting nodes are cancelled at once, running ones as soon as they can be stopped."""
        await cancel_run(self._database, self.id, encode_tick(CancelAsked(time.time(), reason)), reason=reason)

    async def cancel_node(self, node: str, reason: str | None = None, *, by: str = "") -> list[str]:
        """Cancel a node with all that follows from it; the others go on. Returns the nodes that are cancelled."""
        # Loaded before the transaction opens, because that takes a connection of its own.
        program, state = await self.load()
        async with transaction(self._database, by=by) as tx:
            return await cancel_node(tx, self.id, program, state, node, reason=reason)

    async def rerun(self, *, start: str | None = None, edited: Any = UNSET, by: str = "") -> DagHandle:
        """Start a rerun of the nodes that did not succeed; with `start`, also of that node and its dependents.

        `edited` replaces the arguments of that node, or is the answer if it is an input node.
        """
        row, program, old = await load_state(self._database, self._kind, self.id)
        given = rerun_input(row["input"], program, old, start=start, edited=edited)
        new = repeated(row, input=given, origin=encode({"by": by, "repeats": self.id}))
        number, _ = await store_run(self._database, new)
        return DagHandle(self._database, self._kind, number)

    async def _wait_for_answer(self, given: Submission) -> bool:
        """Wait a few seconds until the run has processed the answer; returns False if it has not.

        Another answer may have been accepted first, or no run worker may drive the run now."""
        give_up = time.monotonic() + _VERDICT_WITHIN
        async with run_waits(self._database).watching(self._database) as watch:
            while await is_asked(self._database, self.id, given.node):
                if time.monotonic() >= give_up:
                    return False
                await watch.changed()
        verdict = check_submission(*await self.load(), given)
        if not verdict.repeated:
            raise InputRefusedError(verdict.reason)
        return True


def _about(job: Any) -> str:
    """Describe an unfinished job in a few words."""
    why = f": {job['note']}" if job["note"] else ""
    if job["state"] == "running":
        return f"its job {job['id']} runs, attempt {job['attempt']}{why}"
    if not job["serving"]:
        return f"its job {job['id']} waits, and no worker serves queue {job['queue']}"
    where = (
        "waits for a worker whose code knows its task and its arguments (no_worker)"
        if job["state"] == "no_worker"
        else f"waits in queue {job['queue']}"
    )
    return f"its job {job['id']} {where}{why}"
