"""A turn of runs is one statement: what it was given is what is stored."""

import msgspec
import pytest

from tidemill.core.jobs.job import NewJob
from tidemill.store.database import Database
from tidemill.store.runs.run_turn import NewRun, RunTurn, job_row
from tidemill.store.runs.turns import commit_turn

OWNER = 1
NOTES = ['said "no"', "a\\b", "{1,2}", "two\nlines", "null", " ", "Ünïcödé 🌊", None]


def begun(number: int) -> RunTurn:
    return RunTurn(number, 0, 1, ticks=[b"{}"], new=NewRun("kind", "work, flow", "v1", b'{"n": 1}'))


@pytest.mark.parametrize("results", [[b"null"] * len(NOTES), [b'{"a": [1, null]}', None] * (len(NOTES) // 2)])
async def test_notes_and_results_of_ended_runs_are_stored_as_they_were_given(
    database: Database, results: list[bytes | None]
) -> None:
    numbers = [901 + index for index in range(len(NOTES))]
    async with database.acquire() as connection:
        await commit_turn(database, connection, OWNER, 1, [begun(number) for number in numbers])
        ends = [
            RunTurn(number, 1, 2, ticks=[b"{}"], state="failed", note=note, result=result)
            for number, note, result in zip(numbers, NOTES, results, strict=True)
        ]
        assert await commit_turn(database, connection, OWNER, 2, ends) == set(numbers)
    rows = await database.fetch("SELECT note, result, workflow, input FROM tidemill.run ORDER BY id")
    assert [row["note"] for row in rows] == NOTES
    assert [row["result"] for row in rows] == results
    assert {(row["workflow"], row["input"]) for row in rows} == {("work, flow", b'{"n": 1}')}


@pytest.mark.parametrize(("state", "kept"), [("needs_attention", [5]), ("failed", [])])
async def test_a_run_that_stops_for_attention_loses_only_the_jobs_that_it_stops(
    database: Database, state: str, kept: list[int]
) -> None:
    """Its operator may let it go on, with what its jobs give."""
    first = begun(901)
    first.jobs = [(work, job_row(NewJob("far", "task", msgspec.Raw(b"{}")))) for work in (4, 5)]
    async with database.acquire() as connection:
        await commit_turn(database, connection, OWNER, 1, [first])
        stop = RunTurn(901, 1, 2, ticks=[b"{}"], stops=[4], state=state, note="it does not follow its record")
        assert await commit_turn(database, connection, OWNER, 2, [stop]) == {901}
    rows = await database.fetch("SELECT work FROM tidemill.job WHERE cancel_reason IS NULL")
    assert [row["work"] for row in rows] == kept
