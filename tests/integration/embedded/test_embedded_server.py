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

from tests.integration.embedded.neighbour import (
    Watch,
    fetch,
)
from tidemill.store.embedded import server_log
from tidemill.store.embedded.server import EmbeddedServer, binaries

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tested on Linux only")


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
        begin = time.thread_time()
        server.ensure()
        return time.thread_time() - begin

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
    log.write_bytes(b"old line\n" * (server_log.LARGEST // 9 + 1))
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
