"""A mail server on this machine: as much of SMTP as a client needs to hand over a mail."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def mail_server() -> Iterator[tuple[int, list[str]]]:
    """The port of a server, and the mails that it has accepted. It refuses the receivers called `gone`."""
    mails: list[str] = []

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode():
                word = line[:4].strip().upper()
                if word == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    mails.append("".join(iter(lambda: self.rfile.readline().decode(), ".\r\n")))
                if word == "QUIT":
                    self.wfile.write(b"221 bye\r\n")
                    return
                self.wfile.write(b"550 no such user\r\n" if "gone@" in line else b"250 ok\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1], mails
        finally:
            server.shutdown()
