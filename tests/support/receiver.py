"""A small HTTP server for tests: remembers what it was sent, and answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int


Answer = Callable[[Request], tuple[int, bytes] | tuple[int, bytes, dict[str, str]]]


class Receiver:
    """`answer(request)` gives status and body, and maybe headers; what came is in `requests`."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.requests: list[Request] = []
        self.answer: Answer = answer or (lambda request: (200, b"{}"))
        self.url = ""


@contextmanager
def receiver(answer: Answer | None = None) -> Iterator[Receiver]:
    """A server on a free port of this machine."""
    seen = Receiver(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _take(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            request = Request(
                self.command, self.path, dict(self.headers), self.rfile.read(length), self.client_address[1]
            )
            seen.requests.append(request)
            status, body, *headers = seen.answer(request)
            self.send_response(status)
            for name, value in (headers[0] if headers else {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _take

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
