"""The schema: up, down, up again, by one process at a time, and who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support import eventually, finished, running_maintenance, value
from tidemill import App
from tidemill.core.errors import ConfigError, SchemaError, StoreError
from tidemill.engine.roles.maintenance import maintenance_role
from tidemill.roles import jobs_role
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import (
    OWN_CHAIN,
    Chain,
    ChainVersion,
    SchemaVersion,
    applications_since,
    applied_version,
    chain_versions,
    downgrade,
    migrate,
    schema_version,
    wait_for_schema,
)

TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = $1"


@pytest.fixture
async def empty(empty_database_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=empty_database_url)) as opened:
        yield opened


def write_chain(folder: Path, *migrations: tuple[str, str], schema: str = "shop") -> Chain:
    folder.mkdir(exist_ok=True)
    for number, (up, down) in enumerate(migrations, 1):
        (folder / f"{number:04}_step.sql").write_text(up)
        (folder / f"{number:04}_step.down.sql").write_text(down)
    return Chain(folder, schema=schema)


async def test_an_empty_database_is_brought_up_and_the_ledger_says_so(empty: Database) -> None:
    assert await applied_version(empty) == 0
    done = await migrate(empty)
    assert [migration.version for migration in done] == list(range(1, OWN_CHAIN.latest + 1))
    assert await applied_version(empty) == OWN_CHAIN.latest
    rows = await empty.fetch("SELECT version, name, applied_at FROM tidemill.schema_version ORDER BY version")
    assert [(row["version"], row["name"]) for row in rows] == [(m.version, m.name) for m in OWN_CHAIN.migrations()]
    assert await migrate(empty) == []


async def test_down_removes_everything_and_up_brings_it_back(empty: Database) -> None:
    await migrate(empty)
    tables = await value(empty, TABLES, "tidemill")
    undone = await downgrade(empty, to=0)
    assert [migration.version for migration in undone] == list(range(OWN_CHAIN.latest, 0, -1))
    assert await applied_version(empty) == 0
    assert await value(empty, TABLES, "tidemill") == 1  # the ledger
    assert await value(empty, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'tidemill'::regnamespace") == 0
    await migrate(empty)
    assert await value(empty, TABLES, "tidemill") == tables
    assert await downgrade(empty, to=OWN_CHAIN.latest) == []


async def test_what_is_done_beyond_a_cursor_survives_the_way_up_and_down(empty: Database) -> None:
    await migrate(empty, to=14)
    await empty.fetch(
        "INSERT INTO tidemill.source_cursor (stream, source, part, position, done, owner) "
        "VALUES ('s', 'a', 'p', 3, '{5,6,7,9}', gen_random_uuid()), ('s', 'b', 'p', NULL, '{}', gen_random_uuid())"
    )
    await migrate(empty, to=15)
    assert await value(empty, "SELECT done::text FROM tidemill.source_cursor WHERE source = 'a'") == "{[5,8),[9,10)}"
    await downgrade(empty, to=14)
    rows = await empty.fetch("SELECT done FROM tidemill.source_cursor ORDER BY source")
    assert [row["done"] for row in rows] == [[5, 6, 7, 9], []]


async def test_two_migrators_at_once_apply_everything_once(empty_database_url: str, empty: Database) -> None:
    async with Database(DatabaseSettings(url=empty_database_url)) as other:
        first, second = await asyncio.gather(migrate(empty), migrate(other))
    assert sorted([len(first), len(second)]) == [0, OWN_CHAIN.latest]
    assert await value(empty, "SELECT count(*) FROM tidemill.schema_version") == OWN_CHAIN.latest


async def test_five_maintenances_that_start_at_once_share_one_schema(empty_database_url: str, empty: Database) -> None:
    app = App("many", database_url=empty_database_url)
    async with (
        running_maintenance(app),
        running_maintenance(app),
        running_maintenance(app),
        running_maintenance(app),
        running_maintenance(app),
    ):
        assert await applied_version(empty) == OWN_CHAIN.latest


async def test_a_host_has_a_chain_of_its_own_in_a_schema_of_its_own(empty: Database, tmp_path: Path) -> None:
    chain = write_chain(
        tmp_path,
        ("CREATE TABLE orders (id int)", "DROP TABLE orders"),
        ("ALTER TABLE shop.orders ADD paid boolean", "ALTER TABLE shop.orders DROP paid"),
    )
    await migrate(empty)
    assert len(await migrate(empty, chain, to=1)) == 1
    assert await applied_version(empty, chain) == 1
    assert [m.version for m in await migrate(empty, chain)] == [2]
    assert await value(empty, "SELECT count(*) FROM shop.schema_version") == 2
    assert await applied_version(empty) == OWN_CHAIN.latest
    await downgrade(empty, chain, to=0)
    assert await applied_version(empty, chain) == 0
    assert await applied_version(empty) == OWN_CHAIN.latest
    assert await value(empty, "SELECT to_regclass('shop.orders')") is None


async def test_a_host_may_call_its_tables_as_we_call_ours(empty: Database, tmp_path: Path) -> None:
    chain = write_chain(tmp_path, ("CREATE TABLE run (id int); CREATE TABLE job (id int)", "DROP TABLE run, job"))
    await migrate(empty)
    await migrate(empty, chain)
    assert await value(empty, TABLES, "shop") == 3
    assert await value(empty, TABLES, "public") == 0


async def test_the_text_of_a_hosts_migration_is_not_changed(empty_database_url: str, tmp_path: Path) -> None:
    text = "see tidemill.job, installation.token and 'tidemill_jobs'"
    up = f"CREATE TABLE note AS SELECT $${text}$$::text AS n"
    chain = write_chain(tmp_path, (up, "DROP TABLE note"))
    async with Database(DatabaseSettings(url=empty_database_url, schema="elsewhere")) as database:
        await migrate(database)
        await migrate(database, chain)
        assert await value(database, "SELECT n FROM shop.note") == text


async def test_a_host_cannot_have_its_tables_among_ours(empty: Database, tmp_path: Path) -> None:
    chain = write_chain(tmp_path, ("CREATE TABLE sale (id int)", "DROP TABLE sale"), schema="tidemill")
    await migrate(empty)
    with pytest.raises(ConfigError, match=r"the schema tidemill has Tidemill's own tables: .* schema="):
        await migrate(empty, chain)


async def test_a_broken_migration_leaves_nothing_behind_and_is_named(empty: Database, tmp_path: Path) -> None:
    chain = write_chain(
        tmp_path,
        ("CREATE TABLE public.good (id int)", "DROP TABLE public.good"),
        ("CREATE TABLE public.half (id int); SELECT 1 / 0", "SELECT 1"),
    )
    with pytest.raises(StoreError, match=r"migration 0002_step\.sql failed and was rolled back: division by zero"):
        await migrate(empty, chain)
    assert await applied_version(empty, chain) == 0
    for table in ("public.good", "public.half"):
        assert await value(empty, "SELECT to_regclass($1)", table) is None
    (tmp_path / "0002_step.sql").write_text("CREATE TABLE public.half (id int)")
    assert len(await migrate(empty, chain)) == 2


async def test_a_broken_way_down_leaves_everything_as_it_was(empty: Database, tmp_path: Path) -> None:
    chain = write_chain(tmp_path, ("CREATE TABLE public.good (id int)", "DROP TABLE public.missing"))
    await migrate(empty, chain)
    with pytest.raises(StoreError, match=r"0001_step\.down\.sql failed and was rolled back"):
        await downgrade(empty, chain, to=0)
    assert await applied_version(empty, chain) == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["0001_a.sql"], "0001_a.sql has no 0001_a.down.sql beside it"),
        (["0002_a.sql", "0002_a.down.sql"], "not numbered 0001, 0002"),
        (["0001_a.sql", "0001_a.down.sql", "0001_b.sql", "0001_b.down.sql"], "not numbered 0001, 0002"),
        (["first.sql"], r"first.sql: a migration is called NNNN_name.sql"),
    ],
)
async def test_a_folder_that_is_not_a_chain_is_refused(empty: Database, tmp_path: Path, files, message: str) -> None:
    for file in files:
        (tmp_path / file).write_text("SELECT 1")
    with pytest.raises(ConfigError, match=message):
        await migrate(empty, Chain(tmp_path, schema="x"))


async def test_a_chain_that_cannot_be_kept_is_refused(empty: Database, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no migrations folder"):
        await migrate(empty, Chain(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"schema .x; DROP TABLE y. is not usable"):
        await migrate(empty, Chain(tmp_path, schema="x; DROP TABLE y"))
    with pytest.raises(SchemaError, match="there is no version 9"):
        await migrate(empty, Chain(tmp_path, schema="x"), to=9)


# Who waits for it


async def test_a_worker_waits_for_the_schema_and_never_makes_it(empty_database_url: str, empty: Database) -> None:
    app = App("early", database_url=empty_database_url)

    @app.task
    async def greet() -> str:
        return "hello"

    worker = jobs_role(
        app.declarations,
    )
    life = asyncio.create_task(worker.run())
    try:
        connected = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidemill worker early'"
        await eventually(lambda: value(empty, connected))
        assert await applied_version(empty) == 0
        assert worker.worker_id == 0
        await migrate(empty)
        await asyncio.wait_for(worker.wait_ready(), 150)
        ref = await app.enqueue(greet)
        assert (await finished(empty, ref.id))["result"] == b'"hello"'
        worker.stop()
        await asyncio.wait_for(life, 120)
    finally:
        life.cancel()
        await app.close()


async def test_waiting_for_a_schema_that_does_not_come_says_what_to_do(empty: Database) -> None:
    with pytest.raises(SchemaError, match=r"at schema version 0, and this code needs \d+: run `tidemill db migrate`"):
        await wait_for_schema(empty, patience=0.1)


async def test_a_process_that_waits_for_the_schema_says_so_once(
    empty: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.store.migrate.SAY_AFTER", 0.0)
    with capture_logs() as lines:
        waiting = asyncio.create_task(wait_for_schema(empty))
        await eventually(lambda: lines != [])
        await migrate(empty)
        await asyncio.wait_for(waiting, 60)
    said = [line for line in lines if line["event"] == "waiting for the schema"]
    assert [line["log_level"] for line in said] == ["warning"]
    assert "run `tidemill db migrate` or `tidemill maintenance`" in said[0]["why"]


async def test_a_newer_schema_than_the_code_knows_is_a_clear_error_for_everyone(app: App, database: Database) -> None:
    @app.task
    async def greet() -> None: ...

    await database.fetch("INSERT INTO tidemill.schema_version (version, name) VALUES (99, 'from the future')")
    message = rf"is at schema version 99, but this code knows only {OWN_CHAIN.latest}: install a newer tidemill"
    for attempt in (
        app.enqueue(greet),
        jobs_role(
            app.declarations,
        ).run(),
        maintenance_role(app.database()).run(),
        wait_for_schema(database),
        migrate(database),
        downgrade(database, to=0),
    ):
        with pytest.raises(SchemaError, match=message):
            await asyncio.wait_for(attempt, 120)


async def test_older_code_goes_on_with_a_newer_schema_that_does_not_need_newer_code(
    app: App, database: Database
) -> None:
    @app.task
    async def greet() -> str:
        return "hello"

    ahead = "INSERT INTO tidemill.schema_version (version, name, needs_at_least) VALUES (99, 'expanded', $1)"
    await database.fetch(ahead, OWN_CHAIN.latest)
    async with app.running():
        assert await (await app.enqueue(greet)) == "hello"
    assert await migrate(database) == []
    (status,) = await chain_versions(database)
    assert (status.version, status.needed) == (99, OWN_CHAIN.latest)
    with pytest.raises(SchemaError, match="is at schema version 99, but this code knows only"):
        await downgrade(database, to=0)


async def test_a_migration_says_in_its_first_line_which_code_goes_on_with_it(empty: Database, tmp_path: Path) -> None:
    steps = ("SELECT 1", "-- needs_at_least: 1\nSELECT 1", "-- needs_at_least: 2\nSELECT 1", "SELECT 1")
    chain = write_chain(tmp_path, *((step, "SELECT 1") for step in steps))
    await migrate(empty)
    needed = []
    for version in range(1, 5):
        await migrate(empty, chain, to=version)
        needed.append((await schema_version(empty, chain)).needs_at_least)
    assert needed == [1, 1, 2, 4]
    await downgrade(empty, chain, to=2)
    assert await schema_version(empty, chain) == SchemaVersion(2, 1)
    (tmp_path / "0003_step.sql").write_text("-- needs_at_least: 4\nSELECT 1")
    with pytest.raises(ConfigError, match=r"0003_step\.sql: needs_at_least is a version from 1 to 3"):
        await migrate(empty, chain)


def test_every_new_migration_says_which_code_goes_on_with_it() -> None:
    for migration in OWN_CHAIN.migrations()[48:]:
        first = migration.up.read_text().splitlines()[0]
        assert first.startswith("-- needs_at_least: "), (
            f"{migration.up.name} begins with `-- needs_at_least: N`: the newest migration that the oldest code knows "
            f"that works with its tables. As in the migration before if it only adds (columns with defaults, tables, "
            f"indexes), {migration.version} if earlier code breaks"
        )


async def test_a_migration_that_waits_for_a_table_does_not_block_those_who_use_it(
    empty: Database, tmp_path: Path
) -> None:
    chain = write_chain(
        tmp_path, ("CREATE TABLE sale (id int)", "SELECT 1"), ("ALTER TABLE sale ADD COLUMN paid bool", "SELECT 1")
    )
    await migrate(empty, chain, to=1)
    async with empty.transaction() as using:
        await using.execute("INSERT INTO shop.sale VALUES (1)")
        migrating = asyncio.create_task(migrate(empty, chain, patience=None))
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'shop.sale'::regclass"
        await eventually(lambda: value(empty, waits))
        assert await value(empty, "SELECT count(*) FROM shop.sale") == 0, "it is read behind the one that waits"
        assert not migrating.done()
    assert [migration.version for migration in await migrating] == [2]


async def test_the_maintenance_applies_the_applications_own_migrations_after_ours(
    empty: Database, empty_database_url: str, tmp_path: Path
) -> None:
    shop = App("shop", database_url=empty_database_url)
    write_chain(tmp_path, ("CREATE TABLE sale (job bigint REFERENCES tidemill.worker (id))", "DROP TABLE sale"))
    shop.migrations(tmp_path)
    async with shop.running():
        assert await value(empty, "SELECT count(*) FROM shop.sale") == 0
        assert await applied_version(empty, shop.declarations.chains[0]) == 1


def test_two_chains_cannot_share_a_schema(tmp_path: Path) -> None:
    shop = App("Shop No. 7")
    write_chain(tmp_path, ("SELECT 1", "SELECT 1"))
    with pytest.raises(ConfigError, match="no migrations folder"):
        shop.migrations(tmp_path / "nowhere")
    shop.migrations(tmp_path)
    assert [chain.schema for chain in shop.declarations.chains] == ["shop_no_7"]
    with pytest.raises(ConfigError, match="the schema shop_no_7 has migrations already"):
        shop.migrations(tmp_path, schema="shop_no_7")
    shop.migrations(tmp_path, schema="stock")
    assert [chain.schema for chain in shop.declarations.chains] == ["shop_no_7", "stock"]


# Several applications

ENQUEUE = "INSERT INTO tidemill.job (queue, task, args) VALUES ('default', $1, '{}') RETURNING id"


def of(url: str, application: str) -> Database:
    return Database(DatabaseSettings(url=url, application=application))


async def test_the_application_that_migrates_first_adopts_the_rows_from_before(
    empty: Database, empty_database_url: str
) -> None:
    await migrate(empty, to=applications_since() - 1)
    await empty.fetch(ENQUEUE, "old")
    await empty.fetch("INSERT INTO tidemill.audit (who, action, target) VALUES ('ann', 'queue.pause', 'mail')")
    async with of(empty_database_url, "first") as first, of(empty_database_url, "second") as second:
        assert [each.version for each in await migrate(first)] == list(
            range(applications_since(), OWN_CHAIN.latest + 1)
        )
        assert len(await migrate(second)) == OWN_CHAIN.latest
        assert (first.schema, second.schema) == ("tidemill", "tidemill_second")
        assert [row["task"] for row in await first.fetch("SELECT task FROM tidemill.job")] == ["old"]
        assert await second.fetch("SELECT task FROM tidemill.job") == []
        for each in (first, second):
            assert [row["application"] for row in await each.fetch("SELECT * FROM installation.audit")] == [None]


async def test_a_schema_without_an_application_belongs_to_the_first_that_opens_it(database_url: str) -> None:
    async with Database(DatabaseSettings(url=database_url)) as nameless:
        await nameless.fetch(ENQUEUE, "old")
    async with of(database_url, "first") as first, of(database_url, "second") as second:
        assert len(await first.fetch("SELECT FROM tidemill.job")) == 1
        missing = r"has no application 'second', only first: run `tidemill db migrate --application second` to add it"
        with pytest.raises(SchemaError, match=missing):
            await wait_for_schema(second, patience=0.1)


async def test_applications_that_open_a_schema_at_the_same_time_do_not_share_it(database_url: str) -> None:
    opened = [of(database_url, f"app{number}") for number in range(4)]
    try:
        await asyncio.gather(*(database.open() for database in opened))
        assert sorted(database.schema == "tidemill" for database in opened) == [False] * 3 + [True]
        await asyncio.gather(*(migrate(database) for database in opened))
        assert len({database.schema for database in opened}) == 4
    finally:
        await asyncio.gather(*(database.close() for database in opened))


async def test_all_applications_are_migrated_when_none_is_named(empty_database_url: str) -> None:
    async with of(empty_database_url, "one") as one, of(empty_database_url, "two") as two:
        await migrate(one)
        await migrate(two)
        assert len(await downgrade(two, to=1)) == OWN_CHAIN.latest - 1
        async with Database(DatabaseSettings(url=empty_database_url)) as every:
            assert [each.version for each in await migrate(every)] == list(range(2, OWN_CHAIN.latest + 1))
            assert [(each.application, each.schema, each.version) for each in await chain_versions(every)] == [
                ("one", "tidemill", OWN_CHAIN.latest),
                ("two", "tidemill_two", OWN_CHAIN.latest),
            ]
            with pytest.raises(ConfigError, match="several applications"):
                await downgrade(every, to=0)


async def test_an_application_is_removed_without_the_others(empty_database_url: str) -> None:
    async with of(empty_database_url, "one") as one, of(empty_database_url, "two") as two:
        await migrate(one)
        await migrate(two)
        others = r"has other applications.*db downgrade --to 0 --application NAME` \(two\)"
        with pytest.raises(SchemaError, match=others):
            await downgrade(one, to=0)
        await downgrade(two, to=1)
        await one.fetch("INSERT INTO installation.audit (who, action, target) VALUES ('ann', 'queue.pause', 'mail')")
        assert [each.version for each in await downgrade(two, to=0)] == [1]
        assert await value(one, "SELECT to_regnamespace('tidemill_two')") is None
        await one.locate()
        latest = OWN_CHAIN.latest
        assert await chain_versions(one) == [ChainVersion("one", "tidemill", "tidemill", latest, latest)]
        assert len(await downgrade(one, to=0)) == latest
        assert await applied_version(one) == 0


async def test_two_names_that_would_share_a_schema_are_refused(empty_database_url: str) -> None:
    async with of(empty_database_url, "my shop") as first, of(empty_database_url, "other") as other:
        await migrate(first)
        await migrate(other)
        async with of(empty_database_url, "Other") as same:
            with pytest.raises(ConfigError, match="'Other' and 'other' would share the schema tidemill_other"):
                await migrate(same)
        async with Database(DatabaseSettings(url=empty_database_url, schema="tidemill_four")) as installation:
            await migrate(installation)
        async with of(empty_database_url, "four") as four:
            with pytest.raises(ConfigError, match=r"in the schema tidemill_four of .*, which has others already"):
                await migrate(four)
