"""States in the database: the inputs and code that each was built from, and failures.

A build is stored in two steps. `record_intent` records what is about to be put in place; then, in one transaction that
locks the rows, the files are put in place and `promote` makes the intent current. If another builder or an invalidation
has changed the state meanwhile, its version differs and the build changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import asyncpg
import msgspec

from tidemill.core.codec import encode, storable
from tidemill.store.connection.caller_connection import Statements
from tidemill.store.database import Database, Executor, columns
from tidemill.store.states.contents import FORGET_CONTENTS
from tidemill.store.states.leases import HOLDS, LAPSE, SESSIONS, LeaseHolder

#: Notifies of written states; the payload is JSON: a pipeline, and its changed paths (empty: re-read everything).
STATES_CHANNEL = "states"
_LONGEST_NEWS = 7000
LONGEST_PATH = 600
CHUNK = 20_000  # rows


class NewState(msgspec.Struct):
    """A result about to be stored; `version` is the one that it was built on."""

    entity: str
    content: str
    inputs: str
    size: int
    version: int


class Built(msgspec.Struct):
    """A result that is in place."""

    entity: str
    signature: int
    took: float
    outcome: str
    reason: str
    log: str | None = None


class NewFailure(msgspec.Struct):
    """A failed build."""

    entity: str
    code: str
    inputs: str
    error: str
    log: str
    took: float
    reason: str
    version: int
    """The version of the state that it was built on."""


#: All states of a pipeline, with as few columns as possible.
LOAD_STATES = """
SELECT stage, entity, content, code, inputs, size, signature, version, invalid_by FROM tidemill.state
WHERE pipeline = $1
"""
#: The known files, failures, codes and controls of a pipeline.
LOAD_FILES = "SELECT path, signature, size, content FROM tidemill.state_file WHERE pipeline = $1"
LOAD_FAILURES = """
SELECT stage, entity, code, inputs, attempts, error, extract(epoch FROM failed_at)::float8 AS failed_at,
       extract(epoch FROM retry_at)::float8 AS retry_at
FROM tidemill.state_failure WHERE pipeline = $1
"""
LOAD_CODES = "SELECT stage, code, parts FROM tidemill.state_code WHERE pipeline = $1"
DATABASE_NOW = "SELECT extract(epoch FROM now())::float8 AS now"
LOAD_CONTROLS = "SELECT * FROM tidemill.state_control WHERE pipeline = $1"

BUILT_AT = (
    "SELECT entity, built_at FROM tidemill.state WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($3::text[])"
)

#: The rows of some states.
LOAD_SOME = LOAD_STATES + " AND stage = $2 AND entity = ANY ($3::text[])"

LOAD_SOME_FAILURES = LOAD_FAILURES + " AND stage = $2 AND entity = ANY ($3::text[])"

#: Stores the parts that a stage's code is made of.
KEEP_CODE = """
INSERT INTO tidemill.state_code (pipeline, stage, code, parts)
SELECT $1, stage, code, parts::json FROM unnest($2::text[], $3::text[], $4::text[]) AS new (stage, code, parts)
ORDER BY stage
ON CONFLICT (pipeline, stage, code) DO UPDATE SET seen_at = now()
"""
#: Stores the code that the pipeline's driver runs.
NEWEST_CODE = """
SELECT code FROM tidemill.state_code WHERE pipeline = $1 AND stage = $2 ORDER BY seen_at DESC LIMIT 1
"""

#: Stores the content hashes of files.
KEEP_FILES = """
INSERT INTO tidemill.state_file AS f (pipeline, path, signature, size, content)
SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::text[]) AS new (path) ORDER BY path
ON CONFLICT (pipeline, path) DO UPDATE
    SET signature = excluded.signature, size = excluded.size, content = excluded.content
"""
FORGET_FILES = """
WITH origins AS (DELETE FROM tidemill.state_origin WHERE pipeline = $1 AND path = ANY ($2::text[]))
DELETE FROM tidemill.state_file WHERE pipeline = $1 AND path = ANY ($2::text[])
"""

#: Updates the signatures of outputs whose content has not changed; not of those that a builder is putting in place.
TOUCH_STATES = """
WITH free AS (
    SELECT s.entity FROM tidemill.state AS s
    WHERE s.pipeline = $1 AND s.stage = $2 AND s.entity = ANY ($3::text[]) FOR UPDATE SKIP LOCKED)
UPDATE tidemill.state AS s SET signature = new.signature
FROM unnest($3::text[], $4::bigint[]) AS new (entity, signature) JOIN free USING (entity)
WHERE s.pipeline = $1 AND s.stage = $2 AND s.entity = new.entity
"""

#: Records what is about to be put in place, where the state has not changed since the build began.
INTEND = """
INSERT INTO tidemill.state AS s (pipeline, stage, entity, version, intent_by, intent_content, intent_code,
                                 intent_inputs, intent_size)
