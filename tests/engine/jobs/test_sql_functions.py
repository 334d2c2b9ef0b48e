"""Work is started from SQL: by triggers, by other languages, and by roles that may do nothing else."""

from __future__ import annotations

import json
import re
import secrets
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from tests.support import eventually, running_worker, value
from tidemill import App
from tidemill.dags import Dag, node
from tidemill.engine.runs.run_rate import RunRate
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.store.database import Database
from tidemill.store.jobs.declared import declare


class Asked(StartEvent):
    topic: str


class LetterApproved(Event):
    by: str


class Letter(Workflow):
    @step
    async def wait(self, ctx: Context, event: Asked) -> StopEvent:
        answer = await ctx.wait_for_event(LetterApproved)
        return StopEvent(result=f"{event.topic} approved by {answer.by}")


@pytest.fixture
def app(app: App) -> App:
    @app.task(queue="mail", priority=7, tags=["mail"], retry=3, fair_key="{tenant}")
    async def send_receipt(order_id: int, tenant: str = "none") -> int:
        return order_id

    @app.task(concurrency_key="one-{n}", max_concurrency=1)
    async def alone(n: int) -> None: ...

    app.workflow(Letter)
    app.dag(Dag("nightly", [node("first", "alone", args={"n": 1})]))
    return app


@pytest.fixture
async def sql(app: App, database: Database) -> Any:
    """A connection that calls the functions of an application whose roles have started."""
    await declare(database, app.declarations.templates())
    connection = await database.connect()
    yield connection
    await connection.close()


async def test_a_job_is_like_one_that_the_application_enqueues(app: App, database: Database, sql: Any) -> None:
    enqueued = await app.enqueue("send_receipt", order_id=7, tenant="acme")
    called = await sql.fetchval("""SELECT tidemill.enqueue('send_receipt', '{"order_id": 7, "tenant": "acme"}')""")
    same = "queue, task, args::jsonb::text, priority, tags, options::jsonb::text, fair_key, state, deadline"
    rows = await sql.fetch(f"SELECT {same} FROM tidemill.job ORDER BY id")
    assert called == enqueued.id + 1
    assert tuple(rows[0]) == tuple(rows[1])
    async with running_worker(app, ["mail"]):
        assert (await app.wait(called)).result == 7


async def test_options_are_named_arguments(app: App, sql: Any) -> None:
    job = await sql.fetchval("""
        SELECT tidemill.enqueue('send_receipt', '{"order_id": 7}', delay => '10 minutes', priority => 2,
                                queue => 'slow', unique_key => 'order-7',
                                deadline => '1 hour', fair_key => 'acme', tags => '{late}')""")
    row = await sql.fetchrow(
        "SELECT priority, queue, unique_key, fair_key, tags, due_at > now() + interval '9 minutes' AS later, "
        "deadline > now() + interval '59 minutes' AS has_deadline FROM tidemill.job WHERE id = $1",
        job,
    )
    assert tuple(row) == (2, "slow", "order-7", "acme", ["mail", "late"], True, True)


async def test_a_unique_key_gives_the_job_that_has_it(sql: Any) -> None:
    call = """SELECT tidemill.enqueue('send_receipt', '{"order_id": 7}', unique_key => 'order-7')"""
    assert await sql.fetchval(call) == await sql.fetchval(call)
    assert await sql.fetchval("SELECT count(*) FROM tidemill.job") == 1


async def test_a_unique_key_is_held_for_its_window_after_its_job_has_ended(sql: Any) -> None:
    enqueue = "SELECT tidemill.enqueue('alone', '{\"n\": 1}', unique_key => 'k', unique_for => '1 hour')"
    first = await sql.fetchval(enqueue)
    assert await sql.fetchval(enqueue) == first
    await sql.execute("DELETE FROM tidemill.job")
    assert await sql.fetchval(enqueue) == first
    await sql.execute("UPDATE tidemill.unique_window SET until = now()")
    assert await sql.fetchval(enqueue) > first


