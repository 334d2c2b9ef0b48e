"""How a step collects several events of a batch.

    async def join(self, drafts: list[Draft]) -> StopEvent                                all of a batch
    async def first(self, drafts: Annotated[list[Draft], Collect(Take(2))]) -> StopEvent  the first two

A batch is the events that one step returned as a list. It closes when all work that follows from its events has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cardinality:
    """The number of events with which a collecting step runs: `All()` or `Take(n)`."""


@dataclass(frozen=True)
class All(Cardinality):
    """The step runs once, when the batch closes, with all events that arrived."""


@dataclass(frozen=True)
class Take(Cardinality):
    """The step runs once, when the n-th event arrives, with the first n; with fewer if the batch closes before."""

    n: int

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"Take({self.n!r}): the number of events to take must be a whole number of 1 or more")


@dataclass(frozen=True)
class Collect:
    """Annotates a `list[E]` parameter, inside `Annotated`, with the number of events that it takes."""

    cardinality: Cardinality = field(default_factory=All)
