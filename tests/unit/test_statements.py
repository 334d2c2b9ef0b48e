"""Every statement is written for the schema `tidemill` and must work under any other name."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill import store
from tidemill.store.database import Database, DatabaseSettings, in_schema
from tidemill.store.migrate import OWN_CHAIN

OURS = re.compile(r"\btidemill(\.|_jobs|_control|_schedules)")
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
    assert {"jobs.claims.CLAIM_JOBS", "jobs.insert.INSERT_JOBS", "0001_jobs.sql"} <= set(STATEMENTS)


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_statement_names_our_schema_or_channels_under_another_name(name: str) -> None:
    assert not OURS.search(in_schema(STATEMENTS[name], "other_name"))


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_schema_whose_name_contains_ours_is_put_in_as_it_is(name: str) -> None:
    for schema in ("tidemill_two", "my_tidemill"):
        rewritten = in_schema(STATEMENTS[name], schema)
        assert rewritten.replace(f"{schema}.", "tidemill.").replace(f"'{schema}_", "'tidemill_") == STATEMENTS[name]


@given(schemas)
def test_words_that_only_look_like_our_schema_stay(schema: str) -> None:
    for text in ("SELECT 'tidemill is nice'", "FROM mytidemill.job", "application_name = 'tidemill worker'"):
        assert in_schema(text, schema) == text


def test_channels_and_statements_agree_about_the_schema() -> None:
    database = Database(DatabaseSettings(url="postgresql://h/d", schema="other_name"))
    assert database.channel("jobs") == "other_name_jobs"
    assert f"'{database.channel('jobs')}'" in database.sql("SELECT pg_notify('tidemill_jobs', '')")


def test_every_migration_has_a_way_down() -> None:
    for migration in OWN_CHAIN.migrations():
        assert migration.down.exists()


@pytest.mark.parametrize("file", sorted(Path(OWN_CHAIN.folder).glob("*.sql")), ids=lambda file: file.name)
def test_migrations_name_the_schema_of_everything_they_make(file: Path) -> None:
    kinds = r"TABLE|FUNCTION|(?:UNIQUE )?INDEX(?: \w+ ON)?"
    made = re.findall(rf"^(?:CREATE(?: OR REPLACE)?|DROP) (?:{kinds})\s+([\w.]+)", file.read_text(), re.MULTILINE)
    assert made
    assert all(name.startswith("tidemill.") for name in made)


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
