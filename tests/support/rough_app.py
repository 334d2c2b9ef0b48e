"""An application whose tasks run in child processes or treat their worker badly; other processes load it by path."""

from __future__ import annotations

import contextvars
import os
import signal
import sys
import threading
import time
import urllib.error
from pathlib import Path

from tidemill import App, Discard, RetryAfter, Snooze, current_job

app = App("test", lease_seconds=20, heartbeat_seconds=0.3, grace_seconds=5)
colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


class NotReady(Snooze):
    def __init__(self) -> None:
        super().__init__(0.01, "not ready")


class Strange(Exception):
    """An error whose text and attributes are hard to pass on."""

    def __init__(self) -> None:
        super().__init__("half a pair \ud800 and nul \x00")
        self.reason = {"not": "text"}
        self.seconds = "many"


class AccountError(Exception): ...


class NotPaid(AccountError): ...


@app.task(queue="isolated", isolation="process")
def where() -> dict:
    job = current_job()
    by = None if job.origin is None else job.origin.by
    return {"pid": os.getpid(), "job": job.id, "attempt": job.attempt, "by": by}


@app.task(queue="isolated", isolation="process")
def talk(times: int) -> str:
    for number in range(times):
        print("to stdout", number, flush=True)
        print("to stderr", number, file=sys.stderr, flush=True)
    os.write(1, b'{"ok": true, "result": "forged"}\n')
    return "said"


@app.task(queue="isolated", isolation="process")
def echo(text: str) -> str:
    return text


@app.task(queue="isolated", isolation="process", retry=app.retry(3, backoff=0.01, no_retry=(AccountError,)))
def fail(how: str) -> str:
    if current_job().attempt > 1 and how not in ("value", "account"):
        return f"then fine after {how}"
    match how:
        case "value":
            raise ValueError("bad value")
        case "account":
            raise NotPaid("no money")
        case "snooze":
            raise Snooze(0.01, "not ready")
        case "own snooze":
            raise NotReady
        case "retry after":
            raise RetryAfter(0.2, "busy")
        case "discard":
            raise Discard("no longer wanted")
        case "url":
            raise urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))
        case "strange":
            raise Strange
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
            signal.pause()
        case "exit":
            sys.exit(3)
        case "vanish":
            os._exit(4)
    return how


@app.task(queue="isolated", isolation="process")
def unpaid() -> None:
    raise NotPaid("no money")


@app.task(queue="isolated", isolation="process")
def until(file: str) -> str:
    """Tell who runs it, and go on when the file appears."""
    current_job().report(0.5, str(os.getpid()))
    while not Path(file).exists():
        time.sleep(0.01)
    return "released"


@app.task(queue="isolated", isolation="process")
def paint(wanted: str) -> dict:
    """The colour that was there before, and this process."""
    before = colour.get()
    colour.set(wanted)
    return {"before": before, "pid": os.getpid()}


@app.task(queue="isolated", isolation="process")
def chatter(times: int) -> str:
    """Several threads report at once, each more than a pipe takes in one go."""
    job = current_job()

    def talk(letter: str) -> None:
        for _ in range(times):
            job.report(0.5, letter * 100_000)

    threads = [threading.Thread(target=talk, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "said"


@app.task(queue="exits")
async def exit_async() -> None:
    raise SystemExit(3)


@app.task(queue="exits")
def exit_plain() -> None:
    sys.exit(3)


@app.task(queue="exits")
async def interrupt() -> None:
    raise KeyboardInterrupt


@app.task(queue="exits")
async def fine() -> str:
    return "fine"


@app.task(queue="isolated", isolation="process")
def return_nothing() -> None: ...
