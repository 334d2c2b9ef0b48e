"""Deleting a person's data: nothing of it stays anywhere, and nothing that unfinished work needs is broken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import running_worker
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.ops.admin.forget import ForgetData, forget_data
from tidemill.store.database import Database

ANN = "ann-4711"

COLUMNS = """
SELECT c.table_name AS "table", c.column_name AS "column" FROM information_schema.columns AS c
JOIN information_schema.tables AS t USING (table_schema, table_name)
WHERE c.table_schema = 'tidemill' AND t.table_type = 'BASE TABLE'
  AND c.data_type IN ('text', 'json', 'jsonb', 'bytea', 'ARRAY')
"""


async def places_of(database: Database, text: str) -> set[str]:
    """Every column of every table that holds this text."""
    found = set()
    for row in await database.fetch(COLUMNS):
        shown = f"encode({row['column']}, 'escape')" if row["column"] in ("payload", "content", "body") else None
        shown = shown or f"CASE WHEN true THEN {row['column']}::text END"
        if row["column"] == "payloads":
            shown = "(SELECT string_agg(encode(p, 'escape'), ' ') FROM unnest(payloads) AS p)"
        if row["table"] == "state" and row["column"] == "content":
            shown = "content"
        if row["table"] in ("state_build", "state_file") and row["column"] == "content":
            shown = "content"
        query = f"SELECT count(*) AS n FROM tidemill.{row['table']} WHERE {shown} LIKE '%' || $1 || '%'"
        if (await database.fetch(query, text))[0]["n"]:
            found.add(f"{row['table']}.{row['column']}")
    return found


async def fill(app: App, database: Database) -> None:
    """Something about Ann in every place that has ended, and as much about Bob."""

    @app.task
    async def greet(name: str) -> str:
        if name.endswith("!"):
            raise ValueError(f"cannot greet {name}")
        return f"hello {name}"

    jobs = []
    for name in (ANN, f"{ANN}!"):
        jobs.append(await app.enqueue(greet.call(name=name), unique_key=name.rstrip("!") if name == ANN else None,
                                      concurrency_key=ANN, tags=["person"]))  # fmt: skip
    bob = await app.enqueue(greet.call(name="bob"), unique_key="bob", tags=["other"])
    async with running_worker(app):
        for job in (*jobs, bob):
            await job.wait(timeout=150)
    data = json.dumps({"name": ANN}).encode()
    await database.fetch(
        "INSERT INTO tidemill.run (id, workflow, kind, version, input, result, state, key, ended_at) VALUES "
        "(5, 'w', 'k', '1', $1, $1, 'succeeded', $2, now()), (6, 'w', 'k', '1', '1', '1', 'succeeded', 'bob', now())",
        data,
        ANN,
    )
    for table in ("tick", "snapshot"):
        await database.fetch(f"INSERT INTO tidemill.{table} (run_id, seq, data) VALUES (5, 1, $1)", data)
    await database.fetch("INSERT INTO tidemill.published (run_id, data) VALUES (5, $1)", data)
    await app.streams.publish_many("news", [{"name": ANN}], key=ANN)
    await app.streams.publish_many("news", [{"name": "bob"}], key="bob")
    await database.fetch(
        "INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, error, payload, key) "
        "VALUES ('s', 'a', '1', 'failed', 3, now(), 'broken', $1, $2)",
        data,
        ANN.encode(),
    )
    await database.fetch(
        "INSERT INTO tidemill.monitor_entity (monitor, entity, shard, active, state) VALUES ('m', $2, 0, false, $1)",
        data,
        ANN,
    )
    await database.fetch(
        "INSERT INTO tidemill.monitor_event (monitor, entity, source_id, at, tick, data) "
        "VALUES ('m', $2, '1', 1, 1, $1)",
        data,
        ANN,
    )
    await database.fetch("INSERT INTO tidemill.state (pipeline, stage, entity) VALUES ('p', 's', $1)", ANN)
    await database.fetch(
        "INSERT INTO tidemill.state_blob (store, path, content) VALUES ('p', $1, $2), ('p', 'in/bob.txt', 'bob')",
        f"in/{ANN}.txt",
        data,
    )
    await database.fetch(
        "INSERT INTO tidemill.audit (application, who, action, target, after) "
        "VALUES ($2, 'x', 'run.submit', 'r5 ask', $1)",
        data,
        app.name,
    )


async def forget(app: App, **args: Any) -> Any:
    return await app.do(forget_data, ForgetData(**args))


async def test_nothing_under_a_key_stays_anywhere_and_the_rest_does(app: App, database: Database) -> None:
    await fill(app, database)
    before = await places_of(database, ANN)
    assert before >= {
        "job_history.args", "job_history.errors", "run.input", "tick.data", "published.data", "event_log.payloads",
        "dead_letter.payload", "monitor_entity.state", "monitor_event.data", "state_blob.content",
    }  # fmt: skip
    tried = await forget(app, key=ANN, dry_run=True)
    assert await places_of(database, ANN) == before, "a dry run changes nothing"
    done = await forget(app, key=ANN)
    assert (done.removed, done.left) == (tried.removed, {})
    expected = {"jobs": 2, "runs": 1, "journal": 1, "published": 1, "messages": 1, "dead letters": 1, "audit": 1}
    assert expected.items() <= done.removed.items()
    assert await places_of(database, ANN) == set()
    assert {"job_history.args", "run.key", "event_log.payloads", "state_blob.content"} <= await places_of(
        database, "bob"
    )
    entry = (await database.fetch("SELECT * FROM tidemill.audit WHERE action = 'data.forget'"))[0]
    assert entry["target"].startswith("key sha256:")
    assert (await forget(app, key=ANN)).removed == {}


async def test_jobs_are_found_by_their_tag(app: App, database: Database) -> None:
    await fill(app, database)
    done = await forget(app, tag="person")
    assert done.removed["jobs"] == 2
    assert "runs" not in done.removed
    assert (await database.fetch("SELECT count(*) AS n FROM tidemill.job_history"))[0]["n"] == 1
    for wrong in ({}, {"key": "a", "tag": "b"}):
        with pytest.raises(ConfigError, match="either a `key`, or a `tag`"):
            await forget(app, **wrong)


async def test_what_unfinished_work_needs_is_left_and_counted(app: App, database: Database) -> None:
    @app.task
    async def later(name: str) -> None: ...

    await app.enqueue(later.call(name=ANN), unique_key=ANN, delay="1h")
    await database.fetch(
        "INSERT INTO tidemill.run (workflow, kind, version, input, key) VALUES ('w', 'k', '1', '1', $1)", ANN
    )
    await app.streams.publish_many("news", [{"name": ANN}], key=ANN)
    await database.fetch("INSERT INTO tidemill.log_group (name, topic) VALUES ('slow', 'news')")
    await database.fetch("INSERT INTO tidemill.monitor_entity (monitor, entity, shard) VALUES ('m', $1, 0)", ANN)
    done = await forget(app, key=ANN)
    assert done.removed == {}
    assert done.left == {"jobs": 1, "runs": 1, "messages": 1, "entities": 1}
    assert "job.args" in await places_of(database, ANN)
    assert "event_log.payloads" in await places_of(database, ANN)
