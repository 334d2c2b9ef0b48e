"""Run one engine as a process: `python -m tidemill.streams.engine.process APPLICATION STREAM`.

Its standard input is the socket of the dispatcher. It ignores the signals of the terminal: the dispatcher sends it the
stop, and a closed socket means that the dispatcher is gone. It exits without Python's cleanup, because threads of
models may never return.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence

import structlog

from tidemill.core.errors import TidemillError
from tidemill.engine.application.lifespan import lifespan_trouble
from tidemill.engine.containment.blocked_time import watch_stalls
from tidemill.engine.containment.cancellation import AGAIN, end as end_tasks
from tidemill.engine.containment.exit_status import EXIT_MISCONFIGURED, exit_now
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.roles.forking import end_with_parent
from tidemill.engine.settings import load_settings
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.engine.telemetry.tracing import configure_tracing
from tidemill.engine.worker.threads import lost_threads
from tidemill.streams.definition.find import find_stream
from tidemill.streams.definition.stream import Stream
from tidemill.streams.engine.engine import Engine
from tidemill.streams.engine.garbage import GarbageCollector
from tidemill.streams.runner.link import EngineLink, ToDispatcher, ToEngine, connect

try:
    from uvloop import run as run_loop
except ImportError:
    from asyncio import run as run_loop

log = structlog.get_logger("tidemill.streams")

SWITCH_INTERVAL = 0.0002
"""Seconds for which a thread keeps the interpreter: with Python's 5 ms a device waits for the preparation of others."""

TELL_EVERY = 1.0


def main(words: Sequence[str]) -> None:
    target, name = words
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        settings = load_settings()
        configure_logs(settings.log_level, settings.log_format)
        end_tracing = configure_tracing(f"stream {name}")
        run_loop(serve(find_stream(target, name), end, end_tracing))
    except TidemillError as error:
        sys.stderr.write(f"error: {error}\n")
        exit_now(EXIT_MISCONFIGURED)
    exit_now(0)


async def serve(stream: Stream, end: socket.socket, end_tracing: Callable[[], None]) -> None:
    """Run an engine until the dispatcher stops it or is gone."""
    ended = asyncio.Event()
    engine: Engine | None = None

    def take(frame: ToEngine) -> None:
        if frame.stop:
            ended.set()
        elif engine is not None:
            engine.submit(frame.work, frame.live)

    link = await connect(end, ToEngine, take, ended.set)
    reporting = asyncio.create_task(_report_trouble(link))
    async with stream.lifespan.opened_patiently(ended) as is_open:
        reporting.cancel()
        if is_open:
            engine = Engine(stream, link.send)
            watch_stalls(asyncio.get_running_loop())
            sys.setswitchinterval(SWITCH_INTERVAL)
            await engine.start()
            link.send(ToDispatcher(ready=True, trouble=""))
            await _heartbeat(engine, link, ended, GarbageCollector(stream.gc_every))
            await engine.stop()
    if engine is not None:  # Sent last: the dispatcher may end the process once it has this.
        link.send(ToDispatcher(statistics=engine.statistics(), stopped=True))
    link.close()
    await asyncio.sleep(0)
    await asyncio.to_thread(end_tracing)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    await end_tasks(left, AGAIN)
    if any(not task.done() for task in left):  # The end of the event loop would wait for them forever.
        exit_now(0)


async def _report_trouble(link: EngineLink) -> None:
    """Tell the dispatcher why the engine does not start."""
    reported = ""
    while True:
        await asyncio.sleep(TELL_EVERY)
        if (trouble := lifespan_trouble() or "") != reported:
            link.send(ToDispatcher(trouble=trouble))
            reported = trouble


async def _heartbeat(engine: Engine, link: EngineLink, ended: asyncio.Event, garbage: GarbageCollector) -> None:
    reported, reported_lost = None, []
    while not ended.is_set():
        if not await wait_for_event(ended, TELL_EVERY):
            garbage.collect_if_due()
            statistics, lost = engine.statistics(), lost_threads()
            # Without news an empty frame is sent, as a heartbeat.
            link.send(
                ToDispatcher(
                    statistics=None if statistics == reported else statistics,
                    lost_threads=None if lost == reported_lost else lost,
                    garbage=garbage.total,
                )
            )
            reported, reported_lost = statistics, lost


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1:])
