"""The embedded server as its users meet it: started, shared, killed, moved about and misused."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import psycopg
import pytest

from tests.integration.embedded_support import (
    Neighbour,
    Watch,
    as_seeming_user,
    python_for_all,
    reachable_by_all,
)
from tidemill.core.errors import StoreError
from tidemill.store import pglog, pgprocess, pgsocket
from tidemill.store.embedded import EmbeddedServer, binaries

IS_ROOT = os.geteuid() == 0
NOBODY = 65534

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tested on Linux only")


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory with a short path."""
    path = Path(tempfile.mkdtemp(prefix="tm-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A database directory from an earlier run, in which no server runs between tests."""
    path = Path(tempfile.mkdtemp(prefix="tm-"))
    server = EmbeddedServer(path / ".tidemill")
    server.ensure()
    server.stop()
    yield path / ".tidemill"
    shutil.rmtree(path)


@pytest.fixture
def move(directory: Path, place: Path) -> Iterator[Callable[[Path], Path]]:
    """Move the database directory elsewhere for one test."""
    moved: list[Path] = []

    def move_to(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        moved.append(directory.rename(path))
        return path

    yield move_to
    for path in moved:
        path.rename(directory)


@pytest.fixture
def open_server(move: object) -> Iterator[Callable[[Path], EmbeddedServer]]:
    opened: list[EmbeddedServer] = []

    def open_one(directory: Path) -> EmbeddedServer:
        opened.append(EmbeddedServer(directory))
        return opened[-1]

    yield open_one
    for server in opened:
        server.stop()


@pytest.fixture
def server(directory: Path, open_server: Callable[[Path], EmbeddedServer]) -> EmbeddedServer:
    return open_server(directory)


@pytest.fixture
def neighbours(move: object) -> Iterator[Callable[..., Neighbour]]:
    started: list[Neighbour] = []

    def start(directory: Path, *prefix: str, **options: Any) -> Neighbour:
        started.append(Neighbour(directory, *prefix, **options))
        return started[-1]

    yield start
    for neighbour in started:
        if not neighbour.closed:
            neighbour.close()


def fetch(server: EmbeddedServer, query: str) -> object:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return row and row[0]


def write(server: EmbeddedServer, *statements: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def query_until_cut_off(connection: psycopg.Connection) -> None:
    while True:
        connection.execute("SELECT 1")


# Starting and stopping


async def test_a_new_directory_becomes_a_database_for_every_client(place: Path, open_server) -> None:
    server = open_server(place / ".tidemill")
    server.ensure()
    assert server.owned
    assert fetch(server, "SELECT current_user || '@' || current_database()") == "tidemill@tidemill"
    connection = await asyncpg.connect(server.dsn)
    assert await connection.fetchval("SHOW server_encoding") == "UTF8"
    await connection.close()
    psql = [binaries() / "psql", server.dsn, "-Atc", "SHOW timezone"]
    assert subprocess.run(psql, capture_output=True, text=True, check=True).stdout == "UTC\n"


def test_the_address_is_known_before_the_server_runs(server: EmbeddedServer) -> None:
    before = server.dsn
    server.ensure()
    assert server.dsn == before


def test_data_survive_a_stop_and_a_start(server: EmbeddedServer) -> None:
    server.ensure()
    write(server, "CREATE TABLE kept_over_stop AS SELECT 7 AS n")
    server.stop()
    assert not server.owned
    assert server.pid is None
    server.ensure()
    assert fetch(server, "SELECT n FROM kept_over_stop") == 7


def test_asking_for_a_running_server_is_cheap(server: EmbeddedServer) -> None:
    server.ensure()

    def seconds() -> float:
        begin = time.perf_counter()
        server.ensure()
        return time.perf_counter() - begin

    assert min(seconds() for _ in range(20)) < 0.005


def test_many_threads_that_ask_at_once_get_one_server(server: EmbeddedServer) -> None:
    pids: list[int | None] = []

    def ask() -> None:
        server.ensure()
        pids.append(server.pid)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pids == [server.pid] * 8


def test_the_thread_that_started_the_server_may_end(server: EmbeddedServer) -> None:
    thread = threading.Thread(target=server.ensure)
    thread.start()
    thread.join()
    begun = fetch(server, "SELECT pg_postmaster_start_time()")
    assert fetch(server, "SELECT pg_postmaster_start_time()") == begun
    assert server.owned


def test_a_large_log_is_cut_at_the_next_start(directory: Path, server: EmbeddedServer) -> None:
    log = directory / "postgres.log"
    log.write_bytes(b"old line\n" * (pglog.LARGEST // 9 + 1))
    server.ensure()
    assert log.stat().st_size < 100_000
    assert "ready to accept connections" in server.log_tail()
    assert len(server.log_tail(2).splitlines()) == 2


# Sharing


def test_five_processes_that_start_at_once_share_one_server(place: Path, open_server, neighbours) -> None:
    directory = place / ".tidemill"
    five = [neighbours(directory) for _ in range(5)]
    for each in five:
        each.tell("ensure")
    answers = [each.answer() for each in five]
    assert [answer["error"] for answer in answers] == [None] * 5
    assert sum(answer["owned"] for answer in answers) == 1
    server = open_server(directory)
    server.ensure()
    assert not server.owned
    assert fetch(server, "SELECT current_database()") == "tidemill"


def test_a_process_that_does_not_run_the_server_cannot_stop_it(directory, server, neighbours) -> None:
    server.ensure()
    neighbour = neighbours(directory)
    neighbour.ask("ensure")
    assert neighbour.ask("stop")["owned"] is False
    assert fetch(server, "SELECT 1") == 1


def test_the_server_stops_when_its_owner_exits(directory, neighbours) -> None:
    owner = neighbours(directory)
    postmaster = Watch(owner.ask("ensure")["pid"])
    owner.close()
    assert postmaster.ends()
    assert not (directory / "data" / "postmaster.pid").exists()


def test_the_server_does_not_outlive_its_killed_owner(directory, neighbours) -> None:
    owner = neighbours(directory)
    postmaster = Watch(owner.ask("ensure")["pid"])
    owner.kill()
    assert postmaster.ends()


def test_when_the_owner_is_killed_another_takes_over_with_all_that_was_committed(directory, server, neighbours) -> None:
    owner = neighbours(directory)
    assert owner.ask("ensure")["owned"]
    server.ensure()
    assert not server.owned
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept_over_takeover AS SELECT n FROM generate_series(1, 1000) AS n")
        owner.kill()
        with pytest.raises(psycopg.OperationalError):
            query_until_cut_off(connection)
    server.ensure()
    assert server.owned
    assert fetch(server, "SELECT sum(n) FROM kept_over_takeover") == 500500


def test_of_several_survivors_one_takes_over(directory, neighbours) -> None:
    owner = neighbours(directory)
    postmaster = Watch(owner.ask("ensure")["pid"])
    survivors = [neighbours(directory) for _ in range(3)]
    for each in survivors:
        assert each.ask("ensure")["owned"] is False
    owner.kill()
    assert postmaster.ends()
    for each in survivors:
        each.tell("ensure")
    assert sum(each.answer()["owned"] for each in survivors) == 1


def test_a_start_that_died_in_the_middle_is_finished_by_another(place: Path, open_server, neighbours) -> None:
    directory = place / ".tidemill"
    first = neighbours(directory)
    assert first.ask("stall in initdb") == {"stalled": True}
    assert list(directory.glob("data.new-*"))
    server = open_server(directory)
    waiting = threading.Thread(target=server.ensure)
    waiting.start()
    first.kill()
    waiting.join()
    assert server.owned
    assert not list(directory.glob("data.new-*"))


def test_a_forked_child_uses_the_server_and_takes_over_after_its_parent(directory, neighbours) -> None:
    parent = neighbours(directory)
    postmaster = Watch(parent.ask("ensure")["pid"])
    assert parent.ask("fork")["owned"] is False  # says the child, who listens from now on
    parent.kill()
    assert postmaster.ends()
    assert parent.ask("ensure")["owned"] is True


# Crashes of the server


def test_a_killed_postmaster_is_brought_back_and_leaves_no_zombie(server: EmbeddedServer) -> None:
    server.ensure()
    write(server, "CREATE TABLE kept_over_crash AS SELECT 7 AS n")
    first = server.pid
    assert first
    postmaster = Watch(first)
    os.kill(first, signal.SIGKILL)
    assert postmaster.ends()
    server.ensure()
    assert server.owned
    assert server.pid != first
    assert fetch(server, "SELECT n FROM kept_over_crash") == 7
    children = psutil.Process().children()
    assert [each.pid for each in children if each.status() == psutil.STATUS_ZOMBIE] == []


def test_a_killed_postmaster_is_brought_back_although_a_session_is_busy(server: EmbeddedServer) -> None:
    server.ensure()
    busy = psycopg.connect(server.dsn, autocommit=True)
    session = Watch(busy.info.backend_pid)
    busy.pgconn.send_query(b"DO $$ BEGIN LOOP END LOOP; END $$")
    busy.pgconn.flush()
    query = f"SELECT state FROM pg_stat_activity WHERE pid = {busy.info.backend_pid}"
    while fetch(server, query) != "active":
        pass
    assert server.pid
    os.kill(server.pid, signal.SIGKILL)
    server.ensure()
    assert session.ends()
    assert fetch(server, "SELECT 1") == 1
    busy.close()


def test_a_neighbour_may_bring_back_a_server_that_its_owner_does_not_miss(directory, server, neighbours) -> None:
    owner = neighbours(directory)
    os.kill(owner.ask("ensure")["pid"], signal.SIGKILL)
    server.ensure()
    assert fetch(server, "SELECT 1") == 1
    assert owner.ask("ensure")["owned"] is not server.owned


def test_a_killed_session_is_recovered_from_by_the_server_itself(server: EmbeddedServer) -> None:
    server.ensure()
    postmaster = server.pid
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        session = Watch(connection.info.backend_pid)
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        assert session.ends()
    server.ensure()
    assert server.pid == postmaster


def test_the_remains_of_a_crash_are_not_taken_for_a_running_server(directory: Path, server) -> None:
    # After a reboot, the recorded process id may belong to anyone: here to this test.
    (directory / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{directory / 'data'}\n0\n5432\n")
    (directory / "run").mkdir(exist_ok=True)
    (directory / "run" / ".s.PGSQL.5432.lock").write_text(f"{os.getpid()}\n")
    (directory / "run" / ".s.PGSQL.5432").touch()
    server.ensure()
    assert server.owned


def test_a_directory_that_was_removed_under_the_server_is_made_anew(place: Path, open_server) -> None:
    server = open_server(place / ".tidemill")
    server.ensure()
    shutil.rmtree(place / ".tidemill")
    server.ensure()
    assert fetch(server, "SELECT current_database()") == "tidemill"


# Paths


@pytest.mark.parametrize("name", ["with spaces", "with,comma", 'with"quote', "wïth ünicode", "with%20percent"])
def test_the_directory_may_have_any_name(place: Path, move, open_server, name: str) -> None:
    server = open_server(move(place / name))
    server.ensure()
    assert fetch(server, "SELECT 1") == 1
    remove_short_sockets(server)


async def test_a_deep_directory_works_and_its_socket_is_private(place: Path, move, open_server) -> None:
    deep = place.joinpath(*["deeper"] * 20, ".tidemill")
    assert len(os.fsencode(deep)) > 107
    server = open_server(move(deep))
    server.ensure()
    assert fetch(server, "SELECT 1") == 1
    await (await asyncpg.connect(server.dsn)).close()
    assert stat.S_IMODE(pgsocket.socket_directory(Path(os.path.realpath(deep))).stat().st_mode) == 0o700
    remove_short_sockets(server)


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


def remove_short_sockets(server: EmbeddedServer) -> None:
    sockets = server._sockets
    server.stop()
    if sockets.parent == pgsocket.SHORT_ROOT:
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
    server = open_server(place / ".tidemill")
    server.ensure()
    assert server.pid
    assert psutil.Process(server.pid).uids().effective == NOBODY
    assert fetch(server, "SELECT 1") == 1


@pytest.mark.skipif(not IS_ROOT, reason="only root has to become another user")
def test_root_becomes_nobody_where_user_namespaces_are_forbidden(
    place: Path, open_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not reachable_by_all(binaries()):
        pytest.skip(f"{binaries()} is not readable for other users")
    monkeypatch.setattr(pgprocess, "is_permitted", lambda account: False)
    place.chmod(0o755)
    server = open_server(place / ".tidemill")
    server.ensure()
    assert server.pid
    assert psutil.Process(server.pid).uids().effective == NOBODY
    assert fetch(server, "SELECT 1") == 1


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a directory away")
def test_a_socket_directory_of_somebody_else_is_refused(place: Path, open_server) -> None:
    server = open_server(place.joinpath(*["deeper"] * 20))
    server._sockets.mkdir()
    try:
        os.chown(server._sockets, NOBODY, NOBODY)
        with pytest.raises(StoreError, match="not a private directory of ours"):
            server.ensure()
    finally:
        server._sockets.rmdir()


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


def test_data_of_another_major_version_are_refused_and_untouched(directory: Path, server) -> None:
    (directory / "data" / "PG_VERSION").write_text("15\n")
    with pytest.raises(StoreError, match=r"made by PostgreSQL 15.*choose another directory"):
        server.ensure()
    (directory / "data" / "PG_VERSION").write_text(f"{pgprocess.major_version()}\n")
    server.ensure()
    assert fetch(server, "SELECT 1") == 1


def test_a_data_directory_that_is_not_one_is_refused(place: Path, open_server) -> None:
    (place / "data").mkdir()
    (place / "data" / "photos").touch()
    with pytest.raises(StoreError, match="neither empty nor a PostgreSQL data directory"):
        open_server(place).ensure()


def test_a_server_that_cannot_start_fails_at_once_with_the_end_of_its_log(directory: Path, server) -> None:
    settings = directory / "data" / "postgresql.auto.conf"
    good = settings.read_text()
    settings.write_text("max_connections = 'many'\n")
    with pytest.raises(StoreError, match=r"did not start[\s\S]*max_connections"):
        server.ensure()
    assert not server.owned
    settings.write_text(good)
    server.ensure()


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