async def test_the_last_call_of_a_debounced_job_wins_and_a_running_one_is_left_alone(sql: Any) -> None:
    enqueue = "SELECT tidemill.enqueue('alone', $1::text::jsonb, unique_key => 'k', debounce => '1 hour')"
    first = await sql.fetchval(enqueue, '{"n": 1}')
    assert await sql.fetchval(enqueue, '{"n": 2}') == first
    assert await sql.fetchval("SELECT args ->> 'n' FROM tidemill.job WHERE due_at > now() + '59m'") == "2"
    await sql.execute("UPDATE tidemill.job SET state = 'running'")
    assert await sql.fetchval(enqueue, '{"n": 3}') > first
    assert [row[0] for row in await sql.fetch("SELECT args ->> 'n' FROM tidemill.job ORDER BY id")] == ["2", "3"]


async def test_a_debounced_job_has_the_deadline_of_its_last_call(sql: Any) -> None:
    enqueue = "SELECT tidemill.enqueue('alone', '{\"n\": 1}', unique_key => 'k', debounce => '1 hour', deadline => $1)"
    for later in (2, 9, 4):
        await sql.fetchval(enqueue, timedelta(hours=later))
        due = f"deadline BETWEEN now() + '{later - 1} hours' AND now() + '{later} hours'"
        assert await sql.fetchval(f"SELECT {due} FROM tidemill.job")
    await sql.fetchval(enqueue, None)
    assert await sql.fetchval("SELECT deadline FROM tidemill.job") is None


async def test_another_limit_of_a_concurrency_key_applies_at_once(sql: Any) -> None:
    enqueue = "SELECT tidemill.enqueue('send_receipt', concurrency_key => 'c', max_concurrency => $1)"
    for most in (1, 1, 3):
        await sql.execute(enqueue, most)
    assert await sql.fetchval("SELECT count(*) FROM tidemill.job WHERE state = 'ready'") == 3


async def test_an_argument_with_braces_in_it_stays_as_it_is_in_a_key(sql: Any) -> None:
    await sql.fetchval("""SELECT tidemill.enqueue('send_receipt', '{"tenant": "{order_id}", "order_id": 7}')""")
    assert await sql.fetchval("SELECT fair_key FROM tidemill.job") == "{order_id}"


async def test_concurrency_keys_are_filled_in_and_admit_their_jobs(sql: Any) -> None:
    for _ in range(2):
        await sql.fetchval("""SELECT tidemill.enqueue('alone', '{"n": 3}')""")
    rows = await sql.fetch("SELECT concurrency_key, state FROM tidemill.job ORDER BY id")
    assert [tuple(row) for row in rows] == [("one-3", "ready"), ("one-3", "throttled")]


async def test_nothing_exists_if_the_caller_rolls_back(sql: Any) -> None:
    transaction = sql.transaction()
    await transaction.start()
    await sql.fetchval("""SELECT tidemill.enqueue('send_receipt', '{"order_id": 7}')""")
    await sql.fetchval("""SELECT tidemill.start('Letter', '{"topic": "tides"}')""")
    await sql.execute("""SELECT tidemill.publish('orders', '{"id": 7}')""")
    await transaction.rollback()
    for table in ("job", "run", "event_log"):
        assert await sql.fetchval(f"SELECT count(*) FROM tidemill.{table}") == 0


async def test_a_trigger_enqueues_and_wakes_an_idle_worker(app: App, database: Database, sql: Any) -> None:
    await sql.execute("""
        CREATE TABLE orders (id integer);
        CREATE FUNCTION ordered() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM tidemill.enqueue('send_receipt', jsonb_build_object('order_id', NEW.id, 'tenant', 'acme'));
            RETURN NEW;
        END $$;
        CREATE TRIGGER ordered AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION ordered()""")
    async with running_worker(app, ["mail"]):
        await sql.execute("INSERT INTO orders SELECT generate_series(1, 3)")
        done = "SELECT count(*) FROM tidemill.job_history WHERE state = 'succeeded'"
        await eventually(lambda: _is(database, done, 3), timeout=10)


