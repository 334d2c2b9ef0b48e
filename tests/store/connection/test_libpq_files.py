"""Service files and password files are read as libpq reads them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from tidemill.core.errors import ConfigError
from tidemill.store.connection.libpq_files import find_password, with_service
from tidemill.store.connection.url import place_of
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.maintenance.backup import without_password

SERVICES = """
# of the team
[shop]
host=db.example.org
port=5433
user=ann
dbname=shop
password=100%:a@b/c

[lab]
host = a,b
"""


@pytest.fixture
def services(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "services").write_text(SERVICES)
    return {"PGSERVICEFILE": str(tmp_path / "services"), "PGSYSCONFDIR": str(tmp_path)}


def test_a_service_says_what_the_url_does_not(services: dict[str, str]) -> None:
    whole = with_service("postgresql://?service=shop", services)
    assert place_of(whole) == "db.example.org:5433/shop"
    assert with_service("postgresql://", {**services, "PGSERVICE": "shop"}) == whole
    own = with_service("postgresql://bob@other/elsewhere?service=shop&sslmode=require", services)
    assert own.startswith("postgresql://bob@other/elsewhere?password=")
    assert place_of(own) == "other:5432/elsewhere"
    assert place_of(with_service("postgresql:///shop?service=lab", services)) == "a:5432,b:5432/shop"
    assert with_service("postgresql://a/shop", services) == "postgresql://a/shop"


def test_a_service_may_be_in_the_file_of_the_system(services: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pg_service.conf").write_text("[night]\nhost=n\n")
    assert place_of(with_service("postgresql:///x?service=night", services)) == "n:5432/x"


def test_an_unknown_service_is_named_with_the_files(services: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no connection service 'nope' in {tmp_path}/services or "):
        with_service("postgresql://?service=nope", services)


def test_a_password_is_not_among_the_arguments_of_a_program(services: dict[str, str]) -> None:
    for url in (with_service("postgresql://?service=shop", services), "postgresql://ann:100%25:a%40b%2Fc@db/shop"):
        public, secret = without_password(url)
        assert secret == {"PGPASSWORD": "100%:a@b/c"}
        assert "100" not in public


@pytest.mark.parametrize(
    ("line", "password"),
    [
        (r"db:5432:*:ann:s3cret p@ss\:/w", "s3cret p@ss:/w"),
        (r"*:*:*:*:back\\slash", r"back\slash"),
        (r"db:5433:*:ann:other", None),
        (r"db:*:shop:ann:a:b", "a"),
        ("# db:*:*:*:no", None),
    ],
)
def test_passwords_of_a_file_may_have_escaped_characters(tmp_path: Path, line: str, password: str | None) -> None:
    file = tmp_path / "passwords"
    file.write_text(f"{line}\n")
    file.chmod(0o600)
    assert find_password(f"postgresql://ann@db/shop?passfile={file}", {}) == password
    assert find_password("postgresql://ann@db/shop", {"PGPASSFILE": str(file)}) == password
    assert find_password(f"postgresql://ann:own@db/shop?passfile={file}", {}) is None
    file.chmod(0o644)
    assert find_password(f"postgresql://ann@db/shop?passfile={file}", {}) is None, "others can read it"


async def test_a_database_is_reached_by_the_variable_of_a_service(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(database_url)
    settings = {"dbname": parts.path.strip("/"), "user": parts.username or "", **dict(parse_qsl(parts.query))}
    if parts.hostname:
        settings |= {"host": parts.hostname, "port": str(parts.port or 5432), "password": parts.password or ""}
    lines = [f"{key}={value}\n" for key, value in settings.items() if value]
    (tmp_path / "services").write_text("".join(["[here]\n", *lines]))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("PGSERVICE", "here")
    async with Database(DatabaseSettings(url="postgresql://")) as database:
        row = await database.fetchrow("SELECT current_database() AS name")
        assert row is not None
        assert row["name"] == settings["dbname"]
