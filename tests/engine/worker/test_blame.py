"""Over random mixes of guilty and innocent jobs, with deaths of the workers that hold them: no innocent is blamed."""

from __future__ import annotations

import random

import msgspec
import pytest

from tests.simulation.seeds import seeds
from tidemill.core.blame import group_size
from tidemill.core.codec import encode
from tidemill.core.jobs.job import ClaimedJob, Finish, JobOptions
from tidemill.core.retry import retry
from tidemill.engine.worker.outcome import after_loss

LOSSES = 2


def a_job(number: int) -> ClaimedJob:
    options = encode(JobOptions(retry=retry(1, max_losses=LOSSES)))
    return ClaimedJob(number, 1, "default", "work", b"{}", options, 0, 0, keyed=False, expired=False)


@pytest.mark.parametrize("seed", seeds(30, 200))
def test_no_innocent_job_is_blamed_and_every_guilty_one_is(seed: int) -> None:
    chance = random.Random(seed)
    width, share = chance.choice([1, 4, 10, 50, 200]), chance.choice([0.01, 0.1, 0.5])
    waiting = {number: a_job(number) for number in range(chance.randint(1, 200))}
    guilty = {number for number in waiting if chance.random() < share}
    failed: dict[int, Finish] = {}
    deaths = 0
    while waiting:
        suspects = sorted((job for job in waiting.values() if job.suspicions), key=lambda job: job.suspicions)
        if suspects:  # In quarantine, those that are suspected as often run together.
            alike = [job for job in suspects if job.suspicions == suspects[0].suspicions]
            held = alike[: min(group_size(alike[0].suspicions), chance.randint(1, 64))]
        else:
            held = chance.sample(list(waiting.values()), min(width, len(waiting)))
        if not any(job.id in guilty for job in held):
            for job in held:
                del waiting[job.id]
            continue
        deaths += 1
        for job in held:
            end = after_loss(job, b"{}", held=len(held))
            if isinstance(end, Finish):
                failed[job.id] = end
                del waiting[job.id]
            else:
                waiting[job.id] = msgspec.structs.replace(
                    job, attempt=job.attempt + 1, losses=job.losses + end.lost, suspicions=end.suspicions or 0
                )
    assert failed.keys() == guilty
    assert all(end.note == f"its worker died {LOSSES} times while running it" for end in failed.values())
    assert deaths <= 8 * max(1, len(guilty)) + 3, "a guilty one is found after a few deaths"
