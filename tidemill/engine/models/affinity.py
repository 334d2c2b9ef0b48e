"""Which model a worker serves next: the loaded one, as long as no job waits for too long. Pure.

Within a queue and priority, jobs whose model is loaded, or fits without evicting another, go before older jobs whose
model would need an eviction. A job that has been overtaken in this way for longer than the worker's patience goes
first: the worker then switches models, and stays with the new one for as long as its patience lasts. So a job is
overtaken for at most about one patience per other model, however long the queue is; and a worker with a long queue
switches models once per patience and not with every job.

A higher priority always goes first, whatever its model. A job is only claimed if its model fits beside those of the
held jobs: otherwise it could not start, while another worker may have memory for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

from tidemill.core.clock import Clock
from tidemill.core.jobs.job import PRIORITIES
from tidemill.engine.models.cache import ModelCache
from tidemill.store.jobs.claims.model_claims import Head

Fits = Callable[[str, Iterable[str]], bool]


def choose_heads(
    heads: Sequence[Head], *, warm: Collection[str], needed: Collection[str], fits: Fits, patience: float, stint: float
) -> list[Head]:
    """What to claim, in order, from the waiting jobs.

    `warm` are the loaded models, `needed` those of the held jobs; `fits(model, others)` says whether a model fits
    beside others; `stint` is how long the worker has stayed with its models.
    """
    in_the_way = {*warm, *needed}

    def is_cold(head: Head) -> bool:
        return head.model is not None and head.model not in warm and not fits(head.model, in_the_way)

    first = _passed_over(heads, is_cold, patience) if stint >= patience else None
    if first is not None and first.model is not None:
        if fits(first.model, needed):
            return [first]
        # The model waits for held jobs: claim nothing that keeps other models loaded.
        return [head for head in heads if head.model is None and head.priority >= first.priority]
    chosen: list[Head] = []
    needed = set(needed)
    for queue in dict.fromkeys(head.queue for head in heads):
        for head in _in_order([head for head in heads if head.queue == queue], is_cold):
            if head.model is None:
                chosen.append(head)
            elif fits(head.model, needed):
                chosen.append(head)
                needed.add(head.model)
            else:
                break  # Lower priorities must wait.
    return chosen


def _passed_over(heads: Sequence[Head], is_cold: Callable[[Head], bool], patience: float) -> Head | None:
    """The job that has waited longest beyond the patience, among the highest priority of each queue."""
    highest: dict[str, int] = {}
    for head in heads:
        highest[head.queue] = max(head.priority, highest.get(head.queue, 0))
    late = [head for head in heads if head.priority == highest[head.queue] and head.waited >= patience]
    return max((head for head in late if is_cold(head)), key=lambda head: head.waited, default=None)


def _in_order(heads: list[Head], is_cold: Callable[[Head], bool]) -> list[Head]:
    return sorted(heads, key=lambda head: (-head.priority, is_cold(head), -head.waited))


class Affinity:
    """A worker's preference for its loaded models, and when it last switched them."""

    def __init__(self, models: ModelCache, patience: float, clock: Clock, *, lowest_first: bool) -> None:
        self.models = models
        self._lowest_first = lowest_first
        self.patience = patience
        self._clock = clock
        self._changed_at = -math.inf

    def choose(self, heads: Sequence[Head], needed: Collection[str]) -> list[Head]:
        """What to claim, in order, from the waiting jobs, beside held jobs that need these models."""
        since = self._changed_at if self.models.loaded_at is None else max(self._changed_at, self.models.loaded_at)
        chosen = choose_heads(
            self._turned(heads),
            warm=self.models.warm(),
            needed={*needed, *self.models.in_use()},
            fits=self.models.fits_beside,
            patience=self.patience,
            stint=self._clock.monotonic() - since,
        )
        return self._turned(chosen)

    def _turned(self, heads: Sequence[Head]) -> list[Head]:
        """The jobs with their priorities turned around, if the lowest goes first here."""
        if not self._lowest_first:
            return list(heads)
        return [head._replace(priority=PRIORITIES[-1] - head.priority) for head in heads]

    def claimed(self, model: str | None) -> None:
        """Record a claim for a model; if it is not loaded yet, the worker switches to it."""
        if model is not None and model not in self.models.warm():
            self._changed_at = self._clock.monotonic()
