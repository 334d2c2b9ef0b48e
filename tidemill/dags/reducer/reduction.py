"""The work in progress of one reduction: changes and commands that follow from one tick."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from tidemill.core.expressions.refs import RefResolver
from tidemill.core.ticks import Command, Publish
from tidemill.dags.definition.plan import DagPlan
from tidemill.dags.reducer.events import FINAL, NodeChanged, NodeFailure, NodeStatus
from tidemill.dags.reducer.state import UNSET, DagState, NodeState

RESULT_LIMIT = 256 * 1024


class DagLimits(msgspec.Struct, frozen=True):
    """The maximum size in bytes, as JSON, of one result and of all results of a map together."""

    result: int
    join: int


class Reduction(msgspec.Struct):
    """The state, the time, the ended nodes whose dependents are not updated yet, and the commands so far."""

    plan: DagPlan
    refs: RefResolver
    limits: DagLimits
    state: DagState
    at: float
    settled: deque[str]
    out: list[Command]
    narrate: bool

    def new_work(self, name: str) -> int:
        """Allocate the id of a piece of work of a node, and record it as running."""
        self.state.sequence += 1
        self.state.works[self.state.sequence] = name
        return self.state.sequence

    def finish(
        self, name: str, status: NodeStatus, *, result: Any = UNSET, error: NodeFailure | None = None, note: str = ""
    ) -> None:
        """End a node and schedule the update of its dependents."""
        if self.close(name, status, result=result, error=error, note=note):
            self.settled.append(name)

    def close(
        self, name: str, status: NodeStatus, *, result: Any = UNSET, error: NodeFailure | None = None, note: str = ""
    ) -> bool:
        """End a node; returns False and changes nothing if it had already ended."""
        node = self.state.nodes[name]
        if node.status in FINAL:
            return False
        node.status, node.result, node.error, node.note, node.ended = status, result, error, note, self.at
        self.state.open -= 1
        self.publish(name, node)
        return True

    def publish(self, name: str, node: NodeState) -> None:
        """Publish the state of a node."""
        if self.narrate:
            items = node.items
            done, total = (None, None) if items is None else (items.done, items.total)
            self.out.append(Publish(NodeChanged(name, node.status, self.at, node.note, done, total, node.error)))


def too_large(what: str, size: int, limit: int) -> NodeFailure:
    return NodeFailure(
        "too_large",
        f"{what} has {size:,} bytes as JSON, but a run keeps at most {limit:,}; "
        "store large data elsewhere, and return a reference to it",
    )
