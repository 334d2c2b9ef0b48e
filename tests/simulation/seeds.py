"""Which seeds are simulated, what goes wrong under each, and how one is seen again."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tidemill.engine.simulation.simulation import Faults

#: Set to see one seed again, with its whole history: TIDEMILL_SEED=7 pytest tests/simulation/... -k Chain
REPLAY = "TIDEMILL_SEED"


def seeds(sample: int, all_seeds: int) -> list[Any]:
    """Parameters of a test, one per seed: a sample, and the others, which only `-m long` simulates."""
    if replayed() is not None:
        return [int(str(replayed()))]
    return [*range(sample), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(sample, all_seeds))]


def batches(sample: int, all_seeds: int) -> list[Any]:
    """The same in two parameters: the sample, and the others."""
    if replayed() is not None:
        return [seeds(sample, all_seeds)]
    others = pytest.param(range(sample, all_seeds), id="others", marks=pytest.mark.long)
    return [pytest.param(range(sample), id="sample"), others]


def replayed() -> str | None:
    return os.environ.get(REPLAY)


def drawn(seed: int, *, happened: int) -> Faults:
    """What goes wrong under a seed, in a run that takes so many things to happen when nothing does."""
    chance = random.Random(f"faults of {seed}")
    return Faults(
        crashes=chance.choice([0, 1, 1, 2, 3]),
        pauses=chance.choice([0, 0, 1, 2]),
        cuts=chance.choice([0, 0, 1, 2]),
        stops=chance.choice([0, 0, 1]),
        slow=chance.choice([0.0, 0.0, 0.02, 0.1]),
        lost=chance.choice([0.0, 0.2, 1.0]),
        repeated=chance.choice([0.0, 0.3]),
        within=round(1.2 * happened),
    )


def again(file: str, name: str, seed: int) -> str:
    """How to see a seed again."""
    return f"to see it again: {REPLAY}={seed} pytest {file} -k '{name}' -s"
