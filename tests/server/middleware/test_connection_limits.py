"""Connections that are slow, silent or too many: each costs little, and none of them for ever."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from tests.support.waiting import eventually
from tests.support.web import API
from tests.support.web_app import make_app
from tidemill.server.app import build
from tidemill.server.fair_pool import FairDatabase
from tidemill.server.middleware.connection_limits import HttpServer, Parser
from tidemill.server.server_state import ServerState
from tidemill.server.settings import ServerSettings
from tidemill.store.database import Database, DatabaseSettings

ASK = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
SMALL = 8192  # what the system itself keeps of an answer, in each direction
MUCH = 2_000_000


class Impatient(Parser):
    head_within = 0.4
    read_within = 0.5


class Patient(Parser):
    read_within = 1.0


class Few(Parser):
    most = 3


@asynccontextmanager
async def serving(app: Any, parser: type[Parser] = Impatient) -> AsyncIterator[tuple[int, HttpServer]]:
    """A server of our protocol: its port, and itself."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    config = uvicorn.Config(app, http=parser, ws="none", lifespan="off", log_config=None, timeout_keep_alive=30)
    http = HttpServer(config)
    serving = asyncio.create_task(http.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1], http
    finally:
        http.should_exit = True
        await serving
        listening.close()


def connections_of(http: HttpServer) -> set[Any]:
    return http.server_state.connections


def answering(body: bytes = b"ok", *, after: float = 0.0) -> Any:
    """An application that has one answer."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(after)
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": body})

    return answer


async def connect(port: int, ask: bytes = b"") -> socket.socket:
    """A connection that has asked something, and does not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, ("127.0.0.1", port))
    await loop.sock_sendall(connection, ask)
    return connection


async def read(
    connection: socket.socket, until: Callable[[bytes], bool] = lambda _: False, *, pause: float = 0
) -> bytes:
    """What comes, until it is enough or there is no more."""
    told = b""
    async with asyncio.timeout(120):
        while not until(told):
            try:
                piece = await asyncio.get_running_loop().sock_recv(connection, 65_536)
            except ConnectionError:
                break
            if not piece:
                break
            told += piece
            await asyncio.sleep(pause)
    return told


# -- answers that are not read --------------------------------------------------------------------


async def test_an_answer_that_nobody_fetches_is_thrown_away() -> None:
    async with serving(answering(b"x" * MUCH)) as (port, http):
        lazy = await connect(port, ASK)
        await eventually(lambda: http.server_state.total_requests == 1)
        await eventually(lambda: not connections_of(http), what="the connection is cut")
        assert len(await read(lazy)) < MUCH
        lazy.close()


async def test_an_answer_that_is_fetched_slowly_is_fetched_whole() -> None:
    async with serving(answering(b"x" * MUCH), Patient) as (port, http):
        slow = await connect(port, ASK)
        began = asyncio.get_running_loop().time()
        told = await read(slow, lambda told: told.endswith(b"x") and len(told) > MUCH, pause=0.02)
        assert told.count(b"x") == MUCH
        assert asyncio.get_running_loop().time() - began > Patient.read_within, "it was slower than the silent may be"
        assert len(connections_of(http)) == 1
        slow.close()


async def test_an_answer_on_a_connection_that_ends_is_not_waited_for_either() -> None:
    ask = ASK.replace(b"Host", b"Connection: close\r\nHost")
    async with serving(answering(b"x" * 40_000)) as (port, http):  # Too little for the writer to be told to pause.
        lazy = await connect(port, ask)
        await eventually(lambda: http.server_state.total_requests == 1)
        await eventually(lambda: not connections_of(http), what="the connection is cut")
        lazy.close()


async def test_a_stream_is_written_no_faster_than_it_is_read() -> None:
    written = 0
    gone = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        nonlocal written
        await send({"type": "http.response.start", "status": 200, "headers": []})
        watching = asyncio.create_task(receive_until_gone(receive, gone))
        while not gone.is_set():
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            written += 1000
        await watching

    async with serving(stream) as (port, http):
        lazy = await connect(port, ASK)
        await eventually(lambda: not connections_of(http), what="the connection is cut")
        async with asyncio.timeout(120):
            await gone.wait()
        assert written < 500_000, "no more than the buffers hold"
        lazy.close()


