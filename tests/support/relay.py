"""A web server between a client and a Tidemill server: it hands requests on, and may lose answers or talk TLS."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

HOP = {"connection", "content-length", "date", "host", "server", "transfer-encoding"}


class Relay(ThreadingHTTPServer):
    """Notes what was asked, as (method, path, headers). The first `lost` answers to what acts never arrive."""

    daemon_threads = True

    def __init__(self, target: str | None, *, lost: int = 0, certificate: tuple[Path, Path] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.lost = lost
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.server_address[1]}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that does not trust our certificate breaks off; the tests' output need not show that."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self._hand_on()

    def do_POST(self) -> None:
        self._hand_on()

    def do_DELETE(self) -> None:
        self._hand_on()

    def log_message(self, format: str, *args: object) -> None: ...

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        relay = self.server
        relay.asked.append((self.command, self.path, dict(self.headers)))
        if relay.target is None:
            status, headers, answer = 200, [("Content-Type", "text/html")], b"<h1>It works!</h1>"
        else:
            status, headers, answer = self._answer(relay.target, body)
        if self.command != "GET" and relay.lost:
            relay.lost -= 1
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _answer(self, target: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        there = http.client.HTTPConnection(urlsplit(target).netloc, timeout=150)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        there.request(self.command, self.path, body or None, headers)
        answer = there.getresponse()
        told = answer.status, answer.getheaders(), answer.read()
        there.close()
        return told


@contextmanager
def relay(target: str | None, *, lost: int = 0, certificate: tuple[Path, Path] | None = None) -> Iterator[Relay]:
    """A relay for as long as the block lasts; without a target, a foreign web server."""
    made = Relay(target, lost=lost, certificate=certificate)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def make_certificate(folder: Path, openssl: str) -> tuple[Path, Path]:
    """A certificate that signs itself, for 127.0.0.1, and its key."""
    made = folder / "cert.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=tidemill", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, *names, "-out", made[0], "-keyout", made[1]], check=True, capture_output=True)
    return made
