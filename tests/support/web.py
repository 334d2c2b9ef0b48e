"""A real server process of `tests/support/web_app.py`, and HTTP requests to it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.nursery import begin
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).resolve().parents[2]
WEB_APP = ROOT / "tests" / "support" / "web_app.py"
API = "/api/v1"


#: An option for the servers of tests, which otherwise trust this machine, so that tests need no token.
LOGIN_NEEDED = "login needed"


def trusting(options: Sequence[str]) -> list[str]:
    """The options of a server that trusts this machine, unless they ask for a log-in or serve others."""
    if LOGIN_NEEDED in options:
        return [option for option in options if option != LOGIN_NEEDED]
    open_to_others = any(option.startswith(("--host", "--behind-proxy", "--grpc=0.0.0.0")) for option in options)
    return [*options] if open_to_others else ["--trust-local", *options]


class WebServer:
    """One server process."""

    def __init__(self, url: str, *options: str, app: Path = WEB_APP) -> None:
        descriptor, name = tempfile.mkstemp(prefix="tidemill-web-", suffix=".log")
        self.output = Path(name)
        self.url = ""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("TIDEMILL_")}
        port = () if any(option.startswith("--port") for option in options) else ("--port=0",)
        with open(descriptor, "wb") as output:
            arguments = ["server", str(app), f"--database-url={url}", *port, *trusting(options)]
            self.directory = Path(f"{name}.d")
            env = {**kept, "PYTHONPATH": str(ROOT), "TIDEMILL_LOG_FORMAT": "human"}
            env["TIDEMILL_DIRECTORY"] = str(self.directory)
            self._process = begin("tidemill.cli.main", arguments, cwd=ROOT, env=env, stdout=output)

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def wait_ready(self) -> WebServer:
        """Wait until the server answers."""

        def line() -> Any:
            assert self._process.poll() is None, f"the server ended with {self._process.returncode}:\n{self.said}"
            return re.search(r"serving (https?://\S+)", self.said)

        self.url = (await eventually(line, timeout=PATIENCE * 2, what="the server listens"))[1]
        return self

    async def ends(self) -> int:
        """Wait until the process ends and return its exit status."""
        await eventually(lambda: self._process.poll() is not None, what="the server has ended")
        return self._process.wait()

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        self.output.unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def client(self, token: str | None = None, **options: Any) -> httpx.AsyncClient:
        """A client of its API; with a token, as its holder."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        verify = options.pop("verify", False)
        return httpx.AsyncClient(base_url=f"{self.url}{API}", headers=headers, timeout=150, verify=verify, **options)


@asynccontextmanager
async def web_server(url: str, *options: str, app: Path = WEB_APP) -> AsyncIterator[WebServer]:
    """A server that answers; killed at the end of the block if it still lives."""
    server = WebServer(url, *options, app=app)
    try:
        yield await server.wait_ready()
    finally:
        server.close()


class Listening:
    """One open stream of server-sent events: keeps all that came."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.last_id: str | None = None

    def names(self, field: str) -> set[Any]:
        """Everything that was named in a field of the events so far."""
        return {name for kind, data in self.events if kind == "change" for name in data.get(field, ())}

    def take(self, block: str) -> None:
        kind, data = "message", ""
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "event":
                kind = value
            elif name == "data":
                data += value
        if data:
            self.events.append((kind, json.loads(data)))


@asynccontextmanager
async def listening(client: httpx.AsyncClient, path: str, last_id: str | None = None) -> AsyncIterator[Listening]:
    """Follow a stream for as long as the block lasts; begins when its first event is there."""
    heard, began = Listening(), asyncio.Event()

    async def follow() -> None:
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        async with client.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            rest = ""
            async for text in response.aiter_text():
                *blocks, rest = (rest + text).split("\n\n")
                for block in blocks:
                    heard.take(block)
                    began.set()

    task = asyncio.create_task(follow())
    waiting = asyncio.create_task(began.wait())
    try:
        done, _ = await asyncio.wait([task, waiting], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            task.result()
        assert began.is_set(), "the stream says nothing"
        yield heard
    finally:
        waiting.cancel()
        task.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
