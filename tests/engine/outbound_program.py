"""Runs in a network of its own: prints how requests to public, private, renamed and redirecting hosts ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.private_network import Names, network
from tidemill.engine.outbound_http import OutboundHttp, OutboundHttpError, allowing_hosts, fetch

PUBLIC, OTHER = "8.8.8.8", "9.9.9.9"
SPELLINGS = (
    "127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "0", "[::1]", "[::ffff:127.0.0.1]", "inside.test.",
)  # fmt: skip


@contextmanager
def web(address: str) -> Iterator[list[tuple[str, str | None]]]:
    """A web server at port 80 of an address: says where it is, or redirects to what the path names."""
    seen: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append((self.path, self.headers["Authorization"]))
            target = self.path.partition("?to=")[2]
            self.send_response(302 if target else 200)
            if target:
                self.send_header("Location", target)
            self.send_header("Content-Length", str(len(address)))
            self.end_headers()
            self.wfile.write(address.encode())

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer((address, 80), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield seen
    server.shutdown()


def ask(url: str, *, stated: bool = False, **headers: str) -> str:
    try:
        return fetch("GET", url, None, headers, timeout=5, stated=stated).text()
    except OutboundHttpError as error:
        return str(error)


def main(names: Names, public: list, other: list, inside: list) -> dict[str, object]:
    names.tell("public.test", [PUBLIC])
    names.tell("other.test", [OTHER])
    names.tell("inside.test", ["127.0.0.1"])
    names.tell("mixed.test", ["127.0.0.1", PUBLIC])
    names.tell("metadata.test", ["169.254.169.254"])
    told: dict[str, object] = {"public": ask("http://public.test/"), "mixed": ask("http://mixed.test/")}

    names.tell("rebinding.test", [PUBLIC], ["127.0.0.1"])
    names.asked.clear()
    told["before the rebinding"] = ask("http://rebinding.test/")
    told["questions"] = list(names.asked)
    told["after the rebinding"] = ask("http://rebinding.test/")

    names.tell("kept.test", [PUBLIC], ["127.0.0.1"])
    client = OutboundHttp(timeout=5)
    told["kept"] = client.request("GET", "http://kept.test/").text()
    for connection in client._connections.values():
        connection.close()
    try:
        told["kept, closed and asked again"] = client.request("GET", "http://kept.test/").text()
    except OutboundHttpError as error:
        told["kept, closed and asked again"] = str(error)

    told["redirects"] = {
        target: ask(f"http://public.test/?to={target}")
        for target in (
            "http://inside.test/",
            "http://127.0.0.1/",
            "http://metadata.test/",
            "http://other.test/",
            "file:///etc/passwd",
        )
    }
    other.clear()
    ask("http://public.test/?to=http://other.test/", Authorization="secret")
    told["secrets after a redirect"] = [other[0][1], public[-1][1]]
    told["spellings"] = {
        host: ask(f"http://{host}/")
        for host in (
            "127.0.0.1",
            "localhost",
            "2130706433",
            "0x7f.1",
            "127.1",
            "0",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "inside.test.",
        )
    }
    told["refused before anything was sent"] = not inside
    told["a user name"] = ask("http://inside.test@public.test/")

    told["stated"] = ask("http://inside.test/", stated=True)
    told["stated metadata by name"] = ask("http://metadata.test/", stated=True)
    told["stated, redirected"] = ask("http://inside.test/?to=http://localhost/", stated=True)
    for entry in ("inside.test", "inside.test:80", "inside.test:81", "127.0.0.1", "127.0.0.0/8", "10.0.0.0/8"):
        with allowing_hosts([entry]):
            told[f"allowed {entry}"] = ask("http://inside.test/")
    return told


with network(PUBLIC, OTHER) as names, web(PUBLIC) as public, web(OTHER) as other, web("127.0.0.1") as inside:
    print(json.dumps(main(names, public, other, inside)))
