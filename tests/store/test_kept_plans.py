"""Statements of the hot path are planned once: while the tables are empty, and for whatever they will hold later."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.store.database import Database
from tidemill.store.jobs.claims.claims import CLAIM_JOBS, PLAIN_CLAIMS, SUCCEED_AND_CLAIM
from tidemill.store.jobs.claims.fair_claims import (
    CLAIM_FAIR_JOBS,
    FIND_LANES,
    SUCCEED_AND_CLAIM_FAIR,
    SUCCEED_CLAIM_AND_WALK,
)
from tidemill.store.jobs.schedules.schedules import NEXT_SCHEDULED, TAKE_DUE
from tidemill.store.runs.inbox import DUE_INBOX
from tidemill.store.runs.run_turn import JobKeys, JobRow, RunTurn
from tidemill.store.runs.turns import ONE_TICK, _Turns

GROWING = {"job", "inbox", "run", "tick", "run_input"}
MANY_SCHEDULES = """
INSERT INTO tidemill.schedule (name, task, queue, spec, job, catchup, decided, next_fire, declared_by)
SELECT 'later' || n, 'noop', 'default', '{}', '{}', 'skip', 0, now() + n * interval '1 minute', 'program'
FROM generate_series(1, 3000) AS n
"""
COUNT_PARAMETERS = "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'kept'"
JOB = JobRow("default", "noop", b"{}", 5, None, 0.0, None, None, None, None, None, None)


def whole_turn() -> str:
    """A turn of which every part is needed."""
    going = RunTurn(
        1,
        0,
        1,
        ticks=[b"{}"],
        used=[1],
        timers={"a": None, "b": 1.0},
        jobs=[(1, JOB), (2, JOB._replace(keys=JobKeys("key", 1, "tenant", None, None, None)))],
        stops=[2],
        keeps_decisions=True,
        answered=["ask"],
    )
    return _Turns(1, 1, [going, RunTurn(2, 0, 1, ticks=[b"{}"], state="succeeded", result=b"null")]).statement


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(whole_turn(), id="a turn of runs"),
        pytest.param(ONE_TICK, id="a tick of one run"),
        pytest.param(DUE_INBOX, id="what is due for runs"),
        pytest.param(CLAIM_JOBS, id="a claim"),
        pytest.param(SUCCEED_AND_CLAIM, id="a turn of a worker"),
        pytest.param(PLAIN_CLAIMS.hand_over_and_claim, id="a turn of a worker whose jobs are followed by others"),
        pytest.param(CLAIM_FAIR_JOBS, id="a claim from lanes"),
        pytest.param(SUCCEED_AND_CLAIM_FAIR, id="a turn of a worker over lanes"),
        pytest.param(SUCCEED_CLAIM_AND_WALK, id="a turn of a worker that walks on"),
        pytest.param(FIND_LANES, id="the lanes of a queue"),
    ],
)
async def test_a_plan_made_for_empty_tables_finds_every_row_by_a_key(database: Database, statement: str) -> None:
    await database.run(lambda connection: connection.execute("ANALYZE"))
    connection = await database.connect_to_look_up()
    try:
        await connection.execute(f"PREPARE kept AS {statement}")
        given: Any = await connection.fetchval(COUNT_PARAMETERS)
        nothing = ", ".join(["NULL"] * given)
        told: Any = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE kept ({nothing})")
    finally:
        await connection.close()
    scans = [node for node in walk(json.loads(told)[0]["Plan"]) if node.get("Relation Name") in GROWING]
    looked_up = [node for node in scans if node["Node Type"].endswith("Scan")]
    assert looked_up
    for node in looked_up:
        assert node["Node Type"] in ("Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Tid Scan"), node
        assert {"Index Cond", "Recheck Cond", "TID Cond"} & node.keys(), json.dumps(node)[:900]


def walk(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan's nodes, from the top."""
    yield plan
    for part in plan.get("Plans", []):
        yield from walk(part)


async def test_no_statement_is_compiled_by_the_server(database: Database) -> None:
    """Where it is on, as it is by default on many servers, every claim would take tens of milliseconds more."""
    connection = await database.connect_to_look_up()
    try:
        assert await connection.fetchval("SHOW jit") == "off"
    finally:
        await connection.close()


@pytest.mark.parametrize("statement", [TAKE_DUE, NEXT_SCHEDULED])
async def test_due_schedules_are_found_without_reading_all_of_them(database: Database, statement: str) -> None:
    await database.fetch(MANY_SCHEDULES)
    await database.run(lambda connection: connection.execute(database.sql("ANALYZE tidemill.schedule")))
    rows = await database.fetch(f"EXPLAIN (FORMAT JSON) {statement}")
    scans = [node for node in walk(json.loads(rows[0][0])[0]["Plan"]) if node.get("Relation Name") == "schedule"]
    assert {node.get("Index Name") for node in scans} == {"schedule_due"}
