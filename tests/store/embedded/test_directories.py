"""Where and for whom the embedded server runs: any directory, any user; and what it says where it cannot."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import asyncpg
import psutil
import pytest

from tests.store.embedded.neighbour import (
    as_seeming_user,
    fetch,
    python_for_all,
    reachable_by_all,
)
from tidemill.core.errors import StoreError
from tidemill.store.embedded import process, socket
from tidemill.store.embedded.server import EmbeddedServer, binaries

IS_ROOT = os.geteuid() == 0
NOBODY = 65534

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tested on Linux only")


# Paths


@pytest.mark.parametrize("name", ["with spaces", "with,comma", 'with"quote', "wïth ünicode", "with%20percent"])
def test_the_directory_may_have_any_name(place: Path, move, open_server, name: str) -> None:
    embedded = open_server(move(place / name))
    embedded.ensure()
    assert fetch(embedded, "SELECT 1") == 1
    remove_short_sockets(embedded)


async def test_a_deep_directory_works_and_its_socket_is_private(place: Path, move, open_server) -> None:
    deep = place.joinpath(*["deeper"] * 20, ".tidemill")
    assert len(os.fsencode(deep)) > 107
    embedded = open_server(move(deep))
    embedded.ensure()
    assert fetch(embedded, "SELECT 1") == 1
    await (await asyncpg.connect(embedded.dsn)).close()
    assert stat.S_IMODE(socket.socket_directory(Path(os.path.realpath(deep))).stat().st_mode) == 0o700
    remove_short_sockets(embedded)


def test_a_private_directory_reached_through_a_symlink_is_the_same_database(
    place: Path, directory, open_server
) -> None:
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    (place / "link").symlink_to(directory)
    direct, linked = open_server(directory), open_server(place / "link")
    direct.ensure()
    linked.ensure()
    assert linked.dsn == direct.dsn
    assert not linked.owned


def remove_short_sockets(embedded: EmbeddedServer) -> None:
    sockets = embedded._sockets
    embedded.stop()
    if sockets.parent == socket.SHORT_ROOT:
        sockets.rmdir()


# Users


def test_a_normal_user_runs_the_server_as_himself(place: Path, neighbours) -> None:
    prefix = as_seeming_user()
    if not IS_ROOT:
        pytest.skip("we are a normal user: every test here shows it")
    if not prefix:
        pytest.skip("user namespaces are not permitted here")
    answer = neighbours(place / ".tidemill", *prefix).ask("ensure")
    assert answer["error"] is None
    assert (answer["uid"], answer["owned"]) == (NOBODY, True)


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_another_user_runs_the_server_as_himself(place: Path, neighbours) -> None:
    python = python_for_all()
    if python is None or not reachable_by_all(binaries()):
        pytest.skip("no interpreter of this version, or none of its packages, can be used by other users here")
    os.chown(place, NOBODY, NOBODY)
    other = neighbours(place / ".tidemill", python=python, user=NOBODY, group=NOBODY, extra_groups=[])
    answer = other.ask("ensure")
    assert answer["error"] is None
    assert psutil.Process(answer["pid"]).uids().effective == NOBODY


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_root_runs_the_server_of_another_user_as_that_user(place: Path, open_server) -> None:
    if not reachable_by_all(binaries()):
        pytest.skip(f"{binaries()} is not readable for other users")
    place.chmod(0o755)
    (place / ".tidemill").mkdir(mode=0o700)
    os.chown(place / ".tidemill", NOBODY, NOBODY)
    embedded = open_server(place / ".tidemill")
    embedded.ensure()
    assert embedded.pid
    assert psutil.Process(embedded.pid).uids().effective == NOBODY
    assert fetch(embedded, "SELECT 1") == 1


@pytest.mark.skipif(not IS_ROOT, reason="only root has to become another user")
def test_root_becomes_nobody_where_user_namespaces_are_forbidden(
    place: Path, open_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not reachable_by_all(binaries()):
        pytest.skip(f"{binaries()} is not readable for other users")
    monkeypatch.setattr(process, "is_permitted", lambda account: False)
    place.chmod(0o755)
    embedded = open_server(place / ".tidemill")
    embedded.ensure()
    assert embedded.pid
    assert psutil.Process(embedded.pid).uids().effective == NOBODY
    assert fetch(embedded, "SELECT 1") == 1


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a directory away")
def test_a_socket_directory_of_another_user_is_refused(place: Path, open_server) -> None:
    embedded = open_server(place.joinpath(*["deeper"] * 20))
    embedded._sockets.mkdir()
    try:
        os.chown(embedded._sockets, NOBODY, NOBODY)
        with pytest.raises(StoreError, match="not a private directory of this user"):
            embedded.ensure()
    finally:
        embedded._sockets.rmdir()


# What cannot work says so


def test_a_directory_that_is_a_file_is_named_in_the_error(place: Path, open_server) -> None:
    (place / "file").touch()
    for path in (place / "file", place / "file" / "below"):
        with pytest.raises(StoreError, match=r"a file is in the way.*choose another directory"):
            open_server(path).ensure()


def test_an_unwritable_directory_is_named_in_the_error(place: Path, neighbours) -> None:
    prefix = as_seeming_user() if IS_ROOT else []
    if IS_ROOT and not prefix:
        pytest.skip("root can write anywhere, and user namespaces are not permitted here")
    place.chmod(0o500)
    error = neighbours(place / ".tidemill", *prefix).ask("ensure")["error"]
    assert str(place) in error
    assert "may not read or write there" in error


def test_data_of_another_major_version_are_refused_and_untouched(directory: Path, embedded) -> None:
    (directory / "data" / "PG_VERSION").write_text("15\n")
    with pytest.raises(StoreError, match=r"made by PostgreSQL 15.*choose another directory"):
        embedded.ensure()
    (directory / "data" / "PG_VERSION").write_text(f"{process.major_version()}\n")
    embedded.ensure()
    assert fetch(embedded, "SELECT 1") == 1


def test_a_data_directory_that_is_not_one_is_refused(place: Path, open_server) -> None:
    (place / "data").mkdir()
    (place / "data" / "photos").touch()
    with pytest.raises(StoreError, match="neither empty nor a PostgreSQL data directory"):
        open_server(place).ensure()


def test_a_server_that_cannot_start_fails_at_once_with_the_end_of_its_log(directory: Path, embedded) -> None:
    settings = directory / "data" / "postgresql.auto.conf"
    good = settings.read_text()
    settings.write_text("max_connections = 'many'\n")
    with pytest.raises(StoreError, match=r"did not start[\s\S]*max_connections"):
        embedded.ensure()
    assert not embedded.owned
    settings.write_text(good)
    embedded.ensure()


def test_a_full_disk_is_named_in_the_error(place: Path, neighbours) -> None:
    private_disk = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount -t tmpfs -o size=8m none {place} && exec "$@"',
        "sh",
    ]
    if not IS_ROOT or subprocess.run([*private_disk, "true"], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    error = neighbours(place / ".tidemill", *private_disk).ask("ensure")["error"]
    assert "the disk is full: free some space" in error
