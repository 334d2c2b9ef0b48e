"""Random programs give the same on `llama-index-workflows`, on Tidemill in memory, and durably under faults.

    TIDEMILL_DIFFERENTIAL_PROGRAMS=300 TIDEMILL_DIFFERENTIAL_SEED=$RANDOM python -m pytest -s tests/flows/differential

The seed is printed; with the same seed the same programs are drawn.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.flows.differential.dialects import Dialect, ours, theirs
from tests.flows.differential.engines import (
    FAULTS,
    NO_FAULTS,
    apart_from_unhandled,
    once_each,
    run,
    run_in_memory,
    run_simulated,
)
from tests.flows.differential.programs import Batch, Program, Subclassed, programs

pytest.importorskip("workflows", reason="llama-index-workflows is not installed: there is nothing to compare with")

PROGRAMS = int(os.environ.get("TIDEMILL_DIFFERENTIAL_PROGRAMS", "40"))
SEED = int(os.environ.get("TIDEMILL_DIFFERENTIAL_SEED", "1"))

drawn = settings(
    max_examples=PROGRAMS,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.generate],  # Smaller programs are tried for minutes: they are added where a failure is looked into.
    print_blob=False,
)


@pytest.fixture(scope="module")
def dialects() -> tuple[Dialect, Dialect]:
    print(f"\n{PROGRAMS} programs, TIDEMILL_DIFFERENTIAL_SEED={SEED}")
    return theirs(), ours()


def test_programs_give_the_same_in_memory(dialects: tuple[Dialect, Dialect]) -> None:
    there, here = dialects

    @seed(SEED)
    @drawn
    @given(programs())
    def compare(program: Program) -> None:
        result_here, reported = apart_from_unhandled(run(run_in_memory(program, here)))
        result_there, reported_there = apart_from_unhandled(run(run_in_memory(program, there)))
        assert result_here == result_there, f"seed {SEED}"
        assert reported >= reported_there, f"seed {SEED}"  # Theirs leaves some out, by chance, if the run ends soon.

    compare()


def test_programs_give_the_same_durably_under_faults(dialects: tuple[Dialect, Dialect]) -> None:
    _, here = dialects

    @seed(SEED)
    @drawn
    @given(programs(free=True))
    def compare(program: Program) -> None:
        in_memory = run(run_in_memory(program, here))
        assert run_simulated(program, here, SEED, NO_FAULTS) == in_memory, f"seed {SEED}"
        assert once_each(run_simulated(program, here, SEED, FAULTS)) == once_each(in_memory), f"seed {SEED}"

    compare()


def test_a_sum_survives_the_death_of_its_owner(dialects: tuple[Dialect, Dialect]) -> None:
    """Six steps add to one number at the same time; their owner dies when two of them have, and have not ended."""
    _, here = dialects
    adding = Batch(count=2, body=("add", "own", "show", "mark"), workers=4)
    stages = (
        Subclassed(body=("rest", "mark", "own", "add")),
        Batch(count=3, body=("own",), workers=1, drops=True, take=2, inner=adding, two_joins=True),
        Subclassed(body=("rest", "mark", "own", "add")),
        Subclassed(body=("add", "own", "show", "mark")),
    )
    program = Program(stages=stages, n=1, typed=True)
    state = run_simulated(program, here, 18444, FAULTS).state
    assert state is not None
    assert state["total"] == 1264
