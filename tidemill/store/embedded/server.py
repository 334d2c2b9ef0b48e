"""A private PostgreSQL that needs no setup, shared by all processes that open its directory.

A process that finds no running server locks the directory and starts one, as a child that cannot outlive it; the
others only connect. When that process exits or is killed, the next process that misses the server takes over:

    server = EmbeddedServer(".tidemill")
    server.ensure()          # connectable now; cheap if it already runs, so call it when a connection breaks
    connect(server.dsn)
    server.stop()            # at exit too; only the process that runs the server stops it

In the directory: `data` (the database), `run` (the socket, if the path is short enough), `postgres.log` and two
locks. The process that runs the server holds `owner.lock`, the server's own processes hold `server.lock`. A takeover
needs both, so two servers never share the data, even while the old one shuts down.

Linux and macOS. Where the kernel has no death signal (macOS), a server whose owner was killed keeps running until the
machine stops; other processes find and use it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from tidemill.core.errors import StoreError
from tidemill.store.embedded import cluster, socket
from tidemill.store.embedded.process import IMMEDIATE_SHUTDOWN, Account, Postmaster, account_for, binaries
from tidemill.store.embedded.server_log import ServerLog

__all__ = ["EmbeddedServer", "binaries"]

PAUSE = 0.03  # between two polls of another process's progress, which sends no wake-up


class EmbeddedServer:
    """A private PostgreSQL under `directory` (default ./.tidemill), shared by every process that opens it."""

    def __init__(self, directory: Path | str = ".tidemill") -> None:
        # The real path, so that all processes find the same socket for the same directory.
        self._directory = Path(os.path.realpath(directory))
        self._data = self._directory / "data"
        self._sockets = socket.socket_directory(self._directory)
        self._log = ServerLog(self._directory / "postgres.log")
        self._owner_lock = OwnerLock(self._directory / "owner.lock")
        self._postmaster: Postmaster | None = None
        self._turn = threading.Lock()
        _servers.add(self)

    @property
    def dsn(self) -> str:
        """The address for asyncpg, psycopg and psql; the same whether or not the server runs."""
        return socket.dsn_for(self._sockets)

    @property
    def owned(self) -> bool:
        """Whether this process runs the server now."""
        return self.pid is not None

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster, if this process runs it."""
        postmaster = self._postmaster
        return postmaster.pid if postmaster is not None and postmaster.running else None

    def ensure(self) -> None:
        """Return when the server accepts connections; start it if it does not run.

        Blocks without a deadline: recovery after a crash may take long. A StoreError says why the server cannot start.
        Safe to call from any thread.
        """
        with self._explaining():
            if self._answers():
                return
        with self._turn, self._explaining():
            while not self._answers():
                if self.owned:
                    self._await_own()
                elif self._lock_directory():
                    self._start()
                else:
                    time.sleep(PAUSE)

    def stop(self) -> None:
        """Shut the server down if this process runs it; otherwise do nothing."""
        postmaster = self._postmaster
        if postmaster is not None:
            atexit.unregister(self.stop)
            postmaster.stop()

    def _answers(self) -> bool:
        socket.check_private(self._sockets, self._directory)
        return socket.answers(self._sockets)

    def _lock_directory(self) -> bool:
        if not self._directory.exists():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._directory / ".gitignore").write_text("*\n")
        return self._owner_lock.acquire()

    def _start(self) -> None:
        """Start the server under the owner's lock, which is released if that fails or when the server exits."""
        try:
            account = self._choose_account()
            if not self._previous_is_gone():
                self._owner_lock.release()  # it runs and answers, so no takeover is needed
                return
            socket.make_private(self._sockets)
            account.own(self._sockets)
            socket.check_private(self._sockets, self._directory)
            cluster.prepare_data(self._data, account)
            cluster.remove_stale_locks(self._data, self._sockets)
            self._log.trim()
            self._log.open().close()
            account.own(self._log.path)
            logged = self._log.size()
            postmaster = Postmaster(
                account,
                ["-D", str(self._data), "-k", f'"{self._sockets}"'],
                lock=self._directory / "server.lock",
                log=self._log,
                on_exit=self._owner_lock.release,
            )
        except BaseException:
            self._owner_lock.release()
            raise
        self._postmaster = postmaster
        atexit.register(self.stop)
        while not self._answers():
            if postmaster.wait(PAUSE):
                raise self._no_start(postmaster.exit_code, self._log.tail(20, since=logged))

    def _no_start(self, status: int | None, log_end: str) -> StoreError:
        """The error for a failed start: one sentence if the log is clear, otherwise the log itself."""
        where = f"the embedded PostgreSQL under {self._directory} did not start"
        full = os.strerror(errno.ENOSPC)
        if full in log_end:
            return StoreError(f"{where}: {full}")
        return StoreError(f"{where} (exit {status}); the end of its log:\n{log_end}")

    def _choose_account(self) -> Account:
        """Choose the account to run as, and make the directory's files accessible to it."""
        path = self._data if self._data.exists() else self._directory
        account = account_for(path)
        owner = path.stat().st_uid
        if os.geteuid() not in (0, owner) and path == self._data:
            raise StoreError(
                f"the database under {self._directory} belongs to another user (uid {owner}); "
                f"run as that user, or choose another directory"
            )
        if owner == os.geteuid() == 0 and not account.namespace:
            self._data.mkdir(mode=0o700, exist_ok=True)
            # Only our own files: the directory may have other files of root.
            for each in (self._directory, self._data, *self._data.rglob("*")):
                account.own(each)
        return account

    def _previous_is_gone(self) -> bool:
        """Wait for the last owner's server to shut down; False if it still accepts connections."""
        while not cluster.is_free(self._directory / "server.lock"):
            if self._answers():
                return False
            cluster.end_orphans(self._data)
            time.sleep(PAUSE)
        return True

    def _await_own(self) -> None:
        """Wait for our running server to answer: it recovers from a crashed session, or has lost its directory."""
        postmaster = self._postmaster
        if postmaster is not None and not postmaster.wait(PAUSE) and not self._data.exists():
            postmaster.stop(IMMEDIATE_SHUTDOWN)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn errors of the system and of PostgreSQL into one error that says what to do next."""
        try:
            yield
        except OSError as error:
            message = f"{error.strerror} ({error.filename})" if error.filename else str(error)
            reason = f"cannot run the embedded PostgreSQL under {self._directory}: {message}"
            raise StoreError(f"{reason}; {advice(error.errno)}") from error
        except StoreError as error:
            hint = next((advice(code) for code in ADVICE if os.strerror(code) in str(error)), None)
            raise (StoreError(f"{error}\n{hint}") if hint else error) from error.__cause__

    def _after_fork(self) -> None:
        """In a forked child: forget the server, its thread and the lock, which belong to the parent."""
        self._turn = threading.Lock()
        self._postmaster = None
        self._owner_lock.abandon()


class OwnerLock:
    """A file lock that ends with the process that holds it and that no child inherits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free."""
        # Read-only and readable by all: root and the owner of the directory may both have created it.
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # Unlock explicitly: a child between fork and exec has the descriptor too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def abandon(self) -> None:
        """In a forked child: close the descriptor and leave the lock with the parent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


ELSEWHERE = "choose another directory, or set TIDEMILL_DATABASE_URL to a server of your own"
ADVICE = {
    errno.ENOSPC: "the disk is full: free some space and try again",
    errno.EDQUOT: "the disk quota is used up: free some space and try again",
    errno.EROFS: f"the file system is read-only: {ELSEWHERE}",
    errno.EACCES: f"the user that PostgreSQL runs as may not read or write there: {ELSEWHERE}",
    errno.EPERM: f"the user that PostgreSQL runs as may not read or write there: {ELSEWHERE}",
    errno.ENOTDIR: f"a file is in the way of the directory: {ELSEWHERE}",
    errno.EEXIST: f"a file is in the way of the directory: {ELSEWHERE}",
    errno.ENAMETOOLONG: f"the path is too long: {ELSEWHERE}",
}


def advice(code: int | None) -> str:
    """What to do next about a system error."""
    return ADVICE.get(code or 0, ELSEWHERE)


_servers: weakref.WeakSet[EmbeddedServer] = weakref.WeakSet()


def _forget_in_child() -> None:
    for server in _servers:
        server._after_fork()


os.register_at_fork(after_in_child=_forget_in_child)
