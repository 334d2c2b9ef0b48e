"""A turn of runs is one statement: what it was given is what is stored."""

import pytest

from tidemill.store.database import Database
from tidemill.store.runs.run_turn import NewRun, RunTurn
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
