"""Tasks and steps that log: in a thread, on the loop, in a process of their own, and more than is kept."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import structlog

from tidemill import App
from tidemill.flows import Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed

app = App("test")
log = structlog.get_logger("talkative")


@app.task(retry=app.retry(max_attempts=2, backoff="10ms"))
async def stumble(name: str) -> None:
    log.info("reads", name=name, size=3)
    try:
        raise KeyError(name)
    except KeyError:
        log.exception("cannot be read")
        raise


@app.task
def plain(count: int) -> None:
    for number in range(count):
        logging.getLogger("library").warning("line %d", number)


@app.task(isolation="process")
def apart() -> str:
    log.info("from another process", answer=42)
    return "done"


@app.task
async def silent() -> None: ...


@app.task
async def long(file: str) -> None:
    log.info("begun")
    while not Path(file).exists():
        await asyncio.sleep(0.05)


class Heard(Event):
    name: str


class Repeated(Event):
    name: str


class Chatter(Workflow):
    """A step that fails once, a plain one, and one that goes on until a file is there."""

    tries = 0

    @step(retry_policy=retry_policy(wait=wait_fixed(0.01), stop=stop_after_attempt(3)))
    async def listen(self, event: StartEvent) -> Heard:
        log.info("listens", name=event.name)
        if Chatter.tries == 0:
            Chatter.tries += 1
            log.warning("heard nothing")
            raise ValueError("too quiet")
        return Heard(name=event.name)

    @step
    def repeat(self, event: Heard) -> Repeated:
        logging.getLogger("library").error("says %s", event.name)
        return Repeated(name=event.name)

    @step
    async def hum(self, event: Repeated) -> StopEvent:
        log.info("hums")
        while not Path(event.name).exists():
            await asyncio.sleep(0.02)
        return StopEvent(result="done")


app.workflow(Chatter, timeout=None)
