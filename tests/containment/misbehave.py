"""Code that misbehaves as it is told: what the applications of `tests/containment/test_matrix.py` call."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("TIDEMILL_CONTAINED", "."))

LIMIT = 8.0
"""The timeout or budget of every piece of work that can have one."""
LATE = 5 * LIMIT
SLOW = 1.5
LARGE = 50_000_000


class Verdict(BaseException):
    """As test frameworks raise: no `Exception`."""


class Unencodable(Exception):
    """An exception that can be neither shown nor pickled nor written as JSON."""

    def __init__(self) -> None:
        super().__init__(threading.Lock(), "\ud800", b"\x00")

    def __str__(self) -> str:
        raise RuntimeError("this exception cannot be shown")

    def __reduce__(self) -> Any:
        raise RuntimeError("this exception cannot be pickled")


def misbehave(how: str) -> Any:
    """Do what this place is told; returns its result."""
    if how.startswith("slow "):
        mark(how, "begun ")
        time.sleep(SLOW)
        mark(how, "ended ")
        return "done"
    match how:
        case "raises":
            raise ValueError("misbehaved")
        case "verdict":
            raise Verdict("misbehaved")
        case "unencodable":
            raise Unencodable
        case "blocks" | "hangs" | "swallows":
            time.sleep(600.0)
        case "late":
            time.sleep(LATE)
        case "gil":
            ctypes.PyDLL(None).sleep(600)
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "memory":
            hoard = [bytearray(16 << 20) for _ in range(64)]
            return str(len(hoard))
        case "output":
            for _ in range(20):
                sys.stdout.write("x" * (1 << 20) + "\n")
        case "result":
            return "x" * LARGE
        case "leaks":
            for _ in range(10):
                threading.Thread(target=time.sleep, args=(600.0,), daemon=True).start()
                os.dup(0)
        case "background":
            threading.Thread(target=time.sleep, args=(600.0,), daemon=True).start()
        case _:
            time.sleep(0.05)
    return "done"


_background: set[asyncio.Task[None]] = set()


async def misbehave_async(how: str) -> Any:
    """The same for async places."""
    if how.startswith("slow "):
        mark(how, "begun ")
        await asyncio.sleep(SLOW)
        mark(how, "ended ")
        return "done"
    if how == "task_exits":
        await asyncio.gather(asyncio.sleep(600.0), _exit_soon())
    if how == "swallows":
        while True:
            try:
                await asyncio.sleep(600.0)
            except asyncio.CancelledError:
                continue
    if how == "background":
        _background.add(asyncio.create_task(asyncio.sleep(600.0)))
        return "done"
    if how == "hangs":
        await asyncio.sleep(600.0)
    return misbehave(how)


async def _exit_soon() -> None:
    await asyncio.sleep(0.05)
    sys.exit(3)  # In a task of its own this ends the event loop.


def mark(how: str, what: str) -> None:
    """A slow call has begun or ended."""
    with (FOLDER / "slow" / how.removeprefix("slow ")).open("a") as file:
        file.write(what)