SELECT $1, $2, new.entity, new.version, $3, new.content, $4, new.inputs, new.size
FROM unnest($5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[])
     AS new (entity, content, inputs, size, version)
ORDER BY new.entity
ON CONFLICT (pipeline, stage, entity) DO UPDATE
    SET intent_by = excluded.intent_by, intent_content = excluded.intent_content,
        intent_code = excluded.intent_code, intent_inputs = excluded.intent_inputs, intent_size = excluded.intent_size
    WHERE s.version = excluded.version
RETURNING entity
"""

#: Locks the states whose intent is still ours.
HOLD_INTENDED = """
SELECT entity, content, version FROM tidemill.state
WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($4::text[]) AND intent_by = $3
ORDER BY entity FOR UPDATE
"""

#: Makes the intended content current. Leases are found by an array, not by a join: how many there are is not known to
#: the planner, which would compare each with each.
PROMOTE = """
WITH done AS (
    UPDATE tidemill.state AS s SET
        content = s.intent_content, code = s.intent_code, inputs = s.intent_inputs, size = s.intent_size,
        signature = new.signature, version = s.version + 1, built_at = now(), took = new.took, built_by = $3,
        invalid_by = NULL, intent_by = NULL, intent_content = NULL, intent_code = NULL, intent_inputs = NULL,
        intent_size = NULL
    FROM unnest($4::text[], $5::bigint[], $6::real[], $7::text[], $8::text[], $9::text[])
         AS new (entity, signature, took, outcome, reason, log)
    WHERE s.pipeline = $1 AND s.stage = $2 AND s.entity = new.entity AND s.intent_content IS NOT NULL
    RETURNING s.entity, s.version, s.content, s.code, s.size, new.took, new.outcome, new.reason, new.log),
history AS (
    INSERT INTO tidemill.state_build (pipeline, stage, entity, outcome, took, size, code, content, built_by, reason,
                                      log)
    SELECT $1, $2, entity, outcome, took, size, code, content, $3, reason, log FROM done),
mended AS (
    DELETE FROM tidemill.state_failure
    WHERE pipeline = $1 AND stage = $2 AND entity = ANY (ARRAY(SELECT entity FROM done))),
released AS (
    DELETE FROM tidemill.state_building
    WHERE pipeline = $1 AND stage = $2 AND entity = ANY (ARRAY(SELECT entity FROM done)))
SELECT entity, version FROM done
"""

#: Records a failed build, where the state has not changed since it began: one more failure for the same code and
#: inputs, or the first for others.
FAIL = """
WITH current AS MATERIALIZED (
    SELECT entity, version FROM tidemill.state
    WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($3::text[]) ORDER BY entity FOR SHARE),
failed AS (
    INSERT INTO tidemill.state_failure AS f
        (pipeline, stage, entity, code, inputs, attempts, error, log, first_at, failed_at, retry_at)
    SELECT $1, $2, new.entity, new.code, new.inputs, 1, new.error, new.log, now(), now(),
           now() + make_interval(secs => ($9::float8[])[1])
    FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $12::bigint[])
         AS new (entity, code, inputs, error, log, version)
    WHERE NOT EXISTS (SELECT FROM current WHERE current.entity = new.entity AND current.version <> new.version)
    ORDER BY new.entity
    ON CONFLICT (pipeline, stage, entity) DO UPDATE SET
        attempts = CASE WHEN f.code = excluded.code AND f.inputs = excluded.inputs THEN f.attempts + 1 ELSE 1 END,
        first_at = CASE WHEN f.code = excluded.code AND f.inputs = excluded.inputs THEN f.first_at ELSE now() END,
        code = excluded.code, inputs = excluded.inputs, error = excluded.error, log = excluded.log, failed_at = now(),
        retry_at = now() + make_interval(secs => ($9::float8[])[
            CASE WHEN f.code = excluded.code AND f.inputs = excluded.inputs THEN f.attempts + 1 ELSE 1 END])
    RETURNING entity, code, inputs, attempts, error, log, extract(epoch FROM failed_at)::float8 AS failed_at,
              extract(epoch FROM retry_at)::float8 AS retry_at),
history AS (
    INSERT INTO tidemill.state_build (pipeline, stage, entity, outcome, took, code, built_by, reason, log)
    SELECT $1, $2, failed.entity, 'failed', new.took, failed.code, $8, new.reason, failed.error || E'\n' || failed.log
    FROM failed JOIN unnest($3::text[], $10::real[], $11::text[]) AS new (entity, took, reason) USING (entity)),