async def _is(database: Database, statement: str, wanted: object) -> bool:
    return await value(database, statement) == wanted


async def test_runs_are_started_and_get_events(app: App, sql: Any) -> None:
    run = await sql.fetchval(
        """SELECT tidemill.start('Letter', '{"topic": "tides"}', unique_key => 'l', tags => '{a}')"""
    )
    assert await sql.fetchval("""SELECT tidemill.start('Letter', '{"topic": "x"}', unique_key => 'l')""") == run
    night = await sql.fetchval("SELECT tidemill.start('nightly')")
    async with app.running():
        handle = await app.runs.get(run)
        await eventually(lambda: _knows_events(sql))
        await sql.execute("""SELECT tidemill.send($1, 'LetterApproved', '{"by": "ann"}')""", run)
        assert await handle.result(timeout=30) == "tides approved by ann"
        assert await (await app.runs.get(night)).result(timeout=30) is not None
    with pytest.raises(asyncpg.NoDataFoundError, match="has ended"):
        await sql.execute("""SELECT tidemill.send($1, 'LetterApproved', '{"by": "ann"}')""", run)


async def _knows_events(sql: Any) -> bool:
    return await sql.fetchval("SELECT EXISTS (SELECT FROM tidemill.worker WHERE events IS NOT NULL)")


async def test_messages_are_those_that_publish_appends(app: App, sql: Any) -> None:
    await app.publish("orders", {"id": 7}, key="acme")
    await sql.execute("""SELECT tidemill.publish('orders', '{"id": 7}', 'acme')""")
    rows = await sql.fetch("SELECT topic, keys, headers, payloads FROM tidemill.event_log ORDER BY id")
    plain, called = ((row["topic"], row["keys"], row["headers"], json.loads(row["payloads"][0])) for row in rows)
    assert plain == called


