"""A PostgreSQL of the machine's own, started for the tests on a loopback port with a password, and a PgBouncer."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.ports import free_port

USER, PASSWORD = "shop", "s3cret/with:odd@signs"
QUOTED = "s3cret%2Fwith%3Aodd%40signs"
START_TIMEOUT = 60.0


class External:
    """A server: where it listens, and URLs for its databases."""

    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, database: str = "postgres", *, password: str = QUOTED, port: int | None = None) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{port or self.port}/{database}"

    def promote(self) -> None:
        """Make a standby the primary."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")


def find_binaries() -> Path:
    """Debian's newest PostgreSQL, or a skipped test."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        pytest.skip("no PostgreSQL server under /usr/lib/postgresql: apt-get install postgresql")
    return found[-1].parent


def unprivileged() -> dict[str, object]:
    """How to start a program that refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    pytest.skip("root needs a user `postgres` or `nobody` to run a server as")


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that belongs to the server's user."""
    folder = Path(tempfile.mkdtemp(prefix="tm-"))
    account = unprivileged()
    if account:
        os.chown(folder, int(str(account["user"])), int(str(account["group"])))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_program(command: list[str | Path], folder: Path, url: str) -> Iterator[None]:
    """A server program, from when it answers until the block ends."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, **unprivileged())  # pyright: ignore[reportCallIssue, reportArgumentType]
    try:
        give_up = time.monotonic() + START_TIMEOUT
        while True:
            try:
                psycopg.connect(url, connect_timeout=2).close()
                break
            except psycopg.OperationalError:
                said = (folder / "log").read_text(errors="replace")
                assert process.poll() is None, f"it ended with {process.returncode}:\n{said}"
                assert time.monotonic() < give_up, f"it does not answer:\n{said}"
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def external_server() -> Iterator[External]:
    """A PostgreSQL that asks for a password on a loopback port."""
    binaries = find_binaries()
    with private_folder() as folder:
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        initdb = [binaries / "initdb", "-D", folder / "data", "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **unprivileged())  # pyright: ignore[reportCallIssue, reportArgumentType]
        with _server_on(folder) as server:
            yield server


@contextmanager
def standby_of(primary: External) -> Iterator[External]:
    """A standby of the server, which follows it until it is promoted."""
    with private_folder() as folder:
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        copying: list[str | Path] = [find_binaries() / "pg_basebackup", "-h", "127.0.0.1", "-p", str(primary.port)]
        copying += ["-U", USER, "-D", folder / "data", "-c", "fast", "-R"]
        subprocess.run(copying, check=True, env=environment, cwd=folder, **unprivileged())  # pyright: ignore[reportCallIssue, reportArgumentType]
        with _server_on(folder) as standby:
            yield standby


@contextmanager
def _server_on(folder: Path) -> Iterator[External]:
    server = External(free_port())
    options = {"listen_addresses": "127.0.0.1", "port": server.port, "unix_socket_directories": "", "fsync": "off"}
    command: list[str | Path] = [find_binaries() / "postgres", "-D", folder / "data"]
    for name, value in options.items():
        command += ["-c", f"{name}={value}"]
    with running_program(command, folder, server.url()):
        yield server


@contextmanager
def pgbouncer(server: External, database: str, *, pool_size: int = 5) -> Iterator[External]:
    """A PgBouncer in transaction mode in front of the server; its `url` has the same databases."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("no PgBouncer on this machine: apt-get install pgbouncer")
    with private_folder() as folder:
        bouncer = External(free_port())
        (folder / "users.txt").write_text(f'"{USER}" "{PASSWORD}"\n')
        (folder / "pgbouncer.ini").write_text(f"""
[databases]
* = host=127.0.0.1 port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {bouncer.port}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 200
server_idle_timeout = 60
""")
        with running_program([program, folder / "pgbouncer.ini"], folder, bouncer.url(database)):
            yield bouncer
