"""Prefect: flows of no-op tasks in one process, beside a server of its own, set up as its documentation begins.

`--jobs` is the number of tasks of the wide flow and of the chain; `nodes_100x100` runs `--starts` flows at once, of
as many tasks each as fit into half of that. Fewer than ours has: its rates do not depend on it, and it takes long.

The server is `prefect server start` on its default database (SQLite), without its user interface; logs go nowhere and
results are not kept. Tasks are async and called directly, which was faster here than `submit` on a thread pool. In its
favour: the clock stops when the flow has returned. Its server learns of the tasks some time later.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from benchmarks.peers import flow_contest
from benchmarks.peers.flow_contest import Options

READY_WITHIN_S = 60.0
WARMUPS = 10
QUIET = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLIENT_ENABLE_METRICS": "false",
    "PYTHONWARNINGS": "ignore",
}


@contextmanager
def server() -> Iterator[None]:
    """A server on a free port, which the flows of this process find in the environment."""
    with tempfile.TemporaryDirectory(prefix="prefect-bench-", ignore_cleanup_errors=True) as home:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ.update(QUIET, PREFECT_HOME=home)
        command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port), "--no-ui"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
        try:
            _wait_until_healthy(process, os.environ["PREFECT_API_URL"])
            yield
        finally:
            process.terminate()
            process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the Prefect server ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"the Prefect server was not ready within {READY_WITHIN_S:.0f} s")


def scenarios() -> dict[str, flow_contest.Scenario]:
    """Made once the environment is set: Prefect reads it when it is imported."""
    from prefect import flow, task  # pyright: ignore[reportMissingImports]

    @task
    async def noop() -> None: ...

    @flow
    async def wide(nodes: int) -> None:
        await noop()
        await asyncio.gather(*(noop() for _ in range(nodes - 2)))
        await noop()

    @flow
    async def chain(nodes: int) -> None:
        for _ in range(nodes):
            await noop()

    def rate(work: Callable[[Options], tuple[int, Awaitable[object]]]) -> flow_contest.Scenario:
        async def measure(options: Options) -> float:
            await wide(WARMUPS)
            began = time.perf_counter()
            count, running = work(options)
            await running
            return count / (time.perf_counter() - began)

        return measure

    def many(options: Options) -> tuple[int, Awaitable[object]]:
        nodes = max(3, options.runs // (2 * options.samples))
        return nodes * options.samples, asyncio.gather(*(wide(nodes) for _ in range(options.samples)))

    return {
        "nodes_wide": rate(lambda options: (options.runs, wide(options.runs))),
        "nodes_chain": rate(lambda options: (options.runs, chain(options.runs))),
        "nodes_100x100": rate(many),
    }


if __name__ == "__main__":
    with server():
        flow_contest.main(scenarios())
