"""Streams for tests: a dispatcher in this process while a block lasts, and messages to give it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support.nursery import begin
from tests.support.processes import ROOT
from tests.support.waiting import PATIENCE, eventually
from tidemill.core.codec import encode
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.streams.event_log import Entry, append
from tidemill.streams.definition.stream import Stream
from tidemill.streams.runner.dispatcher import Dispatcher
from tidemill.streams.runner.role import dispatcher_role


@asynccontextmanager
async def running_stream(stream: Stream, url: str, **options: Any) -> AsyncIterator[Dispatcher]:
    """A dispatcher that is ready; drained at the end of the block."""
    async with (
        Database(DatabaseSettings(url=url), label="test stream") as database,
        running_dispatcher(stream, database, **options) as dispatcher,
    ):
        yield dispatcher


@asynccontextmanager
async def running_dispatcher(stream: Stream, database: Database, **options: Any) -> AsyncIterator[Dispatcher]:
    """The same on a database that is open."""
    role = dispatcher_role(stream, database, **options)
    life = asyncio.create_task(role.run())
    ready = asyncio.create_task(role.wait_ready())
    try:
        await asyncio.wait([life, ready], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            life.result()
        assert ready.done(), f"not ready within {PATIENCE:g} s"
        yield role.work
        if not role.life.is_stopping:
            role.stop()
        await life
    finally:
        for task in (ready, life):
            task.cancel()
        await asyncio.gather(ready, life, return_exceptions=True)


async def publish(database: Database, topic: str, values: Iterable[Any], **fields: Any) -> None:
    """Append messages to the log."""
    async with database.transaction() as connection:
        entries = [Entry(topic, value if isinstance(value, bytes) else encode(value), **fields) for value in values]
        await append(database, connection, entries)


async def all_read(database: Database, topic: str) -> None:
    """Return when a topic's messages are all taken and done."""

    async def is_done() -> bool:
        left = await database.fetchrow(
            "SELECT (SELECT count(*) FROM tidemill.log_range WHERE topic = $1) AS open,"
            " (SELECT count(*) FROM tidemill.event_log AS e, tidemill.log_group AS g"
            "  WHERE e.topic = $1 AND g.topic = $1 AND (e.xid, e.id) > (g.xid, g.id)) AS behind,"
            " (SELECT count(*) FROM tidemill.log_group WHERE topic = $1) AS groups",
            topic,
        )
        return left is not None and left["groups"] and not left["open"] and not left["behind"]

    await eventually(is_done, timeout=PATIENCE * 3, what=f"all of {topic} is done")


STREAM_APP = Path(__file__).with_name("stream_app.py")


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended: one that nobody has asked about yet is dead all the same."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class StreamProcess:
    """`tidemill stream run` of `stream_app.py`, as a process that can be killed."""

    def __init__(self, url: str, *, supervised: bool = False, **environment: Any) -> None:
        descriptor, output = tempfile.mkstemp(prefix="tidemill-stream-", suffix=".log")
        self.output = Path(output)
        kept = {name: text for name, text in os.environ.items() if not name.startswith("TIDEMILL_")}
        kept |= {"TIDEMILL_DATABASE_URL": url, "TIDEMILL_LOG_FORMAT": "human", "PYTHONPATH": str(ROOT)}
        kept |= {name.upper(): str(text) for name, text in environment.items()}
        command = ["stream", "run", str(STREAM_APP), *([] if supervised else ["--no-supervise"])]
        with open(descriptor, "wb") as written:
            self.process = begin("tidemill.cli.main", command, cwd=ROOT, env=kept, stdout=written, new_session=True)

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    async def wait_ready(self) -> StreamProcess:
        await eventually(self._is_ready, timeout=PATIENCE * 2, what="the stream is running")
        return self

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, f"the process ended with {self.process.poll()}:\n{self.said}"
        return "stream is running" in self.said

    def children(self, *, recursive: bool = False) -> list[psutil.Process]:
        """The processes that it has started, of those that live: its dispatcher too, where it is a supervisor."""
        return [each for each in psutil.Process(self.process.pid).children(recursive=recursive) if lives(each)]

    def engines(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for each in self.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # It may end while we look.
                if "tidemill.streams.engine.process" in each.cmdline():
                    found.append(each)
        return found

    async def kill_engine(self) -> None:
        """End an engine that lives, whichever it is."""

        def killed() -> bool:
            for each in self.engines():
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
                    return True
            return False

        await eventually(killed, what="there is an engine to kill")

    async def ends(self) -> int:
        await eventually(lambda: self.process.poll() is not None, timeout=PATIENCE * 2, what="the process has ended")
        return self.process.wait()

    def close(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):  # It, or the last of its family, has just ended by itself.
            family = self.children(recursive=True) if self.process.poll() is None else []
            self.process.kill()
            self.process.wait()
            for each in psutil.wait_procs(family, 10)[1]:
                each.kill()
        self.output.unlink(missing_ok=True)


@asynccontextmanager
async def stream_process(url: str, **options: Any) -> AsyncIterator[StreamProcess]:
    """A stream in processes of its own, ready; killed at the end of the block if it still lives."""
    process = StreamProcess(url, **options)
    try:
        yield await process.wait_ready()
    finally:
        process.close()


async def worked_on(database: Database) -> list[int]:
    """The numbers of the messages whose work was really done, in order."""
    return [row["number"] for row in await database.fetch("SELECT number FROM work ORDER BY number")]
