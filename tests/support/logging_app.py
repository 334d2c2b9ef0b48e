"""Tasks that log: in a thread, on the loop, in a process of their own, and more than is kept."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import structlog

from tidemill import App

app = App("talkative")
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
