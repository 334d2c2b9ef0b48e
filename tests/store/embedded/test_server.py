"""The embedded server as its users meet it: started, shared, killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import asyncpg
import psutil
import psycopg
import pytest

from tests.store.embedded.neighbour import (
    Watch,
    fetch,
)
from tidemill.store.embedded import server_log
from tidemill.store.embedded.server import EmbeddedServer, binaries

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tested on Linux only")


def write(embedded: EmbeddedServer, *statements: str) -> None:
    with psycopg.connect(embedded.dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def query_until_cut_off(connection: psycopg.Connection) -> None:
    while True:
        connection.execute("SELECT 1")


# Starting and stopping


async def test_a_new_directory_becomes_a_database_for_every_client(place: Path, open_server) -> None:
    embedded = open_server(place / ".tidemill")
    embedded.ensure()
    assert embedded.owned
    assert fetch(embedded, "SELECT current_user || '@' || current_database()") == "tidemill@tidemill"
    connection = await asyncpg.connect(embedded.dsn)
    assert await connection.fetchval("SHOW server_encoding") == "UTF8"
    await connection.close()
    psql = [binaries() / "psql", embedded.dsn, "-Atc", "SHOW timezone"]
    assert subprocess.run(psql, capture_output=True, text=True, check=True).stdout == "UTC\n"


def test_the_address_is_known_before_the_server_runs(embedded: EmbeddedServer) -> None:
    before = embedded.dsn
    embedded.ensure()
    assert embedded.dsn == before


def test_data_survive_a_stop_and_a_start(embedded: EmbeddedServer) -> None:
    embedded.ensure()
    write(embedded, "CREATE TABLE kept_over_stop AS SELECT 7 AS n")
    embedded.stop()
    assert not embedded.owned
    assert embedded.pid is None
    embedded.ensure()
    assert fetch(embedded, "SELECT n FROM kept_over_stop") == 7


def test_asking_for_a_running_server_is_cheap(embedded: EmbeddedServer) -> None:
    embedded.ensure()

    def seconds() -> float:
        begin = time.thread_time()
        embedded.ensure()
        return time.thread_time() - begin

    assert min(seconds() for _ in range(20)) < 0.005


def test_many_threads_that_ask_at_once_get_one_server(embedded: EmbeddedServer) -> None:
    pids: list[int | None] = []

    def ask() -> None:
        embedded.ensure()
        pids.append(embedded.pid)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pids == [embedded.pid] * 8


def test_the_thread_that_started_the_server_may_end(embedded: EmbeddedServer) -> None:
    thread = threading.Thread(target=embedded.ensure)
    thread.start()
    thread.join()
    begun = fetch(embedded, "SELECT pg_postmaster_start_time()")
    assert fetch(embedded, "SELECT pg_postmaster_start_time()") == begun
    assert embedded.owned


def test_a_large_log_is_cut_at_the_next_start(directory: Path, embedded: EmbeddedServer) -> None:
    log = directory / "postgres.log"
    log.write_bytes(b"old line\n" * (server_log.LARGEST // 9 + 1))
    embedded.ensure()
    assert log.stat().st_size < 100_000
    assert "ready to accept connections" in log.read_text()


# Sharing


def test_five_processes_that_start_at_once_share_one_server(place: Path, open_server, neighbours) -> None:
    directory = place / ".tidemill"
    five = [neighbours(directory) for _ in range(5)]
    for each in five:
        each.tell("ensure")
    answers = [each.answer() for each in five]
    assert [answer["error"] for answer in answers] == [None] * 5
    assert sum(answer["owned"] for answer in answers) == 1
    embedded = open_server(directory)
    embedded.ensure()
    assert not embedded.owned
    assert fetch(embedded, "SELECT current_database()") == "tidemill"


def test_a_process_that_does_not_run_the_server_cannot_stop_it(directory, embedded, neighbours) -> None:
    embedded.ensure()
    neighbour = neighbours(directory)
    neighbour.ask("ensure")
    assert neighbour.ask("stop")["owned"] is False
    assert fetch(embedded, "SELECT 1") == 1


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


def test_when_the_owner_is_killed_another_takes_over_with_all_that_was_committed(
    directory, embedded, neighbours
) -> None:
    owner = neighbours(directory)
    assert owner.ask("ensure")["owned"]
    embedded.ensure()
    assert not embedded.owned
    with psycopg.connect(embedded.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept_over_takeover AS SELECT n FROM generate_series(1, 1000) AS n")
        owner.kill()
        with pytest.raises(psycopg.OperationalError):
            query_until_cut_off(connection)
    embedded.ensure()
    assert embedded.owned
    assert fetch(embedded, "SELECT sum(n) FROM kept_over_takeover") == 500500


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
    embedded = open_server(directory)
    waiting = threading.Thread(target=embedded.ensure)
    waiting.start()
    first.kill()
    waiting.join()
    assert embedded.owned
    assert not list(directory.glob("data.new-*"))


def test_a_forked_child_uses_the_server_and_takes_over_after_its_parent(directory, neighbours) -> None:
    parent = neighbours(directory)
    postmaster = Watch(parent.ask("ensure")["pid"])
    assert parent.ask("fork")["owned"] is False  # says the child, who listens from now on
    parent.kill()
    assert postmaster.ends()
    assert parent.ask("ensure")["owned"] is True


# Crashes of the server


def test_a_killed_postmaster_is_brought_back_and_leaves_no_zombie(embedded: EmbeddedServer) -> None:
    embedded.ensure()
    write(embedded, "CREATE TABLE kept_over_crash AS SELECT 7 AS n")
    first = embedded.pid
    assert first
    postmaster = Watch(first)
    os.kill(first, signal.SIGKILL)
    assert postmaster.ends()
    embedded.ensure()
    assert embedded.owned
    assert embedded.pid != first
    assert fetch(embedded, "SELECT n FROM kept_over_crash") == 7
    children = psutil.Process().children()
    assert [each.pid for each in children if each.status() == psutil.STATUS_ZOMBIE] == []


def test_a_killed_postmaster_is_brought_back_although_a_session_is_busy(embedded: EmbeddedServer) -> None:
    embedded.ensure()
    busy = psycopg.connect(embedded.dsn, autocommit=True)
    session = Watch(busy.info.backend_pid)
    busy.pgconn.send_query(b"DO $$ BEGIN LOOP END LOOP; END $$")
    busy.pgconn.flush()
    query = f"SELECT state FROM pg_stat_activity WHERE pid = {busy.info.backend_pid}"
    while fetch(embedded, query) != "active":
        pass
    assert embedded.pid
    os.kill(embedded.pid, signal.SIGKILL)
    embedded.ensure()
    assert session.ends()
    assert fetch(embedded, "SELECT 1") == 1
    busy.close()


def test_a_neighbour_may_bring_back_a_server_that_its_owner_does_not_miss(directory, embedded, neighbours) -> None:
    owner = neighbours(directory)
    os.kill(owner.ask("ensure")["pid"], signal.SIGKILL)
    embedded.ensure()
    assert fetch(embedded, "SELECT 1") == 1
    assert owner.ask("ensure")["owned"] is not embedded.owned


def test_a_killed_session_is_recovered_from_by_the_server_itself(embedded: EmbeddedServer) -> None:
    embedded.ensure()
    postmaster = embedded.pid
    with psycopg.connect(embedded.dsn, autocommit=True) as connection:
        session = Watch(connection.info.backend_pid)
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        assert session.ends()
    embedded.ensure()
    assert embedded.pid == postmaster


def test_the_remains_of_a_crash_are_not_taken_for_a_running_server(directory: Path, embedded) -> None:
    # After a reboot, the recorded process id may belong to anyone: here to this test.
    (directory / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{directory / 'data'}\n0\n5432\n")
    (directory / "run").mkdir(exist_ok=True)
    (directory / "run" / ".s.PGSQL.5432.lock").write_text(f"{os.getpid()}\n")
    (directory / "run" / ".s.PGSQL.5432").touch()
    embedded.ensure()
    assert embedded.owned


def test_a_directory_that_was_removed_under_the_server_is_made_again(place: Path, open_server) -> None:
    embedded = open_server(place / ".tidemill")
    embedded.ensure()
    while (place / ".tidemill").exists():  # The server still writes files there.
        shutil.rmtree(place / ".tidemill", ignore_errors=True)
    embedded.ensure()
    assert fetch(embedded, "SELECT current_database()") == "tidemill"
