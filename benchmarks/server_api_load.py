"""Who asks the server in `server_api.py`: `python -m benchmarks.server_api_load WISH`, prints its figures as JSON.

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


async def measure_changes(wish: dict[str, Any]) -> dict[str, float]:
    """How long after its commit a change has been heard, by each of many pages."""
    address = urlsplit(wish["url"])
    host, port = str(address.hostname), int(address.port or 0)
    committed: dict[str, float] = {}
    delays: list[float] = []
    ready = [asyncio.Event() for _ in range(wish["clients"])]

    async def listen(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET /api/v1/changes HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"event: hello"):
                ready[number].set()
            elif line.startswith(b"data: ") and (queues := json.loads(line[6:]).get("queues")):
                now = time.perf_counter()
                delays.extend((now - committed[queue]) * 1000 for queue in queues if queue in committed)

    listeners = [asyncio.create_task(listen(number)) for number in range(wish["clients"])]
    await asyncio.gather(*(each.wait() for each in ready))
    connection = await asyncpg.connect(wish["dsn"])
    insert = "INSERT INTO tidemill.job (queue, task, args) VALUES ($1, 'task_1', '{}')"
    end, number = time.perf_counter() + wish["seconds"], 0
    began = time.perf_counter()
    while time.perf_counter() < end:
        # A change of a queue of its own, so that each is heard by itself; a transaction each, as fast as is wanted.
        name = f"q{number}"
        committed[name] = float("inf")
        await connection.execute(insert, name)
        committed[name] = time.perf_counter()
        number += 1
        early = began + number / wish["changes_per_s"] - time.perf_counter()
        if early > 0.002:
            await asyncio.sleep(early)
    expected = number * wish["clients"]
    give_up = time.perf_counter() + 20
    while len(delays) < expected and time.perf_counter() < give_up:
        await asyncio.sleep(0.05)
    for each in listeners:
        each.cancel()
    await connection.close()
    if len(delays) < expected:
        raise RuntimeError(f"only {len(delays):,} of {expected:,} changes were heard")
    delays.sort()
    return {"sse_p99": delays[int(len(delays) * 0.99)], "sse_p50": delays[len(delays) // 2], "changes": number}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(uvloop.run((measure_lists if asked["what"] == "lists" else measure_changes)(asked))))
