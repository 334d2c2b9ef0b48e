"""Tasks and workflows that misbehave, beside others that do not, for real processes that are started with the CLI."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time

from tidemill import App, current_job
from tidemill.flows import Event, StartEvent, StopEvent, Workflow, step

app = App("misbehaving")


def die(how: str) -> None:
    """End this process."""
    if how == "exit":
        os._exit(3)
    elif how == "segfault":
        ctypes.string_at(0)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(retry=app.retry(1, max_losses=2, backoff=0.01, cap=0.01))
async def poison(how: str = "exit") -> None:
    die(how)


@app.task
async def honest(seconds: float = 0.0) -> int:
    """It has one attempt."""
    await asyncio.sleep(seconds)
    return current_job().attempt


@app.task
def plain(seconds: float = 0.0) -> int:
    time.sleep(seconds)
    return current_job().attempt


@app.task(budget=6.0, retry=app.retry(1))
async def limited() -> None:
    """Takes half of its budget, and needs the event loop all the time."""
    await in_slices()


async def in_slices() -> None:
    for _ in range(30):
        await asyncio.sleep(0.1)


class Asked(Event):
    n: int


class Honest(Workflow):
    """Two steps that take their time."""

    @step
    async def first(self, ev: StartEvent) -> Asked:
        await asyncio.sleep(ev.seconds)
        return Asked(n=1)

    @step
    async def second(self, ev: Asked) -> StopEvent:
        await asyncio.sleep(0.1)
        return StopEvent(result="done")


class Poison(Workflow):
    """Its step ends its process."""

    @step
    async def crash(self, ev: StartEvent) -> StopEvent:
        die(ev.how)
        return StopEvent()


class Limited(Workflow):
    """A step that takes half of its timeout, and needs the event loop all the time."""

    @step(timeout=6.0)
    async def act(self, ev: StartEvent) -> StopEvent:
        await in_slices()
        return StopEvent(result="done")


app.workflow(Limited)
app.workflow(Honest)
app.workflow(Poison)


@app.task(retry=app.retry(1))
async def blocking(seconds: float, after: float = 0.0) -> int:
    """Never yields to the event loop."""
    await asyncio.sleep(after)
    time.sleep(seconds)
    return current_job().attempt


@app.task(budget=2.0)
async def blocking_over_budget() -> None:
    time.sleep(600.0)


@app.task
async def holding_the_interpreter() -> None:
    """Sleeps in C without releasing the interpreter's lock, the first time."""
    if current_job().attempt == 1:
        ctypes.PyDLL(None).sleep(600)


class Blocking(Workflow):
    """Its step blocks the event loop for as long as it is told, and has two seconds."""

    @step(timeout=2.0)
    async def block(self, ev: StartEvent) -> StopEvent:
        time.sleep(ev.seconds)
        return StopEvent(result="done")


class BlockingForEver(Workflow):
    """The same, without a timeout."""

    @step
    async def block(self, ev: StartEvent) -> StopEvent:
        await asyncio.sleep(ev.get("after", 0.0))
        time.sleep(ev.seconds)
        return StopEvent(result="done")


app.workflow(Blocking)
app.workflow(BlockingForEver)


class Swallowing(Workflow):
    """Its step does not end when its timeout cancels it."""

    @step(timeout=2.0)
    async def swallow(self, ev: StartEvent) -> StopEvent:
        while True:
            try:
                await asyncio.sleep(600.0)
            except asyncio.CancelledError:
                continue


app.workflow(Swallowing)


class Noting(Workflow):
    """Two steps that note each time that they begin, in a file."""

    @step
    async def first(self, ev: StartEvent) -> Asked:
        await note_and_wait(ev.file, "first", ev.seconds)
        return Asked(n=1)

    @step
    async def second(self, ev: Asked) -> StopEvent:
        return StopEvent(result="done")


async def note_and_wait(file: str, what: str, seconds: float) -> None:
    with open(file, "a") as notes:
        notes.write(f"{what}\n")
    await asyncio.sleep(seconds)


app.workflow(Noting)