released AS (
    DELETE FROM tidemill.state_building
    WHERE pipeline = $1 AND stage = $2 AND entity = ANY (ARRAY(SELECT entity FROM failed)))
SELECT entity, code, inputs, attempts, error, failed_at, retry_at FROM failed
"""

NOTIFY_STATES = "SELECT pg_notify('tidemill_states', $1::text)"

#: Records outputs as built where the state has not changed since it was read, except those that another builder has
#: leased: it has put them there, and will record them.
ADOPT = f"""
WITH sessions AS MATERIALIZED ({SESSIONS}),
done AS (
    INSERT INTO tidemill.state AS s (pipeline, stage, entity, content, code, inputs, size, signature, version,
                                     built_at, built_by)
    SELECT $1, $2, entity, content, code, inputs, size, signature, version + 1, now(), $10
    FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[])
         AS new (entity, content, code, inputs, size, signature, version)
    WHERE NOT EXISTS (
        SELECT FROM tidemill.state_building AS b
        WHERE b.pipeline = $1 AND b.stage = $2 AND b.entity = new.entity
          AND (b.lock = $12::bigint OR b.job = $13::bigint) IS NOT TRUE AND {HOLDS.format(lapse=LAPSE)})
    ORDER BY entity
    ON CONFLICT (pipeline, stage, entity) DO UPDATE SET content = excluded.content, code = excluded.code,
        inputs = excluded.inputs, size = excluded.size, signature = excluded.signature, version = excluded.version,
        built_at = now(), built_by = excluded.built_by, invalid_by = NULL, intent_by = NULL, intent_content = NULL,
        intent_code = NULL, intent_inputs = NULL, intent_size = NULL
    WHERE s.version = excluded.version - 1
    RETURNING s.entity, s.content, s.code, s.size, s.version),
released AS (
    DELETE FROM tidemill.state_building
    WHERE pipeline = $1 AND stage = $2 AND entity = ANY (ARRAY(SELECT entity FROM done))),
history AS (
    INSERT INTO tidemill.state_build (pipeline, stage, entity, outcome, size, code, content, built_by)
    SELECT $1, $2, entity, $11, size, code, content, $10 FROM done)
SELECT entity, version FROM done
"""
FORGET_STATES = "DELETE FROM tidemill.state WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($3::text[])"
FORGET_FAILURES = "DELETE FROM tidemill.state_failure WHERE pipeline = $1 AND stage = $2 AND entity = ANY ($3::text[])"
#: Queued and running builds.
LIST_QUEUED = "SELECT unique_key, id FROM tidemill.job WHERE task = $1 AND unique_key IS NOT NULL"
#: The ends of build jobs that left no other record.
LIST_ENDED = """
SELECT id, state, note, errors FROM tidemill.job_history WHERE id = ANY ($1::bigint[]) AND state <> 'succeeded'
"""
#: One process at a time drives a pipeline: the one that holds this lock, as long as its connection is open.
TAKE_LEAD = "SELECT pg_try_advisory_lock(hashtextextended($1, 7)) AS taken"
LEAVE_LEAD = "SELECT pg_advisory_unlock(hashtextextended($1, 7))"


async def in_chunks(database: Database, statement: str, *args: Any) -> AsyncIterator[list[asyncpg.Record]]:
    """The rows of a large result in chunks, so that they need not all be in memory at once."""
    async with database.transaction(patience=30.0) as connection:
        cursor = await connection.cursor(database.sql(statement), *args)
        while rows := await cursor.fetch(CHUNK):
            yield rows


async def record_intent(
    database: Database, pipeline: str, stage: str, code: str, by: str, states: Sequence[NewState]
) -> set[str]:
    """Record what is about to be put in place; returns the entities that may proceed."""
    rows = await database.fetch(
        INTEND,
        pipeline,
        stage,
        by,
        code,
        [state.entity for state in states],
        [state.content for state in states],
        [state.inputs for state in states],
        [state.size for state in states],
        [state.version for state in states],
    )
    return {row["entity"] for row in rows}


async def lock_pending_writes(
    database: Database, connection: Executor, pipeline: str, stage: str, by: str, states: Sequence[NewState]
) -> dict[str, str]:
    """Lock the rows of intents until the transaction ends; returns those still ours and unchanged, with content."""
    known = {state.entity: state.version for state in states}
    rows = await connection.fetch(database.sql(HOLD_INTENDED), pipeline, stage, by, list(known))
    return {row["entity"]: row["content"] for row in rows if row["version"] == known[row["entity"]]}


async def promote(
    database: Database, connection: Executor, pipeline: str, stage: str, builder: str, built: Sequence[Built]
) -> dict[str, int]:
    """Make the intents current; returns the new versions."""
    values = columns([(b.entity, b.signature, b.took, b.outcome, storable(b.reason)) for b in built], 5)
    logs = [b.log and database.seal_text(storable(b.log)) for b in built] if any(b.log for b in built) else []
    rows = await connection.fetch(database.sql(PROMOTE), pipeline, stage, builder, *values, logs)
    return {row["entity"]: row["version"] for row in rows}


async def fail_states(
    database: Database,
    pipeline: str,
    stage: str,
    failures: Sequence[NewFailure],
    *,
    builder: str,
    waits: Sequence[float],
) -> list[asyncpg.Record]:
    """Store failures, each with the time of its retry; those of states that were changed meanwhile do not count."""
    async with database.transaction() as connection:
        rows = await connection.fetch(
            database.sql(FAIL),
            pipeline,
            stage,
            [each.entity for each in failures],
            [each.code for each in failures],
            [each.inputs for each in failures],
            [database.seal_text(storable(each.error)) for each in failures],
            [database.seal_text(storable(each.log)) for each in failures],
            builder,
            list(waits),
            [each.took for each in failures],
            [each.reason for each in failures],
            [each.version for each in failures],
        )
        await notify_states(
            database, connection, StatesChanged(pipeline, builder, stage, [each.entity for each in failures])
        )
        return rows


class StatesChanged(msgspec.Struct, array_like=True):
    """A notification of changed states: which paths, and which entities of a stage. Neither: re-read everything."""

    pipeline: str
    by: str = ""
    stage: str = ""
    entities: list[str] = []
    paths: list[str] = []


async def notify_states(database: Database, connection: Executor, news: StatesChanged) -> None:
    """Notify all listeners when the transaction commits."""
    await connection.execute(database.sql(NOTIFY_STATES), _encoded(news))


def notify_statements(news: StatesChanged) -> Statements[None]:
    """The same for any driver's connection."""
    yield NOTIFY_STATES, (_encoded(news),)


