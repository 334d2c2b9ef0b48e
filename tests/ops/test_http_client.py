"""A command at a server ends when its work has ended, whatever its connections were doing at that moment."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.support import eventually
from tidemill.ops.operator.http_client import HttpClient

NO_END = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: still here\n\n"


class FullServer:
    """A server whose queue of connections is full, so that one more waits for `accept`; it never ends an answer."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.port: int = listening.getsockname()[1]
        self.first = [socket.create_connection(listening.getsockname())]
        self.accepted: list[socket.socket] = []
        self.asked = threading.Event()

    def is_being_connected(self) -> bool:
        connections: list[Any] = psutil.Process().net_connections("tcp")
        return any(each.status == psutil.CONN_SYN_SENT and each.raddr[1:] == (self.port,) for each in connections)

    def accept(self) -> None:
        """Let all in, and answer each; returns when the server is closed."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                self.accepted.append(connection)
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if connection.recv(65536):
                self.asked.set()
                connection.sendall(NO_END)


@pytest.fixture
def server() -> Iterator[FullServer]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        full = FullServer(listening)
        yield full
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        for each in (*full.first, *full.accepted):
            each.close()


async def test_changes_that_are_no_longer_followed_end_while_their_connection_is_opened(server: FullServer) -> None:
    async with asyncio.timeout(60):
        async with HttpClient(f"http://127.0.0.1:{server.port}").changes(("pipelines",)):
            await eventually(server.is_being_connected)
            # The block ends first: only the thread that reads the changes can connect now.
            asyncio.get_running_loop().call_soon(threading.Thread(target=server.accept, daemon=True).start)
    assert not server.asked.is_set()


async def test_a_request_that_was_given_up_while_its_connection_is_opened_is_not_sent(server: FullServer) -> None:
    request = asyncio.create_task(HttpClient(f"http://127.0.0.1:{server.port}").request_async("GET", ["jobs"]))
    await eventually(server.is_being_connected)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    threading.Thread(target=server.accept, daemon=True).start()
    await eventually(lambda: len(server.accepted) == 2)
    async with asyncio.timeout(60):
        await asyncio.get_running_loop().shutdown_default_executor()  # As at the end of a command.
    assert not server.asked.is_set()
