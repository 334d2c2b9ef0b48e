"""The load on the server in `suite.py`: `python -m benchmarks.server.load WISH`, prints its figures as JSON.

Plain sockets, so that the one who asks takes as little as possible of the machine it shares with the server.
"""

import asyncio
import base64
import json
import random
import statistics
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import uvloop

IN_FLIGHT = 50
WARM_UP = 3.0
WRITERS = 4


def cursor(number: int) -> str:
    return base64.urlsafe_b64encode(f"id:{number}".encode()).decode().rstrip("=")


class Client:
    """One connection that asks one thing after the other."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._host = f"{host}:{port}".encode()

    async def open(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        return self

    async def get(self, path: str) -> float:
        """Ask; returns how many milliseconds it took."""
        began = time.perf_counter()
        self._writer.write(b"GET /api/v1" + path.encode() + b" HTTP/1.1\r\nHost: " + self._host + b"\r\n\r\n")
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"{path}: {head.decode()}")
        start = head.index(b"content-length: ") + 16
        await self._reader.readexactly(int(head[start : head.index(b"\r\n", start)]))
        return (time.perf_counter() - began) * 1000


def lists_of(jobs: int, runs: int) -> list[str]:
    """What operators look at: first pages by all kinds of filters, and pages far back."""
    deep = [f"/jobs?cursor={cursor(jobs * part // 10)}" for part in range(1, 10)]
    deep += [f"/runs?cursor={cursor(runs * part // 10)}" for part in range(1, 10)]
    first = [
        "/jobs",
        "/runs",
        "/jobs?state=failed",
        "/jobs?queue=gpu",
        "/jobs?queue=web&state=failed",
        "/runs?shape=dag",
    ]
    first += ["/runs?state=failed", "/runs?workflow=Mail", "/jobs?state=succeeded", "/jobs?key=order-2000", "/queues"]
    first += [f"/jobs?task=task_{number}" for number in range(8)]
    return first + deep


async def measure_lists(wish: dict[str, Any]) -> dict[str, float]:
    address = urlsplit(wish["url"])
    host, port = str(address.hostname), int(address.port or 0)
    paths, took = lists_of(wish["jobs"], wish["runs"]), []
    begin = time.perf_counter() + WARM_UP
    end = begin + wish["seconds"]

    async def ask(number: int) -> None:
        client, chance = await Client(host, port).open(), random.Random(number)
        while (now := time.perf_counter()) < end:
            one = await client.get(chance.choice(paths))
            if now > begin:
                took.append(one)

    await asyncio.gather(*(ask(number) for number in range(IN_FLIGHT)))
    took.sort()
    alone = await Client(host, port).open()
    pages: dict[str, list[float]] = {"first": [], "deep": []}
    for _ in range(150):
        pages["first"].append(await alone.get("/jobs"))
        pages["deep"].append(await alone.get(f"/jobs?cursor={cursor(wish['jobs'] // 2)}"))
    return {
        "p99": took[int(len(took) * 0.99)],
        "rate": len(took) / wish["seconds"],
        **{name: statistics.median(each[50:]) for name, each in pages.items()},
    }


class Page(asyncio.Protocol):
    """One open page: notes when each event arrived, and nothing more, for it shares the machine with the server."""

    def __init__(self, heard: dict[bytes, list[float]], host: str) -> None:
        self.ready = asyncio.Event()
        self._heard = heard
        self._host = host
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        transport.write(f"GET /api/v1/changes HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                self._heard.setdefault(line, []).append(now)
            elif line.startswith(b"event: hello"):
                self.ready.set()


async def measure_changes(wish: dict[str, Any]) -> dict[str, float]:
    """How long after its commit a change has been heard, by each of many pages."""
    import numpy

    address = urlsplit(wish["url"])
    host, port = str(address.hostname), int(address.port or 0)
    committed: dict[str, float] = {}
    heard: dict[bytes, list[float]] = {}
    loop = asyncio.get_running_loop()
    pages = [
        await loop.create_connection(lambda: Page(heard, f"{host}:{port}"), host, port) for _ in range(wish["clients"])
    ]
    await asyncio.gather(*(page.ready.wait() for _, page in pages))
    heard.clear()
    insert = "INSERT INTO tidemill.job (queue, task, args) VALUES ($1, 'task_1', '{}')"
    began = time.perf_counter()
    end = began + wish["seconds"]

    async def write(part: int) -> int:
        """Every so many-th change; a queue of its own for each, so that each is heard by itself, and a transaction."""
        connection, done = await asyncpg.connect(wish["dsn"]), 0
        while time.perf_counter() < end:
            name = f"q{part}-{done}"
            await connection.execute(insert, name)
            committed[name] = time.perf_counter()
            done += 1
            early = began + done * WRITERS / wish["changes_per_s"] - time.perf_counter()
            if early > 0.002:
                await asyncio.sleep(early)
        await connection.close()
        return done

    number = sum(await asyncio.gather(*(write(part) for part in range(WRITERS))))
    took = time.perf_counter() - began
    give_up, before = time.perf_counter() + 20, -1
    while time.perf_counter() < give_up and (now := sum(map(len, heard.values()))) != before:
        before = now  # Until nothing has come for a second.
        await asyncio.sleep(1.0)
    for transport, _ in pages:
        transport.close()
    delays = numpy.zeros(60_000, dtype=numpy.int64)  # how many took so many milliseconds
    for line, arrived in heard.items():
        commits = [committed[queue] for queue in json.loads(line[6:]).get("queues", ()) if queue in committed]
        if commits:
            apart = (numpy.array(arrived)[:, None] - numpy.array(commits)[None, :]) * 1000
            delays += numpy.bincount(numpy.clip(apart, 0, len(delays) - 1).astype(int).ravel(), minlength=len(delays))
    counted, expected = int(delays.sum()), number * wish["clients"]
    if counted < expected:
        raise RuntimeError(f"only {counted:,} of {expected:,} changes were heard")
    upto = numpy.cumsum(delays)
    p50, p99 = (float(numpy.searchsorted(upto, counted * part) + 1) for part in (0.5, 0.99))
    return {"sse_p99": p99, "sse_p50": p50, "changes": number / took}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(uvloop.run((measure_lists if asked["what"] == "lists" else measure_changes)(asked))))