def _encoded(news: StatesChanged) -> str:
    data = encode(news)
    return (data if len(data) <= _LONGEST_NEWS else encode(StatesChanged(news.pipeline, news.by))).decode()


async def keep_codes(database: Database, pipeline: str, codes: Iterable[tuple[str, str, dict[str, str]]]) -> None:
    """Store the parts that the stages' code is made of."""
    rows = [(stage, code, encode(parts).decode()) for stage, code, parts in codes]
    await database.fetch(KEEP_CODE, pipeline, *columns(rows, 3))


async def keep_files(database: Database, pipeline: str, files: Sequence[tuple[str, int, int, str]]) -> None:
    """Store the content of files: (path, signature, size, content) each. Paths too long for an index are left out."""
    files = [each for each in files if len(each[0]) < LONGEST_PATH or len(each[0].encode()) < LONGEST_PATH * 4]
    for start in range(0, len(files), 10_000):
        await database.fetch(KEEP_FILES, pipeline, *columns(files[start : start + 10_000], 4))


async def forget_files(database: Database, pipeline: str, paths: Sequence[str]) -> None:
    """Delete what is known about removed files."""
    await database.fetch(FORGET_FILES, pipeline, list(paths))


async def touch_states(database: Database, pipeline: str, stage: str, signatures: Sequence[tuple[str, int]]) -> None:
    """Store the signatures of outputs whose content has not changed, by entity."""
    await database.fetch(TOUCH_STATES, pipeline, stage, *columns(signatures, 2))


async def adopt_states(
    database: Database,
    pipeline: str,
    stage: str,
    states: Sequence[tuple[str, str, str, str, int, int, int]],
    *,
    by: str,
    holder: LeaseHolder,
    outcome: str = "adopted",
) -> dict[str, int]:
    """Record outputs found in place as built; returns the new versions of those that had not changed meanwhile.

    A state is (entity, content, code, inputs, size, signature, version). Those that another holder has leased are left.
    """
    rows = await database.fetch(ADOPT, pipeline, stage, *columns(states, 7), by, outcome, holder.lock, holder.job)
    return {row["entity"]: row["version"] for row in rows}


async def forget_states(database: Database, pipeline: str, stage: str, entities: Sequence[str]) -> None:
    """Delete states whose outputs were removed for good."""
    await database.fetch(FORGET_STATES, pipeline, stage, list(entities))
    await database.fetch(FORGET_CONTENTS, pipeline, stage, list(entities))


async def forget_failures(database: Database, pipeline: str, stage: str, entities: Sequence[str]) -> None:
    """Delete failures of states whose inputs were removed."""
    await database.fetch(FORGET_FAILURES, pipeline, stage, list(entities))