@pytest.mark.parametrize("later", ["at => 'infinity'", "at => '0044-03-15 BC'", "delay => '100000 years'"])
@pytest.mark.parametrize(
    "call",
    [
        """enqueue('send_receipt', '{"order_id": 7}', %s)""",
        """enqueue_batch('send_receipt', ARRAY['{"order_id": 7}']::jsonb[], %s)""",
        """start('Letter', '{"topic": "tides"}', %s)""",
        """send(start('Letter', '{"topic": "tides"}'), 'shop.LetterApproved', '{}', %s)""",
    ],
)
async def test_a_moment_that_no_process_could_read_is_refused(app: App, sql: Any, call: str, later: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="within_the_years_1_to_9999"):
        await sql.fetchval(f"SELECT tidemill.{call % later}")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("enqueue('no such task')", "there is no task no such task"),
        ("enqueue('send_receipt', '[7]')", "must be a JSON object"),
        ("enqueue('alone')", "the key one-{n} needs the argument n"),
        ("enqueue('send_receipt', '{}', delay => '1s', at => now())", "either delay or at"),
        ("enqueue('send_receipt', '{}', priority => 12)", "priority"),
        ("enqueue('send_receipt', '{}', prioritty => 1)", "does not exist"),
        ("enqueue('send_receipt', '{}', unique_for => '1h')", "need a unique_key"),
        ("enqueue('send_receipt', '{}', debounce => '1h')", "need a unique_key"),
        ("enqueue('send_receipt', '{}', unique_key => 'k', debounce => '1h', delay => '1h')", "is itself a delay"),
        ("enqueue('send_receipt', '{}', max_concurrency => 2)", "give both"),
        ("enqueue('alone', '{\"n\": 1}', max_concurrency => 0)", "1 or more"),
        ("enqueue('send_receipt', '{}', webhook => 'example.org')", "not an http or https address"),
        ("enqueue('send_receipt', '{}', webhook => 'https://example.org')", "webhooks are signed"),
        ("start('nothing')", "there is no workflow or dag nothing"),
        ("start('Letter', '1')", "must be a JSON object"),
        ("""enqueue('send_receipt', '{"order_id": 7}', priority => 12)""", "priority 12 is outside 0 to 9"),
        ("""enqueue('send_receipt', '{"order_id": 7}', queue => '')""", "'' is not a queue name"),
        ("""enqueue('send_receipt', '{"order_id": 7}', queue => ' a')""", "' a' is not a queue name"),
        ("""enqueue('send_receipt', '{"order_id": 7}', tags => ARRAY[NULL]::text[])""", "a tag is NULL"),
        ("""enqueue('send_receipt', '{"order_id": 7}', unique_key => repeat('x', 1801))""", "at most 1800 bytes"),
        ("""enqueue('send_receipt', '{"order_id": 7}', fair_key => repeat('x', 1801))""", "at most 1800 bytes"),
        ("""enqueue('send_receipt', '{"order_id": 7}', delay => '-1 s')""", "delay, .* are not below zero"),
        ("""enqueue('send_receipt', '{"order_id": 7}', unique_key => 'k', debounce => '-1 s')""", "not below zero"),
        ("enqueue_batch('alone', '{}', name => ' a')", "' a' is not a batch name"),
        ("start('Letter', '{}', tags => ARRAY[NULL]::text[])", "a tag is NULL"),
        ("start('Letter', '{}', deadline => '-1 s')", "delay and deadline are not below zero"),
        ("start('Letter', '{}', unique_key => repeat('x', 1801))", "at most 1800 bytes"),
        ("start('Letter', '{}', unique_key => '~r1')", "for Tidemill's own keys"),
        ("publish('', '{}')", "'' is not a topic name"),
        ("publish(NULL, '{}')", "NULL is not a topic name"),
        ("publish('orders', NULL)", "payload is NULL: write 'null' for the null of JSON"),
        ("send(99, NULL)", "an event is sent by the name of its class"),
        ("send(99, 'shop.LetterApproved', NULL)", "must be a JSON object"),
        ("send(99, 'shop.LetterApproved', '[1]')", "must be a JSON object"),
        ("send(99, 'shop.LetterApproved', '{}', delay => '1 s', at => now())", "either delay or at"),
        ("send(99, 'shop.LetterApproved', '{}', delay => '-1 s')", "delay is not below zero"),
        ("send(tidemill.start('nightly'), 'shop.LetterApproved')", "is of a dag, which takes no events"),
        ("send(99, 'LetterApproved')", "there is no event LetterApproved"),
        ("send(99, 'shop.LetterApproved')", "there is no run 99"),
    ],
)
async def test_a_wrong_call_says_what_is_wrong(sql: Any, call: str, said: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match=said):
        await sql.fetchval(f"SELECT tidemill.{call}")


