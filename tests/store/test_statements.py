"""Every statement names the schemas `tidemill` and `installation`, and must work under any other names."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tidemill import store
from tidemill.core.errors import ConfigError, StoreError
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import OWN_CHAIN
from tidemill.store.schemas import in_schema, schema_of

OURS = re.compile(r"\b(tidemill|installation)(\.|_jobs|_control|_schedules)")
SHARED = r"application|audit|host|host_sample|session|token"
schemas = st.from_regex(r"[a-z_][a-z0-9_]{0,30}", fullmatch=True).filter(lambda name: "tidemill" not in name)


def statements() -> dict[str, str]:
    """Every text constant of `store` that speaks of our tables or channels, and the migrations."""
    found: dict[str, str] = {}
    for info in pkgutil.walk_packages(store.__path__, "tidemill.store."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if name.lstrip("_").isupper() and isinstance(value, str) and OURS.search(value):
                found[f"{info.name.removeprefix('tidemill.store.')}.{name}"] = value
    for migration in OWN_CHAIN.migrations():
        for file in (migration.up, migration.down):
            found[file.name] = file.read_text()
    return found


STATEMENTS = statements()


def test_there_are_statements_to_look_at() -> None:
    assert len(STATEMENTS) > 50
    assert {"jobs.claims.claims.CLAIM_JOBS", "jobs.insert.INSERT_JOBS", "0001_jobs.sql"} <= set(STATEMENTS)


def test_no_statement_names_our_schema_or_channels_under_another_name() -> None:
    for name, text in STATEMENTS.items():
        assert not OURS.search(in_schema(text, "other_name")), name


@pytest.mark.parametrize("schema", ["tidemill_two", "my_tidemill"])
def test_a_schema_whose_name_contains_ours_is_put_in_as_it_is(schema: str) -> None:
    for name, text in STATEMENTS.items():
        rewritten = in_schema(text, schema, "installation")
        assert rewritten.replace(f"{schema}.", "tidemill.").replace(f"'{schema}_", "'tidemill_") == text, name


def test_what_applications_share_is_in_the_installations_schema_and_nothing_else_is() -> None:
    for name, text in STATEMENTS.items():
        if not name.endswith(".sql"):
            assert not re.search(rf"\btidemill\.({SHARED})\b", text), name
            assert not re.search(rf"\binstallation\.(?!({SHARED})\b)", text), name


@given(schemas)
def test_words_that_only_look_like_our_schema_stay(schema: str) -> None:
    for text in ("SELECT 'tidemill is nice'", "FROM mytidemill.job", "application_name = 'tidemill worker'"):
        assert in_schema(text, schema) == text


def test_channels_and_statements_agree_about_the_schema() -> None:
    database = Database(DatabaseSettings(url="postgresql://h/d", schema="other_name"))
    assert database.channel("jobs") == "other_name_jobs"
    assert f"'{database.channel('jobs')}'" in database.sql("SELECT pg_notify('tidemill_jobs', '')")


def test_statements_know_the_application_and_the_installation_apart() -> None:
    settings = DatabaseSettings(url="postgresql://h/d", schema="mill", application="two")
    database = Database(settings)
    with pytest.raises(StoreError, match="not open"):
        database.sql("SELECT FROM tidemill.job")
    database.located([("one", "mill"), ("two", "mill_two")])
    assert database.sql("SELECT FROM tidemill.job, installation.token") == "SELECT FROM mill_two.job, mill.token"
    assert (database.channel("jobs"), database.channel("hosts")) == ("mill_two_jobs", "mill_hosts")
    assert database.sql("SELECT pg_notify('tidemill_jobs', ''), pg_notify('installation_hosts', '')") == (
        "SELECT pg_notify('mill_two_jobs', ''), pg_notify('mill_hosts', '')"
    )


def test_a_database_with_several_applications_asks_which_one_is_meant() -> None:
    database = Database(DatabaseSettings(url="postgresql://h/d"))
    database.located([("one", "tidemill"), ("two", "tidemill_two")])
    assert database.sql("SELECT FROM installation.token") == "SELECT FROM tidemill.token"
    with pytest.raises(ConfigError, match=r"several applications \(one, two\): name one of them with --application"):
        database.sql("SELECT FROM tidemill.job")


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("shop", "tidemill_shop"),
        ("My Shop!", "tidemill_my_shop_"),
        ('"; DROP TABLE x; --', "tidemill__drop_table_x_"),
        ("übersicht", "tidemill__bersicht"),
        ("7", "tidemill_7"),
    ],
)
def test_any_name_of_an_application_makes_a_schema_that_needs_no_quotes(name: str, schema: str) -> None:
    assert schema_of(name, "tidemill") == schema


@given(st.text(min_size=1, max_size=200), schemas)
def test_names_of_schemas_and_channels_are_never_too_long(name: str, installation: str) -> None:
    made = schema_of(name, installation)
    assert re.fullmatch(r"[a-z_][a-z0-9_]*", made)
    assert len(f"{made}_schedules") <= 63


def test_every_migration_has_a_way_down() -> None:
    for migration in OWN_CHAIN.migrations():
        assert migration.down.exists()


def test_migrations_name_the_schema_of_everything_they_make() -> None:
    kinds = r"TABLE|FUNCTION|(?:UNIQUE )?INDEX(?: \w+ ON)?|TRIGGER [\w ]+ ON"
    makes = re.compile(rf"^ *(?:CREATE(?: OR REPLACE)?|ALTER|DROP) (?:{kinds})(?: IF EXISTS)?\s+([\w.]+)", re.MULTILINE)
    for file in sorted(Path(OWN_CHAIN.folder).glob("*.sql")):
        made = makes.findall(file.read_text())
        assert made, file.name
        assert all(name.startswith("tidemill.") for name in made), file.name


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://ann:s3cret@db:5433/shop", "db:5433/shop"),
        ("postgresql://ann:s3cret@db/shop", "db:5432/shop"),
        ("postgresql:///shop", "localhost:5432/shop"),
    ],
)
def test_the_servers_address_for_people_has_no_password(url: str, where: str) -> None:
    assert Database(DatabaseSettings(url=url)).where == where
