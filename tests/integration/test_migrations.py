"""The schema: up, down, up again, by one process at a time, and who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import eventually, finished, running_maintenance, value
from tidemill import App
from tidemill.core.errors import ConfigError, SchemaError, StoreError
from tidemill.engine.maintenance import maintenance_role
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import OWN_CHAIN, Chain, applied_version, downgrade, migrate, wait_for_schema

TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = $1"


@pytest.fixture
async def empty(empty_database_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=empty_database_url)) as opened:
        yield opened


def write_chain(folder: Path, *migrations: tuple[str, str], ledger: str = "shop_version") -> Chain:
    folder.mkdir(exist_ok=True)
    for number, (up, down) in enumerate(migrations, 1):
        (folder / f"{number:04}_step.sql").write_text(up)
        (folder / f"{number:04}_step.down.sql").write_text(down)
    return Chain(folder, ledger=ledger)


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


async def test_a_host_has_a_chain_of_its_own_with_its_own_ledger(empty: Database, tmp_path: Path) -> None:
    chain = write_chain(
        tmp_path,
        ("CREATE TABLE public.orders (id int)", "DROP TABLE public.orders"),
        ("ALTER TABLE public.orders ADD paid boolean", "ALTER TABLE public.orders DROP paid"),
    )
    await migrate(empty)
    assert len(await migrate(empty, chain, to=1)) == 1
    assert await applied_version(empty, chain) == 1
    assert [m.version for m in await migrate(empty, chain)] == [2]
    assert await value(empty, "SELECT count(*) FROM tidemill.shop_version") == 2
    assert await applied_version(empty) == OWN_CHAIN.latest
    await downgrade(empty, chain, to=0)
    assert await applied_version(empty, chain) == 0
    assert await applied_version(empty) == OWN_CHAIN.latest
    assert await value(empty, "SELECT to_regclass('public.orders')") is None


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
        await migrate(empty, Chain(tmp_path, ledger="x"))


async def test_a_chain_that_cannot_be_kept_is_refused(empty: Database, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no migrations folder"):
        await migrate(empty, Chain(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="is not usable as a ledger"):
        await migrate(empty, Chain(tmp_path, ledger="x; DROP TABLE y"))
    with pytest.raises(SchemaError, match="there is no version 9"):
        await migrate(empty, Chain(tmp_path, ledger="x"), to=9)


# Who waits for it


async def test_a_worker_waits_for_the_schema_and_never_makes_it(empty_database_url: str, empty: Database) -> None:
    app = App("early", database_url=empty_database_url)

    @app.task
    async def greet() -> str:
        return "hello"

    worker = app.worker()
    life = asyncio.create_task(worker.run())
    try:
        connected = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidemill worker early'"
        await eventually(lambda: value(empty, connected))
        assert await applied_version(empty) == 0
        assert worker.worker_id == 0
        await migrate(empty)
        await asyncio.wait_for(worker.wait_ready(), 60)
        ref = await app.enqueue(greet)
        assert (await finished(empty, ref.id))["result"] == b'"hello"'
        worker.stop()
        await asyncio.wait_for(life, 60)
    finally:
        life.cancel()
        await app.close()


async def test_waiting_for_a_schema_that_does_not_come_says_what_to_do(empty: Database) -> None:
    with pytest.raises(SchemaError, match=r"at schema version 0, and this code needs \d+: run `tidemill db migrate`"):
        await wait_for_schema(empty, patience=0.1)


async def test_a_newer_schema_than_the_code_knows_is_a_clear_error_for_everyone(app: App, database: Database) -> None:
    @app.task
    async def greet() -> None: ...

    await database.fetch("INSERT INTO tidemill.schema_version (version, name) VALUES (99, 'from the future')")
    message = rf"is at schema version 99, but this code knows only {OWN_CHAIN.latest}: install a newer tidemill"
    for attempt in (
        app.enqueue(greet),
        app.worker().run(),
        maintenance_role(app.database()).run(),
        wait_for_schema(database),
        migrate(database),
        downgrade(database, to=0),
    ):
        with pytest.raises(SchemaError, match=message):
            await asyncio.wait_for(attempt, 60)


async def test_the_maintenance_applies_the_applications_own_migrations_after_ours(
    empty: Database, empty_database_url: str, tmp_path: Path
) -> None:
    shop = App("shop", database_url=empty_database_url)
    write_chain(tmp_path, ("CREATE TABLE sale (job bigint REFERENCES tidemill.worker (id))", "DROP TABLE sale"))
    shop.migrations(tmp_path, ledger="shop_version")
    async with shop.running():
        assert await value(empty, "SELECT count(*) FROM sale") == 0
        assert await applied_version(empty, shop.chains[0]) == 1


def test_two_chains_cannot_share_a_ledger(tmp_path: Path) -> None:
    shop = App("shop")
    write_chain(tmp_path, ("SELECT 1", "SELECT 1"))
    with pytest.raises(ConfigError, match="'schema_version' is another chain's"):
        shop.migrations(tmp_path, ledger="schema_version")
    with pytest.raises(ConfigError, match="no migrations folder"):
        shop.migrations(tmp_path / "nowhere", ledger="shop_version")
    shop.migrations(tmp_path, ledger="shop_version")
    with pytest.raises(ConfigError, match="'shop_version' is another chain's"):
        shop.migrations(tmp_path, ledger="shop_version")
