"""What a worker costs while there is nothing to do: processor time, and queries that reach the server."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from benchmarks.shared.counting import CountingProxy
from benchmarks.shared.schema import install_schema

SETTLE_S = 2.0


class Idle(msgspec.Struct, frozen=True):
    """Percent of one core, and queries a second."""

    cpu_percent: float
    queries_per_s: float


async def measure(dsn: str, seconds: float) -> Idle:
    """Watch one idle worker; `seconds` should be a multiple of its slowest habit, which is every 5 s.

    The processor time is the process's own and its queries are counted on the way to the server, so others may
    work on the machine meanwhile.
    """
    await install_schema(dsn)
    with tempfile.TemporaryDirectory() as folder:
        proxy = CountingProxy(dsn, Path(folder))
        async with proxy.listening():
            return await _watch(proxy, seconds)


async def _watch(proxy: CountingProxy, seconds: float) -> Idle:
    arguments = ("-m", "benchmarks.shared.actors", "worker", "--dsn", proxy.dsn)
    worker = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    try:
        await worker.stdout.readline()  # it is ready
        process = psutil.Process(worker.pid)
        await asyncio.sleep(SETTLE_S)
        began, spent, queries = time.monotonic(), _spent(process), proxy.queries
        await asyncio.sleep(seconds)
        elapsed = time.monotonic() - began
        return Idle(100 * (_spent(process) - spent) / elapsed, (proxy.queries - queries) / elapsed)
    finally:
        worker.kill()
        await worker.wait()


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
