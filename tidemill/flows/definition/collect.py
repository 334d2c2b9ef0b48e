"""How a step takes several events at once.

    async def join(self, drafts: list[Draft]) -> StopEvent                                all of a batch
    async def first(self, drafts: Annotated[list[Draft], Collect(Take(2))]) -> StopEvent  the first two

A batch is what one step returned as a list. It is closed when everything that came of its members has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cardinality:
    """When a collecting step runs, and with how many events: `All()` or `Take(n)`."""


@dataclass(frozen=True)
class All(Cardinality):
    """Once, when the batch is closed, with everything that arrived."""


@dataclass(frozen=True)
class Take(Cardinality):
    """Once, at the n-th arrival, with the first n; with fewer if the batch closes before."""

    n: int

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"Take({self.n!r}): the number of events to take must be a whole number of 1 or more")


@dataclass(frozen=True)
class Collect:
    """Marks a `list[E]` parameter, inside `Annotated`, with how much of a batch it takes."""

    cardinality: Cardinality = field(default_factory=All)
