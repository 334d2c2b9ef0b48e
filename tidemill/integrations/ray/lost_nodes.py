"""The nodes that jobs were lost with."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from tidemill.engine.worker.isolation import MachineLost

AVOIDED_S = 120.0
_NODE_ID = re.compile(r"node ID: ([0-9a-f]{56})")


class LostNodes:
    """Nodes to avoid: Ray goes on to place tasks on a lost node until it has missed enough heartbeats."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: dict[str, float] = {}

    def note(self, error: BaseException) -> None:
        """Note the node that the error of a lost job names, if it does."""
        if isinstance(error, MachineLost) and (found := _NODE_ID.search(str(error.__cause__))) is not None:
            self._until[found[1]] = self._now() + AVOIDED_S

    def elsewhere(self) -> dict[str, Any]:
        """The options of a Ray task that runs on no such node."""
        now = self._now()
        self._until = {node: until for node, until in self._until.items() if until > now}
        if not self._until:
            return {}
        return {"label_selector": {"ray.io/node-id": f"!in({','.join(self._until)})"}}
