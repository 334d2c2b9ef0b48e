"""The calls that a process died in are known to the next one, and over any mix of calls only the guilty are refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.simulation.seeds import seeds
from tidemill.core.blame import group_size
from tidemill.engine.containment.crash_record import (
    CrashRecord,
    RefusedCallError,
    call_key,
    died_in_call,
    make_crash_memory,
)

A, B, C = (call_key("build", name) for name in "abc")


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = make_crash_memory()
    yield descriptor
    os.close(descriptor)


def die_in(memory: int, *keys: str) -> None:
    """A process that ends without ending these calls."""
    record = CrashRecord(memory)
    record.count_death("build")
    for key in keys:
        record.begin(key)


def test_a_real_process_that_dies_in_a_call_leaves_it_behind(memory: int) -> None:
    program = f"""if True:
        import os
        from tidemill.engine.containment.crash_record import CrashRecord
        record = CrashRecord({memory})
        record.end(record.begin({A!r}))
        record.begin({B!r})
        os._exit(9)
    """
    assert subprocess.run([sys.executable, "-c", program], pass_fds=(memory,)).returncode == 9
    assert died_in_call(memory)
    record = CrashRecord(memory)
    assert not died_in_call(memory)
    assert record.count_death("monitor") == []
    assert record.count_death("build") == [B]


def test_a_call_that_a_process_died_in_alone_is_refused_after_max_losses(memory: int) -> None:
    for _ in range(3):
        die_in(memory, A)
    record = CrashRecord(memory)
    record.count_death("build")
    with pytest.raises(RefusedCallError, match="its process died 3 times while it ran nothing else"):
        record.begin(A)
    record.end(record.begin(B))


def test_calls_that_a_process_died_in_together_are_suspects_until_they_end_well(memory: int) -> None:
    die_in(memory, A, B, C)
    record = CrashRecord(memory)
    assert sorted(record.count_death("build")) == [A, B, C]
    assert [record.suspicions(key) for key in (A, B, C)] == [1, 1, 1]
    record.clear(A)
    assert record.has_suspects
    assert [record.suspicions(key) for key in (A, B, C)] == [0, 1, 1]


def test_a_call_that_has_blocked_its_process_is_refused_and_others_are_not_blamed(memory: int) -> None:
    record = CrashRecord(memory)
    record.begin(A)
    record.begin(B)
    record.refuse(A, "it blocked the event loop for 60s")
    record.forget_running()
    after = CrashRecord(memory)
    assert after.count_death("build") == []
    with pytest.raises(RefusedCallError, match="it blocked the event loop for 60s"):
        after.begin(A)
    after.begin(B)


def test_a_key_that_is_too_long_is_noted_by_its_hash(memory: int) -> None:
    first, second = call_key("build", "x" * 5000), call_key("build", "x" * 5001)
    assert first != second
    die_in(memory, first)
    assert CrashRecord(memory).count_death("build") == [first]


@pytest.mark.parametrize("seed", seeds(30, 200))
def test_no_innocent_call_is_refused_and_every_guilty_one_is(seed: int, memory: int) -> None:
    chance = random.Random(seed)
    width, count = chance.choice([1, 2, 5, 20, 100]), chance.randint(1, 60)
    keys = [call_key("build", str(number)) for number in range(count)]
    guilty = {key for key in keys if chance.random() < chance.choice([0.02, 0.1, 0.5])}
    left, refused, deaths = set(keys), set(), 0
    while left:
        record = CrashRecord(memory)
        record.count_death("build")
        dead = False
        while left and not dead:
            suspects = sorted((key for key in left if record.suspicions(key)), key=record.suspicions)
            some = suspects[: group_size(record.suspicions(suspects[0]))] if suspects else sorted(left)[:width]
            begun = []
            for key in some:
                try:
                    begun.append((key, record.begin(key)))
                except RefusedCallError:
                    refused.add(key)
                    left.discard(key)
            dead = any(key in guilty for key, _ in begun)
            for key, slot in () if dead else begun:
                record.end(slot)
                record.clear(key)
                left.discard(key)
        deaths += dead
    assert refused == guilty
    assert deaths <= 8 * max(1, len(guilty)) + 3, "a guilty one is found after a few deaths"
