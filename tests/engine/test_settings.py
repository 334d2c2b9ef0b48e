"""Configuration: what wins, where it came from, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill.core.errors import ConfigError
from tidemill.engine.settings import ResolvedSetting, Settings, find_settings, hide_password, settings_from


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.tidemill]\nmax_concurrency = 3\nkeep-days = 7\nlease_seconds = "1m"\n'
    )
    return tmp_path


def found(folder: Path, arguments: dict[str, Any] | None = None, **environ: str) -> dict[str, ResolvedSetting]:
    return {item.name: item for item in find_settings(arguments or {}, environ=environ, folder=folder)}


def test_a_setting_that_nobody_gives_has_its_default(tmp_path: Path) -> None:
    items = found(tmp_path)
    assert {item.origin for item in items.values()} == {"default"}
    assert settings_from(list(items.values())) == Settings()


def test_every_setting_is_listed_once(tmp_path: Path) -> None:
    assert list(found(tmp_path)) == [field.name for field in msgspec.structs.fields(Settings)]


def test_the_project_file_beats_the_default_and_is_named(project: Path) -> None:
    item = found(project)["max_concurrency"]
    assert (item.value, item.origin) == (3, str(project / "pyproject.toml"))


def test_the_environment_beats_the_project_file_and_is_named(project: Path) -> None:
    item = found(project, TIDEMILL_MAX_CONCURRENCY="4")["max_concurrency"]
    assert (item.value, item.origin) == (4, "TIDEMILL_MAX_CONCURRENCY")


def test_an_argument_beats_everything(project: Path) -> None:
    item = found(project, {"max_concurrency": 5}, TIDEMILL_MAX_CONCURRENCY="4")["max_concurrency"]
    assert (item.value, item.origin) == (5, "argument")


def test_an_argument_that_is_not_given_hides_nothing(project: Path) -> None:
    item = found(project, {"max_concurrency": None}, TIDEMILL_MAX_CONCURRENCY="4")["max_concurrency"]
    assert (item.value, item.origin) == (4, "TIDEMILL_MAX_CONCURRENCY")


#: Every setting as text of a variable, and what it means; no setting has its default here.
BY_VARIABLE: dict[str, tuple[str, Any]] = {
    "database_url": ("postgresql://db/shop", "postgresql://db/shop"),
    "directory": ("elsewhere", "elsewhere"),
    "schema": ("other", "other"),
    "application": ("shop", "shop"),
    "pool_size": ("3", 3),
    "transaction_pooler": ("1", True),
    "listen_url": ("postgresql://db:5433/shop", "postgresql://db:5433/shop"),
    "max_concurrency": ("4", 4),
    "lease_seconds": ("1m", 60.0),
    "heartbeat_seconds": ("5s", 5.0),
    "grace_seconds": ("2m", 120.0),
    "stall_limit": ("10s", 10.0),
    "max_losses": ("7", 7),
    "max_payload": ("1 MiB", 2**20),
    "max_state": ("2 MiB", 2**21),
    "max_output": ("4 MiB", 2**22),
    "model_memory": ("8 GB", 8 * 10**9),
    "model_patience": ("1s", 1.0),
    "host_priority": ("lowest", "lowest"),
    "resources": ("gpu=1 scanner=0.5", {"gpu": 1.0, "scanner": 0.5}),
    "keep_days": ("7", 7),
    "metrics": ("0.0.0.0:9464", "0.0.0.0:9464"),
    "sample_every": ("0", 0.0),
    "workflow_folder": ("flows", "flows"),
    "allow_hosts": ("10.0.0.0/8, db", ("10.0.0.0/8", "db")),
    "allow_env": ("A B", ("A", "B")),
    "secret_key_file": ("keys", "keys"),
    "codec": ("compress", "compress"),
    "webhook_secret": ("s3cret", "s3cret"),
    "log_level": ("debug", "debug"),
    "log_format": ("json", "json"),
}


def test_every_setting_can_be_given_in_the_environment(tmp_path: Path) -> None:
    items = found(tmp_path, None, **{f"TIDEMILL_{name.upper()}": text for name, (text, _) in BY_VARIABLE.items()})
    assert {name: item.value for name, item in items.items()} == {
        name: value for name, (_, value) in BY_VARIABLE.items()
    }
    assert {item.origin for item in items.values()} == {f"TIDEMILL_{name.upper()}" for name in BY_VARIABLE}
    settings = settings_from(list(items.values()))
    defaults = Settings()
    assert not [name for name in BY_VARIABLE if getattr(settings, name) == getattr(defaults, name)]


def test_an_empty_variable_counts_as_unset(project: Path) -> None:
    assert found(project, TIDEMILL_MAX_CONCURRENCY="")["max_concurrency"].value == 3


def test_the_project_file_may_use_dashes_and_is_found_from_a_folder_below(project: Path) -> None:
    below = project / "src" / "shop"
    below.mkdir(parents=True)
    assert found(below)["keep_days"].value == 7


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("2m", 120.0), ("500ms", 0.5)])
def test_durations_may_be_written_as_people_write_them(tmp_path: Path, text: str, seconds: float) -> None:
    assert found(tmp_path, TIDEMILL_GRACE_SECONDS=text)["grace_seconds"].value == seconds
    assert found(tmp_path, {"grace_seconds": text})["grace_seconds"].value == seconds


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("yes", True), ("0", False), ("no", False)])
def test_yes_and_no_have_many_spellings(tmp_path: Path, text: str, value: bool) -> None:
    assert found(tmp_path, TIDEMILL_TRANSACTION_POOLER=text)["transaction_pooler"].value is value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("MAX_CONCURRENCY", "many"),
        ("MAX_CONCURRENCY", "2.5"),
        ("GRACE_SECONDS", "soon"),
        ("GRACE_SECONDS", "-1s"),
        ("TRANSACTION_POOLER", "perhaps"),
        ("KEEP_DAYS", "1w"),
    ],
)
def test_a_bad_value_is_refused_with_its_setting_and_origin(tmp_path: Path, variable: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_settings(environ={f"TIDEMILL_{variable}": text}, folder=tmp_path)
    message = str(caught.value)
    assert variable.lower() in message
    assert f"TIDEMILL_{variable}" in message
    assert text in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schema": "Has-Dash"}, "schema 'Has-Dash' is not usable"),
        ({"schema": "1st"}, "is not usable"),
        ({"schema": "user"}, "PostgreSQL reserves this name"),
        ({"schema": "pg_shop"}, "PostgreSQL reserves this name"),
        ({"schema": "a" * 32}, "is not usable"),
        ({"schema": 'x"; DROP'}, "is not usable"),
        ({"database_url": "mysql://h/d"}, "must start with postgresql://"),
        ({"listen_url": "localhost:5432"}, "must start with postgresql://"),
        ({"database_url": "postgresql://host:port/d"}, "port"),
        ({"pool_size": 0}, "pool_size must be at least 1"),
        ({"log_level": "loud"}, "log_level 'loud'"),
        ({"log_format": "xml"}, "log_format 'xml'"),
    ],
)
def test_values_that_cannot_work_are_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_from(find_settings(arguments, environ={}, folder=tmp_path))


def test_a_setting_that_does_not_exist_is_refused_with_the_ones_that_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no setting 'colour'; the settings are database_url, "):
        found(tmp_path, {"colour": "red"})
    (tmp_path / "pyproject.toml").write_text("[tool.tidemill]\ncolour = 'red'\n")
    with pytest.raises(ConfigError, match=r"pyproject.toml: \[tool.tidemill\] has an unknown setting 'colour'"):
        found(tmp_path)


def test_a_misspelt_variable_of_the_environment_warns_and_others_do_not(tmp_path: Path) -> None:
    message = "TIDEMILL_DATABSE_URL of the environment is no setting; did you mean TIDEMILL_DATABASE_URL"
    with pytest.warns(RuntimeWarning, match=message):
        assert found(tmp_path, TIDEMILL_DATABSE_URL="postgresql://h/d")["database_url"].value is None
    others = (
        "TOKEN",
        "TEST_DATABASE_URL",
        "SECRET_KEYS",
        "SERVER",
        "OIDC_ROLE",
        "SOURCES",
        "LISTEN_URL",
        "DATABASE_URL",
    )
    environ = {"DATABSE_URL": "x", **{f"TIDEMILL_{name}": "postgresql://h/d" for name in others}}
    with warnings.catch_warnings(action="error"):
        find_settings({}, environ=environ, folder=tmp_path)


@pytest.mark.parametrize("content", [b"[tool.tidemill\n", b"\xff\xfe"])
def test_a_project_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pyproject.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"pyproject\.toml cannot be read"):
        found(tmp_path)


def test_a_project_file_without_our_section_is_fine(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert found(tmp_path)["max_concurrency"].origin == "default"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s3cret@db:5432/shop",
        "postgresql://ann:s3cret@db/shop?sslmode=require",
        "postgresql://:s3cret@/shop",
        "postgresql://db/shop?user=ann&password=s3cret",
    ],
)
def test_a_password_is_never_shown(tmp_path: Path, url: str) -> None:
    item = found(tmp_path, TIDEMILL_DATABASE_URL=url)["database_url"]
    assert item.value == url
    assert "s3cret" not in item.shown
    assert "shop" in item.shown


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    for url in ("postgresql://ann@db/shop", "postgresql:///shop?host=/run/postgresql"):
        assert hide_password(url) == url


def test_roles_get_the_settings_that_concern_them() -> None:
    settings = Settings(
        database_url="postgresql://h/d",
        schema="s",
        max_concurrency=4,
        lease_seconds=30,
        heartbeat_seconds=5,
        keep_days=2,
    )
    assert settings.database().schema == "s"
    assert settings.worker(("a",)).max_concurrency == 4
    assert settings.worker(("a",), 9).max_concurrency == 9
    maintenance = settings.maintenance()
    assert (maintenance.lease_seconds, maintenance.silence_seconds, maintenance.keep_days) == (30, 15, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queues": ()}, "at least one queue"),
        ({"max_concurrency": 0}, "would run nothing"),
        ({"lease_seconds": 5.0}, "two heartbeats"),
    ],
)
def test_a_worker_that_could_not_work_is_refused(changes: dict[str, Any], message: str) -> None:
    worker = Settings().worker(("mail",))
    with pytest.raises(ConfigError, match=message):
        msgspec.structs.replace(worker, **changes).validate()


def test_finished_jobs_are_kept_for_a_day_at_least() -> None:
    with pytest.raises(ConfigError, match="at least one day"):
        Settings(keep_days=0).maintenance().validate()
