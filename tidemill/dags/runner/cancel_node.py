"""Cancel one node of a dag run, with all that follows from it; the other nodes go on."""

from __future__ import annotations

import time

from tidemill.core.errors import ConflictError, NotFoundError
from tidemill.core.ticks import Received
from tidemill.dags.errors import no_node
from tidemill.dags.reducer.events import FINAL, NodeCancel
from tidemill.dags.reducer.journal import encode_tick
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.reducer.state import DagState
from tidemill.store.runs.inbox import send_within
from tidemill.store.transaction import Transaction


async def cancel_node(
    tx: Transaction, run_id: int, program: DagProgram, state: DagState, node: str, *, reason: str | None = None
) -> list[str]:
    """Ask a run to cancel a node; returns the nodes that it cancels, in order."""
    if node not in program.plan.steps or program.plan.steps[node].kind == "enter":
        raise NotFoundError(no_node(program.dag.name, node, program.plan.steps))
    if state.status != "running":
        raise ConflictError(f"run r{run_id} has ended already: {state.status}")
    if (status := state.nodes[node].status) in FINAL:
        raise ConflictError(f"node {node!r} of run r{run_id} has ended already: {status}")
    names = [name for name in program.cancelled_with(state, node) if program.plan.steps[name].kind != "enter"]
    tick = encode_tick(Received(time.time(), NodeCancel(node, tx.by, reason or ""), node))
    if not await send_within(tx, run_id, tick):
        raise ConflictError(f"run r{run_id} has ended")
    await tx.audit("run.cancel_node", f"r{run_id} {node}", after={"reason": reason, "nodes": names})
    return names