async def receive_until_gone(receive: Any, gone: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def test_a_page_that_does_not_read_the_changes_is_let_go_and_the_others_hear_them(
    database: Database, database_url: str
) -> None:
    ask = f"GET {API}/changes HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    fill = """
        INSERT INTO tidemill.job (queue, task, args)
        SELECT 'queue-' || n || '-' || repeat('x', 100), 'send', '{}' FROM generate_series($1::int, $1 + 200) AS n
    """
    async with FairDatabase(DatabaseSettings(url=database_url), label="test server") as own:
        server_state = ServerState(make_app(database_url=database_url), own, ServerSettings(trust_local=True))
        following = asyncio.create_task(server_state.hub.run())
        async with serving(build(server_state)) as (port, _):
            lazy, good = await connect(port, ask), await connect(port, ask)
            heard = await read(good, lambda told: b"event: hello" in told)
            assert heard.startswith(b"HTTP/1.1 200")
            await eventually(lambda: server_state.hub.watching == 2)
            rounds = 0
            while server_state.hub.watching == 2:
                rounds += 1
                assert rounds < 200, "somebody who never reads is still there"
                await database.fetch(fill, rounds * 1000)
                mark = f"queue-{rounds * 1000 + 200}-".encode()
                assert mark in await read(good, lambda told, mark=mark: mark in told)
            assert server_state.hub.watching == 1
            lazy.close()
            good.close()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


# -- too many -------------------------------------------------------------------------------------


async def test_where_there_are_too_many_an_idle_one_makes_room_and_if_there_is_none_the_next_is_told() -> None:
    held = asyncio.Event()

    async def hold(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/hold":
            await held.wait()
        await answering()(scope, receive, send)

    async with serving(hold, Few) as (port, http):
        idle = await connect(port, ASK)
        assert (await read(idle, lambda told: told.endswith(b"ok"))).startswith(b"HTTP/1.1 200")
        busy = [await connect(port, ASK.replace(b"/ ", b"/hold ", 1)) for _ in range(2)]
        await eventually(lambda: len(http.server_state.tasks) == 2)
        await eventually(lambda: any(each.is_idle(time.monotonic()) for each in connections_of(http)))
        next_one = await connect(port, ASK.replace(b"/ ", b"/hold ", 1))
        assert await read(idle) == b"", "it had asked nothing more"
        await eventually(lambda: len(http.server_state.tasks) == 3)
        refused = await read(await connect(port))
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"too many connections" in refused
        held.set()
        for each in (*busy, next_one):
            assert (await read(each, lambda told: told.endswith(b"ok"))).startswith(b"HTTP/1.1 200")
            each.close()


# -- heads that do not come -----------------------------------------------------------------------


async def test_a_client_that_does_not_finish_the_head_of_a_request_is_disconnected() -> None:
    begun = b"GET / HTTP/1.1\r\nHost: a\r\nX: "

    async def ends(first: bytes, drip: bytes, port: int) -> bytes:
        """All that a connection is told which sends one thing and then another again and again."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        told = b""
        writer.write(first)
        try:
            async with asyncio.timeout(120):
                while True:
                    writer.write(drip)
                    try:
                        piece = await asyncio.wait_for(reader.read(1000), 0.05)
                    except TimeoutError:
                        continue
                    if not piece:
                        return told
                    told += piece
        except ConnectionError:
            return told
        finally:
            writer.close()

    async with serving(answering()) as (port, _):
        silent, slow, idle, after = await asyncio.gather(
            ends(b"", b"", port),
            ends(begun, b"x", port),
            ends(b"", b"\r\n", port),
            ends(ASK + begun, b"x", port),
        )
    assert (silent, slow, idle) == (b"", b"", b"")
    assert after.endswith(b"ok"), "what was asked before is answered"


async def test_slow_answers_and_idle_connections_are_waited_for() -> None:
    async with serving(answering(after=Impatient.head_within * 1.5)) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(120):
            writer.write(ASK)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), Impatient.head_within * 1.5)
            # The head of the next request has begun while the one before is answered.
            writer.write(ASK + ASK[:10])
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.write(ASK[10:])
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
