"""One tick being reduced: what has changed so far, and what follows from it."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from tidemill.core.refs import RefResolver
from tidemill.core.ticks import Command, Publish
from tidemill.dags.definition.plan import DagPlan
from tidemill.dags.reducer.events import FINAL, NodeChanged, NodeFailure, NodeStatus
from tidemill.dags.reducer.state import UNSET, DagState, NodeState

RESULT_LIMIT = 256 * 1024


class DagLimits(msgspec.Struct, frozen=True):
    """The most bytes, as JSON, of one result and of all results of a map together."""

    result: int
    join: int


class Reduction(msgspec.Struct):
    """The state, the time, the nodes whose end has not been told to their followers, and the commands so far."""

    plan: DagPlan
    refs: RefResolver
    limits: DagLimits
    state: DagState
    at: float
    settled: deque[str]
    out: list[Command]
    narrate: bool

    def new_work(self, name: str) -> int:
        """A number for a piece of work of a node, which is under way from now on."""
        self.state.sequence += 1
        self.state.works[self.state.sequence] = name
        return self.state.sequence

    def finish(
        self, name: str, status: NodeStatus, *, result: Any = UNSET, error: NodeFailure | None = None, note: str = ""
    ) -> None:
        """A node has ended, once and for all; its followers will hear of it."""
        if self.close(name, status, result=result, error=error, note=note):
            self.settled.append(name)

    def close(
        self, name: str, status: NodeStatus, *, result: Any = UNSET, error: NodeFailure | None = None, note: str = ""
    ) -> bool:
        """A node has ended; False if it had ended before, and nothing changes."""
        node = self.state.nodes[name]
        if node.status in FINAL:
            return False
        node.status, node.result, node.error, node.note, node.ended = status, result, error, note, self.at
        self.state.open -= 1
        self.tell(name, node)
        return True

    def tell(self, name: str, node: NodeState) -> None:
        """Show where a node is to whoever follows the run."""
        if self.narrate:
            items = node.items
            done, total = (None, None) if items is None else (items.done, items.total)
            self.out.append(Publish(NodeChanged(name, node.status, self.at, node.note, done, total, node.error)))


def too_large(what: str, size: int, limit: int) -> NodeFailure:
    return NodeFailure(
        "too_large",
        f"{what} has {size:,} bytes as JSON, and at most {limit:,} are kept with a run; "
        "store large things elsewhere, and return where they are",
    )