async def test_a_role_may_call_the_functions_and_nothing_else(database: Database, sql: Any) -> None:
    role = f"caller_{secrets.token_hex(4)}"
    await sql.execute(f"CREATE ROLE {role}")
    try:
        await sql.execute(f"GRANT USAGE ON SCHEMA tidemill TO {role}")
        await sql.execute(f"SET ROLE {role}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await sql.fetchval("""SELECT tidemill.enqueue('send_receipt', '{"order_id": 7}')""")
        await sql.execute("RESET ROLE")
        await sql.execute(f"GRANT EXECUTE ON FUNCTION tidemill.enqueue, tidemill.publish TO {role}")
        await sql.execute(f"SET ROLE {role}")
        assert await sql.fetchval("""SELECT tidemill.enqueue('send_receipt', '{"order_id": 7}')""")
        await sql.execute("""SELECT tidemill.publish('orders', '{"id": 7}')""")
        for statement in ("SELECT FROM tidemill.job", "DELETE FROM tidemill.job", "SELECT tidemill.start('nightly')"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await sql.fetch(statement)
    finally:
        await sql.execute("RESET ROLE")
        await sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_tables_of_the_callers_search_path_are_not_mistaken_for_ours(sql: Any) -> None:
    await sql.execute("CREATE SCHEMA evil; CREATE TABLE evil.job (id bigint)")
    await sql.execute("CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT 1/0'")
    await sql.execute("SET search_path = evil, public")
    assert await sql.fetchval("""SELECT tidemill.enqueue('send_receipt', '{"order_id": 7}')""")
    await sql.execute("RESET search_path")


async def test_an_application_that_runs_declares_what_the_functions_start(app: App, database: Database) -> None:
    async with app.running():
        names = "SELECT array_agg(shape || ' ' || name ORDER BY shape, name) FROM tidemill.declared"
        await eventually(lambda: _has(database, names))


async def _has(database: Database, names: str) -> bool:
    return await value(database, names) == ["dag nightly", "flow Letter", "task alone", "task send_receipt"]


async def test_sql_enqueues_a_batch_whose_end_enqueues_its_callback(app: App, database: Database, sql: Any) -> None:
    told: list[tuple[int, int]] = []

    @app.task
    async def tell(batch: int, succeeded: int) -> None:
        told.append((batch, succeeded))

    @app.task(rate_key="{n}", rate=1000)
    async def count(n: int) -> int:
        return n

    await declare(database, app.declarations.templates())
    number = await sql.fetchval(
        """SELECT tidemill.enqueue_batch('count', ARRAY['{"n": 1}', '{"n": 2}']::jsonb[], on_success => 'tell',
                                         name => 'two', keep_open => true)"""
    )
    await sql.fetchval("""SELECT tidemill.enqueue('count', '{"n": 3}', batch => $1)""", number)
    keys = await sql.fetch("SELECT rate_key, key_rate FROM tidemill.job WHERE batch_id = $1 ORDER BY id", number)
    assert [tuple(row) for row in keys] == [("1", 1000.0), ("2", 1000.0), ("3", 1000.0)]
    batch = app.jobs.get_batch(number)
    async with running_worker(app):
        await batch.close()
        view = await batch.wait(timeout=20)
        await eventually(lambda: told == [(number, 3)])
    assert (view.name, view.state, view.total) == ("two", "succeeded", 3)
    with pytest.raises(asyncpg.NoDataFoundError, match="accepts no more jobs"):
        await sql.fetchval("""SELECT tidemill.enqueue('count', '{"n": 4}', batch => $1)""", number)


DOCUMENTED = "tidemill.enqueue, tidemill.enqueue_batch, tidemill.start, tidemill.send, tidemill.publish"

#: What a trigger of the caller's own calls, each function once.
TRIGGER = """
CREATE FUNCTION {role}.ordered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tidemill.enqueue('send_receipt', jsonb_build_object('order_id', NEW.id, 'tenant', 'acme'),
                             unique_key => 'order-{{order_id}}', concurrency_key => 'of {{tenant}}');
    PERFORM tidemill.enqueue_batch('alone', ARRAY[jsonb_build_object('n', NEW.id)], on_complete => 'alone_again');
    PERFORM tidemill.send(tidemill.start('Letter', '{{"topic": "tides"}}', rate_key => 'tide'), 'LetterApproved',
                          '{{"by": "ann"}}');
    PERFORM tidemill.start('nightly', tags => ARRAY['trigger']);
    PERFORM tidemill.publish('orders', jsonb_build_object('id', NEW.id), key => NEW.id::text);
    RETURN NEW;
END $$
"""


async def test_a_trigger_of_a_role_with_the_documented_grants_starts_everything_and_can_do_no_more(
    app: App, database: Database
) -> None:
    app.task(name="alone_again")(lambda: None)
    app.runs.rates["Letter"] = RunRate("letters", 1000.0, 10.0)
    await declare(database, app.declarations.templates())
    async with app.running(queues=["none"]):  # Run workers say which events they know.
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.worker WHERE events IS NOT NULL"))
    connection, role = await database.connect(), f"caller_{secrets.token_hex(4)}"
    await connection.execute(f"CREATE ROLE {role}; CREATE SCHEMA {role} AUTHORIZATION {role}")
    try:
        await connection.execute(f"GRANT USAGE ON SCHEMA tidemill TO {role}")
        await connection.execute(f"GRANT EXECUTE ON FUNCTION {DOCUMENTED} TO {role}")
        await connection.execute(f"SET ROLE {role}; CREATE TABLE {role}.orders (id integer)")
        await connection.execute(TRIGGER.format(role=role))
        await connection.execute(
            f"CREATE TRIGGER ordered AFTER INSERT ON {role}.orders FOR EACH ROW EXECUTE FUNCTION {role}.ordered()"
        )
        async with connection.transaction():
            await connection.execute(f"INSERT INTO {role}.orders VALUES (7)")
        await connection.execute(f"BEGIN; INSERT INTO {role}.orders VALUES (8); ROLLBACK")
        await _cannot_do_more(connection)
    finally:
        await connection.execute("RESET ROLE")
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await connection.close()
    jobs = await database.fetch("SELECT task, unique_key, concurrency_key FROM tidemill.job ORDER BY id")
    assert [tuple(row) for row in jobs] == [("send_receipt", "order-7", "of acme"), ("alone", None, "one-7")]
    runs = await database.fetch("SELECT workflow, rate_key, tags FROM tidemill.run ORDER BY id")
    assert [tuple(row) for row in runs] == [("Letter", "tide", None), ("nightly", None, ["trigger"])]
    assert await value(database, "SELECT count(*) FROM tidemill.inbox") == 1


async def _cannot_do_more(connection: Any) -> None:
    """The role of the connection reads and writes no table, and calls no other function that has its owner's rights."""
    tables = "SELECT relname FROM pg_class WHERE relnamespace = 'tidemill'::regnamespace AND relkind IN ('r', 'p', 'v')"
    may = "has_table_privilege(oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')"
    assert await connection.fetch(f"{tables} AND {may}") == []
    functions = """
        SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'tidemill'::regnamespace
        AND prosecdef AND has_function_privilege(oid, 'EXECUTE') ORDER BY 1"""
    callable_ones = [row["proname"] for row in await connection.fetch(functions)]
    assert callable_ones == ["enqueue", "enqueue_batch", "publish", "send", "start"]
    for call in ("admit_throttled(ARRAY['of acme'])", "take_tokens('mail', 1)", "insert_job('alone', '{}')"):
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError)):
            await connection.fetch(f"SELECT tidemill.{call}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"day": 1}, "dag of_day: bad arguments: day: 1 is not of type"),
        ({}, "dag of_day: bad arguments: .* is a required property"),
        ({"day": "monday", "dya": 1}, "there is no argument 'dya'; did you mean 'day'"),
    ],
)
async def test_a_dag_with_wrong_arguments_needs_attention_before_any_node_runs(
    app: App, database: Database, given: dict[str, Any], said: str
) -> None:
    day = {
        "type": "object",
        "properties": {"day": {"type": "string"}},
        "required": ["day"],
        "additionalProperties": False,
    }
    app.dag(Dag("of_day", [node("only", "alone", args={"n": 1})], args=day))
    await declare(database, app.declarations.templates())
    run = await value(database, "SELECT tidemill.start('of_day', $1)", json.dumps(given))
    right = await value(database, "SELECT tidemill.start('of_day', $1)", json.dumps({"day": "monday"}))
    async with app.running():
        states = f"SELECT string_agg(state, ' ' ORDER BY id) FROM tidemill.run WHERE id IN ({run}, {right})"
        await eventually(lambda: _is(database, states, "needs_attention succeeded"))
    assert re.search(said, await value(database, "SELECT note FROM tidemill.run WHERE id = $1", run))
