"""Exec a PostgreSQL program, after the steps between fork and exec that only the new process can do.

`embedded.process` runs this file as a script (`python -I -S launch.py PARENT SIGNAL LOCK ACCOUNT PROGRAM ARGS...`).
It has no imports of our own, so that it starts in milliseconds. It is a script and not a `preexec_fn`, because Python
code between fork and exec of a threaded process can deadlock.

- PARENT, SIGNAL: the kernel sends SIGNAL to the program when the thread that started it dies (Linux).
- LOCK: a file to lock for as long as the program or any of its children live; empty for none.
- ACCOUNT: `self`, `UID:GID` to switch to, or `UID:GID:namespace` to *appear* as inside a user namespace.
- PROGRAM: what to exec; empty to only test whether the steps are permitted.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1


def drop_privileges(account: str) -> None:
    """Drop root privileges: PostgreSQL refuses to run as root."""
    if account == "self":
        return
    uid, gid, *namespace = account.split(":")
    if namespace:
        appear_as(uid, gid)
    else:
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))


def appear_as(uid: str, gid: str) -> None:
    """Enter a user namespace in which we are `uid`; outside it, files still belong to the starting user."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "user namespaces are not permitted here")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {outer_uid} 1"),
        ("gid_map", f"{gid} {outer_gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def die_with(parent: int, signal: int) -> None:
    """Ask the kernel for SIGNAL when the parent dies; fail if the parent has already exited."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0)
    if os.getppid() != parent:
        raise ProcessLookupError("the process that started this one has exited")


def hold(lock: str) -> None:
    """Lock a file through a descriptor that the program and all its children inherit."""
    descriptor = os.open(lock, os.O_RDONLY | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.set_inheritable(descriptor, True)


def main(parent: str, signal: str, lock: str, account: str, program: str, *arguments: str) -> None:
    if lock:
        hold(lock)
    drop_privileges(account)
    # Set after the change of account, which clears the death signal.
    die_with(int(parent), int(signal))
    if program:
        os.execv(program, [program, *arguments])  # noqa: S606 (a fixed program, no shell)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(f"cannot start {sys.argv[5] or 'PostgreSQL'}: {error}")
